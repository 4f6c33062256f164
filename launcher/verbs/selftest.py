"""`paddock selftest`: a catalogue of attacks and controls, in Paddock's jails or in any other sandbox."""

import fcntl
import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher import cli, programmes
from launcher.ledger import enforcement
from launcher.safefs.remove import remove_tree
from launcher.selftest import catalogue, results
from launcher.selftest.catalogue import Trial
from launcher.selftest.results import Result
from launcher.selftest.rounds import NAME, Outcome, Round, Sandbox
from launcher.session import messages
from launcher.session.places import made, places
from launcher.vcs import worktree_words
from launcher.verbs import style, table
from policy import promises
from policy.errors import Refusal
from policy.plan import SYSTEM_PATH

_OURS = {
    "auto": Sandbox("paddock", (), paddock=True),
    "namespaces": Sandbox(promises.NAMESPACES, ("--backend", "landlock"), paddock=True),
    "guard": Sandbox(
        promises.GUARD, ("--backend", "landlock"), paddock=True, environment=(("PADDOCK_NO_USERNS", "1"),)
    ),
    "bubblewrap": Sandbox(promises.BUBBLEWRAP, ("--backend", "bubblewrap"), paddock=True),
}


def selftest(
    *, backend: list[str], prefix: list[str], concern: list[str], html: str | None, as_json: bool, verbose: bool
) -> int:
    """Exit status 0 when every attack was held and every control works, in all sandboxes; else 1."""
    unknown = [name for name in concern if name not in catalogue.concerns()]
    if unknown:
        raise cli.usage(f"{unknown[0]} is not a concern; there are {', '.join(catalogue.concerns())}", "selftest")
    sandboxes = _sandboxes(backend, prefix)
    if shutil.which("git", path=SYSTEM_PATH) is None:
        raise Refusal("git-missing", "the self-test needs git", hint="install git")
    target = None if html is None else enforcement.Target(html, worktree_words.is_agents)
    trials = [trial for trial in catalogue.trials() if not concern or trial.concern in concern]
    line = table.Line(quiet=as_json and not os.isatty(2))
    with _scratch() as base:
        found = _rounds(base, sandboxes, trials, line)
    line.end()
    if target is not None:
        target.write(results.page(found, _machine()))
    if as_json:
        table.show_json(results.document(found))
    else:
        _print(found, verbose)
    return 0 if all(result.whole for result in found) else 1


def _sandboxes(backends: Sequence[str], prefix: Sequence[str]) -> list[Sandbox]:
    """What is tried: Paddock's own backends, then other sandboxes by their command lines."""
    names = list(_OURS)[1:] if "all" in backends else list(dict.fromkeys(backends))
    names = names if names or prefix else ["auto"]
    launch = programmes.paddock("run")
    found = [_OURS[name]._replace(words=(*launch, *_OURS[name].words)) for name in names]
    for line in prefix:
        try:
            words = tuple(shlex.split(line))
        except ValueError as error:
            raise cli.usage(f"--prefix {line}: {error}", "selftest") from None
        if words:
            path = shutil.which(words[0])
            if path is None:
                raise Refusal("not-found", f"there is no {words[0]}", hint="--prefix takes a command line in one word")
            words = (os.path.abspath(path), *words[1:])  # the caller's PATH is not what the scratch area has
        found.append(Sandbox(line.strip().removesuffix("--").strip() or "no sandbox", words))
    return found


def _rounds(base: Path, sandboxes: Sequence[Sandbox], trials: Sequence[Trial], line: table.Line) -> list[Result]:
    """The catalogue without a sandbox, to see what this machine allows at all, then in each."""

    def round_of(number: int, sandbox: Sandbox, wanted: Sequence[Trial]) -> tuple[dict[Trial, Outcome], str, float]:
        began = time.monotonic()
        count = iter(range(1, len(wanted) + 1))
        each = Round(
            base / str(number), sandbox, lambda name: line.show(f"{sandbox.name}: {next(count)}/{len(wanted)} {name}")
        )
        return each.run(wanted), each.backend, time.monotonic() - began

    nothing = Sandbox("no sandbox")
    bare, _, seconds = round_of(0, nothing, [trial for trial in trials if trial.bare != "no"])
    found = []
    for number, sandbox in enumerate(sandboxes, 1):
        if not sandbox.words:
            found.append(Result(sandbox.name, "", bare, bare, seconds))
            continue
        outcomes, backend, taken = round_of(number, sandbox, trials)
        found.append(Result(backend or sandbox.name, backend, outcomes, bare, taken))
    return found


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory beside the cache, outside of what any jail gets; locked, so the next one knows what was killed."""
    above = made(places(os.environ).cache + "-selftest")
    with _locked(above):
        for name in os.listdir(above):
            with suppress(BlockingIOError), _locked(f"{above}/{name}", wait=False):
                for left in (*Path("/tmp").glob(f"{NAME}{name}-*"), *Path("/dev/shm").glob(f"{NAME}{name}-*")):
                    if left.lstat().st_uid == os.geteuid():  # anybody can make one of that name there
                        remove_tree(str(left))
                remove_tree(f"{above}/{name}")
        base = tempfile.mkdtemp(prefix="", dir=above)
        lock = os.open(base, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield Path(base)
    finally:
        remove_tree(base)
        os.close(lock)
        with suppress(OSError):  # another one is at work there
            os.rmdir(above)


@contextmanager
def _locked(path: str, *, wait: bool = True) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _print(found: Sequence[Result], verbose: bool) -> None:
    for result in found:
        messages.show(style.styled(result.name, style.BOLD))
        messages.show("\n".join(table.lines(results.HEADING, results.by_concern(result))))
        for verdict, name, seen in results.remarkable(result):
            shade = style.RED if verdict in results.FAILED else style.YELLOW
            messages.show(f"  {style.styled(verdict, shade)}  {name}: {seen}")
        if verbose:
            rows = ((result.verdict(trial), trial.kind, f"{trial.concern}: {trial.name}") for trial in result.outcomes)
            messages.show("\n".join(table.lines(("VERDICT", "KIND", "NAME"), rows)))
        messages.show()
    for result in found:
        messages.show(style.styled(result.summary, style.GREEN if result.whole else style.RED))


def _machine() -> str:
    return f"{platform.system()} {platform.release()}, {platform.machine()}, user {os.geteuid()}"
