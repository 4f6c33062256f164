"""`paddock init` and `paddock trust`: write a commented .paddock.toml, and accept one that loosens rules."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

from launcher.jail import confined
from launcher.safefs import guarded_files, walk
from launcher.session import configuration, places
from launcher.session.machine import Machine
from launcher.session.trust_store import Trust, digest_of
from launcher.vcs import checkout, jailed_git, written
from launcher.vcs.private import writers
from launcher.verbs import table
from policy.errors import Refusal, printable
from policy.pasted import quoted
from policy.plan import SYSTEM_PATH

_QUESTION = """
Agents in jails do not see your own instructions, skills, commands and MCP servers unless you bring them. They are
read-only there, and MCP servers come with the keys in their configuration. Bring them into all jails? [y/N] """


def init(*, force: bool, as_json: bool) -> int:
    """Exit status 0 when the file was written."""
    root = checkout.find(places.current_directory(), Machine(os.environ), exact=False).root
    path = configuration.write_example(root, force=force)
    if as_json:
        print(json.dumps({"path": path, "written": True}, indent=2))
        return 0
    print(f"wrote {printable(path)}; every rule in it is a comment, so nothing has changed yet")
    print("next: edit it, then `paddock explain --plan` shows the outcome")
    print("      `paddock trust .paddock.toml` accepts what loosens a rule")
    _ask_once(places.places(os.environ))
    return 0


def _ask_once(own: places.Places) -> None:
    """At a terminal, asks whether jails show the user's own things, and writes the answer to the configuration."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or _asked_before(own):
        return
    print(_QUESTION, end="", flush=True)
    answer = sys.stdin.readline().lower()  # "" without a newline is no answer
    if answer.strip() in ("y", "yes", "n", "no", "") and answer:
        agents = answer.startswith("y")
        path = _add_bring(own, agents=agents)
        print(f"wrote to {printable(path)}: under [bring], agents = {'true' if agents else 'false'}")


def _asked_before(own: places.Places) -> bool:
    """Whether the user's own configuration has a table [bring], or is none that could be given one."""
    path = configuration.user_file(own)
    if os.path.islink(path):
        return True  # a dotfile manager's: it points to where agents may work
    try:
        content = guarded_files.read(path, follow=False)
        return content is not None and "bring" in tomllib.loads(content.data.decode("utf-8"))
    except (Refusal, ValueError, RecursionError):
        return True  # what is wrong with it is reported by whatever needs it


def _add_bring(own: places.Places, *, agents: bool) -> str:
    """Puts a table [bring] behind what the user's own configuration holds; returns the file's path."""
    path = configuration.user_file(own)
    content = guarded_files.read(path, follow=False)
    before = content.data if content is not None else b"schema = 1\n"
    line = f"[bring]\nagents = {'true' if agents else 'false'}\n".encode()
    try:
        places.make_private(os.path.dirname(path))
        data = before.rstrip(b"\n") + b"\n\n" + line if before.strip() else line
        walk.replace(path, data, mode=content.mode if content is not None else 0o600)
    except OSError as error:
        raise Refusal("init-failed", f"cannot write {path}", context=error.strerror or str(error)) from None
    return path


def trust(file: str | None, *, forget: bool, show_list: bool, as_json: bool) -> int:
    """Exit status 0 when done; 1 when there was nothing to forget."""
    store = Trust(places.places(os.environ).state)
    if show_list:
        if file is not None or forget:
            raise Refusal("usage", "--list takes neither FILE nor --forget", hint="paddock trust --help")
        return _list(store, as_json=as_json)
    if file is not None and not file:
        raise Refusal("usage", "FILE is an empty name", hint="paddock trust .paddock.toml")
    here = places.current_directory()  # or the name of the file could mean nothing
    if file is None:
        file = os.path.join(checkout.find(here, Machine(os.environ), exact=False).root, ".paddock.toml")
    if os.path.isdir(file) and not forget:
        return _git_directory(os.path.realpath(file), as_json=as_json)
    if forget:
        return _forget(store, configuration.canonical_name(file), as_json=as_json)
    directory = os.path.dirname(configuration.canonical_name(file))
    root = checkout.find(directory, Machine(os.environ), exact=False).root
    review = configuration.review(file, root, os.environ)
    if not as_json:
        print(f"{printable(review.path)} loosens:" if review.loosens else f"{printable(review.path)} loosens nothing")
        for line in review.loosens:
            print(f"  {printable(line)}")
        sys.stdout.flush()  # seen before it is recorded, also when recording fails
    store.trust(review.path, review.content)
    if as_json:
        document = {"path": review.path, "sha256": digest_of(review.content), "loosens": list(review.loosens)}
        print(json.dumps(document | {"trusted": True}, indent=2))
    else:
        print(f"trusted, as it is now (sha256 {digest_of(review.content)[:16]}...)")
    return 0


# Links, then what git takes orders from; objects, refs and logs are data alone. Records end with a NUL.
_OBEYED = (
    *("-type", "l", "-printf", r"%P -> %l\0", "-o"),
    *("-type", "d", "(", "-path", "*/objects/??", "-o", "-path", "*/objects/pack", "-o", "-name", "refs", "-o"),
    *("-name", "logs", ")", "-prune", "-o"),
    *("-type", "f", "-path", "*/objects/info/alternates", "-printf", r"%P:\0", "-exec", "cat", "{}", ";"),
    *("-printf", r"\0", "-o"),
    *("-type", "f", "-path", "*/hooks/*", "!", "-name", "*.sample", "-printf", r"%P\0", "-o"),
    *("-type", "f", "(", "-name", "attributes", "-o", "-name", "commondir", ")", "-printf", r"%P\0", "-o"),
    *("-type", "f", "(", "-name", "config", "-o", "-name", "config.worktree", ")", "-printf", r"%P:\0"),
    *("-exec", "git", "config", "--no-includes", "--list", "-z", "--file", "{}", ";"),
)  # fmt: skip
_MOST_SHOWN = 1 << 20


def _git_directory(place: str, *, as_json: bool) -> int:
    """Shows what git obeys in a git directory that sessions could write, and records that the user accepts it.

    Refusals: trust-no-git-directory; session-running.
    """
    inside = os.path.join(place, ".git")
    place = place if os.path.isfile(os.path.join(place, "HEAD")) else inside
    if os.path.islink(place) or not os.path.isfile(os.path.join(place, "HEAD")):
        raise Refusal("trust-no-git-directory", f"{place} is not a git directory",
                      hint="name a .git directory; of a worktree or submodule, its repository's")  # fmt: skip
    state = places.places(os.environ).state
    tree = written.agents_tree(place, state)
    with writers.excluded(state, [tree] if tree else [], frozen=True):
        obeyed = _obeyed(place) if tree else []
        if not as_json:
            print("\n".join([f"in {printable(place)}, git obeys:", *(f"  {printable(line)}" for line in obeyed)])
                  if tree else f"no session could write {printable(place)}: git uses it anyway")  # fmt: skip
            sys.stdout.flush()
        if tree:
            written.vouch(state, place)
    if as_json:
        print(json.dumps({"path": place, "obeyed": obeyed, "trusted": True}, indent=2))
    elif tree:
        print("trusted, until a session can write it again")
    return 0


def _obeyed(place: str) -> list[str]:
    """What git takes orders from in a git directory and in those inside of it, as a jailed find(1) shows it.

    Refusals: trust-unreadable; those of a jail.
    """
    find = shutil.which("find", path=SYSTEM_PATH) or "/usr/bin/find"
    variables = (
        ("PATH", SYSTEM_PATH),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
    )
    spec = (place, (os.path.realpath(find), ".", *_OBEYED), ((place,), (), ()), variables, (("memory", 1 << 30),))
    with jailed_git.start(spec, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with open(process.stdout.fileno(), "rb", closefd=False) as whole:
            said = os.fsdecode(whole.read(_MOST_SHOWN))
        if len(said) == _MOST_SHOWN:
            process.kill()
    if process.returncode:
        raise confined.refusal_in(said) or Refusal(
            "trust-unreadable", f"what git obeys in {place} cannot be shown",
            context="\n".join(said.splitlines()[-3:]) if len(said) < _MOST_SHOWN else "it is more than 1 MiB",
            hint="clone it to a place of your own")  # fmt: skip
    return [record.replace("\n", " = ", 1) for record in said.split("\0") if record]


def _list(store: Trust, *, as_json: bool) -> int:
    entries = store.entries()
    if as_json:
        print(json.dumps([{"path": path, "sha256": sha256} for path, sha256 in entries], indent=2))
        return 0
    if not entries:
        print("nothing is trusted")
        return 0
    print("\n".join(table.lines(("SHA256", "FILE"), [(sha256[:16], path) for path, sha256 in entries])))
    return 0


def _forget(store: Trust, path: str, *, as_json: bool) -> int:
    known = store.forget(path)
    if as_json:
        print(json.dumps({"path": path, "trusted": False, "forgotten": known}, indent=2))
    else:
        print(
            f"{printable(path)} is {'no longer' if known else 'not'} trusted{'' if known else ', and was not before'}"
        )
        root, name = os.path.split(path)
        main = configuration.main_checkout(root, places.places(os.environ).state)
        if name == configuration.PROJECT_NAME and main and (there := f"{main}/{name}") in dict(store.entries()):
            print(f"what is trusted as {printable(there)} counts here, too: paddock trust --forget {quoted(there)}")
    return 0 if known else 1
