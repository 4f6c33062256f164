"""The validator and the kernel agree: what one says about random paths in random worktrees, the other does.

For each tree a Plan is made, the validator is asked with the Plan's context for tools, and then the same operations are
really carried out in one jail of that Plan, and without any jail for what ordinary permissions say.
"""

import ctypes
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import landlock as oracle
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from launcher.jail import hygiene
from launcher.session import cache, places, planning, running
from policy import promises, verdict
from policy.errors import Refusal
from policy.plan import Plan, beneath
from policy.sandbox import WorktreeSandbox
from policy.violation import Operation
from tests.conftest import IDENTITIES
from tests.fuzz import operations
from tests.fuzz.trees import (
    ALL,
    CASE,
    EXAMPLES,
    LETTER,
    SUBMODULES,
    Case,
    Tree,
)
from tests.kernel.test_landlock_differential import LETTERS, ORACLE_ABI, known
from tests.support import features, forked, install
from tests.support.identity import Who


def options_of(case: Case, tree: Tree, *, frozen: bool) -> dict[str, str | list[str] | bool]:
    """The command line of a Case. Exceptions and grants are paths of the tree, or just outside."""
    # A private git directory has the name of the worktree's own, of which the validator speaks.
    options: dict[str, str | list[str] | bool] = {"--worktree": os.fsdecode(tree.root), "--git": "readonly"}
    for name, indexes in (("--deny", case.deny), ("--ro", case.read), ("--rw", case.write)):
        chosen = [os.fsdecode(tree.pick(index)) for index in indexes]
        if chosen := [path for path in chosen if os.path.exists(path) and not beneath(os.fsdecode(tree.root), path)]:
            options[name] = chosen
    if frozen:
        options["--freeze-root"] = True
    return options


def submodules_of(case: Case, tree: Tree, options: dict[str, str | list[str] | bool]) -> None:
    """Names of submodules are those that are there; `deep` lies in `lib`, whose name comes first."""
    names = {"lib": "lib", "deep": "lib/deep", "other": "other"}
    present = [name.decode() for name in SUBMODULES[: case.submodules]]
    if chosen := [names[name] for name in case.granted if names[name] in present]:
        options["--submodule"] = list(chosen)


def jailed(entry: cache.Entry, where: places.Places, jobs: bytes) -> list[str]:
    """The jobs' outcomes in a jail of the plan, which is entered as `paddock run` enters it."""
    said = piped(lambda: running.run(entry, arguments(), where, given={}, name=None, report=None, verbose=False), jobs)
    return said.decode().split()


def arguments() -> tuple[str, ...]:
    return ("-I", "-S", "-c", Path(operations.__file__).read_text())


def piped(act: object, jobs: bytes) -> bytes:
    """What a forked child writes to stdout, with `jobs` on stdin; its complaints come with the failure."""
    with tempfile.TemporaryFile() as given_file, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong:
        given_file.write(jobs)
        given_file.seek(0)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                for number, file in enumerate((given_file, said, wrong)):
                    os.dup2(file.fileno(), number)
                code = act()  # type: ignore[operator]  # a callable that gives an exit status
            except Refusal as refusal:
                os.write(2, str(refusal).encode(errors="surrogateescape"))
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (said, wrong):
            file.seek(0)
        assert status == 0, wrong.read().decode(errors="replace")
        return said.read()


def unjailed(root: bytes, jobs: list[tuple[str, bytes]]) -> list[str]:
    """The same jobs with nothing but ordinary permissions in the way; root's capabilities are not ordinary."""
    os.chdir(root)
    hygiene.drop_all()
    return [operations.outcome(operation, path) for operation, path in jobs]


def second_opinion(plan: Plan, root: bytes, jobs: list[tuple[str, bytes]]) -> list[str]:
    """The same jobs behind the same rules, applied by the `landlock` package of PyPI (rights up to ABI 5)."""
    ctypes.set_errno(0)
    rights = known(ORACLE_ABI)
    ruleset = oracle.Ruleset(rights)
    for path, access, _ in plan.grants:
        if path.startswith("/") and os.path.exists(path):
            wanted = oracle.FSAccess(0)
            for letter in access:
                wanted |= LETTERS[letter]
            wanted &= rights if os.path.isdir(path) else rights & oracle.FSAccess.all_file()
            if wanted:
                ctypes.set_errno(0)  # the package takes what an earlier call left there for a failure of its own
                ruleset.allow(path, rules=wanted)
    os.chdir(root)
    hygiene.drop_all()
    ctypes.set_errno(0)
    ruleset.apply()
    return [operations.outcome(operation, path) for operation, path in jobs]


def difference(plan: Plan, tree: Tree, job: tuple[str, bytes], allowed: bool, outside: str, inside: str) -> str | None:
    """Why this is a disagreement, or None."""
    operation, given_path = job
    if allowed:
        # By a detour through what the jail does not show, the place can only be reached by its normalized name.
        fails = outside == "ok" and inside != "ok" and not detours(plan, tree, given_path)
        return "allowed, and the kernel denies it" if fails else None
    if inside != "ok":
        return None
    full = os.path.join(tree.root, given_path)
    entry = operation in ("DELETE", "MOVE", "MKDIR")
    head, _, name = full.rpartition(b"/")
    plain = entry and name not in (b"", b".", b"..")
    canonical = os.path.join(os.path.realpath(head), name) if plain else os.path.realpath(full)
    path = os.fsdecode(canonical)
    letter = LETTER.get(operation, "w")
    if not beneath(path, plan.worktree) and letter in verdict.decide(plan, path).access:
        return None
    mounts = plan.backend == promises.NAMESPACES
    if mounts and letter == "r" and any(beneath(where, path) for where, _, _ in plan.grants):
        return None  # the way to a grant, on the jail's own root: it shows the names of grants and nothing else
    if other_name_granted(plan, tree, canonical, letter, alike=mounts):
        return None
    return "denied, and the kernel allows it"


def detours(plan: Plan, tree: Tree, path: bytes) -> bool:
    """Whether the way to `path` goes through what the jail does not show: outside the worktree, or denied."""
    full = os.path.join(tree.root, path)
    steps = [os.path.realpath(full[:at]) for at, char in enumerate(full) if char == ord("/") and at]
    for place in map(os.fsdecode, (*steps, *walked(full))):
        if not beneath(place, plan.worktree) and not beneath(plan.worktree, place):
            return True
        if beneath(place, plan.worktree) and not verdict.decide(plan, place).access:
            return True
    return False


def walked(path: bytes) -> list[bytes]:
    """Where the symbolic links on the way to `path` stand, and where they lead."""
    found: list[bytes] = []
    done, rest = b"/", [part for part in path.split(b"/") if part]
    while rest and len(found) < 80:
        here = os.path.join(done, rest.pop(0))
        if os.path.islink(here):
            text = os.readlink(here)
            rest = [part for part in text.split(b"/") if part] + rest
            found += [done, os.path.normpath(os.path.join(done, text))]
            done = b"/" if text.startswith(b"/") else done
        else:
            done = os.path.realpath(here)
    return found


def other_name_granted(plan: Plan, tree: Tree, path: bytes, letter: str, *, alike: bool) -> bool:
    """Whether the file has another name (a hard link) where this access is granted.

    A Landlock rule belongs to the inode, so where exceptions are kept by granting the siblings one by one, the granted
    name opens the denied one as well. Nothing is lost by it: the content could be reached by the granted name anyhow.

    Args:
        plan: decides about the other name.
        tree: where other names are looked for.
        path: the denied name.
        letter: the access.
        alike: only names count that differ in case alone. The validator takes those for one name on a file system
            that ignores case, and denies both; where exceptions are mounted over, the kernel knows better.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_nlink < 2:
        return False
    names = (os.path.join(folder, name) for folder, _, names in os.walk(tree.place) for name in names)
    same = (name for name in names if os.path.samestat(os.lstat(name), found))
    if alike:
        folded = os.fsdecode(path).casefold()
        return any(name != path and os.fsdecode(name).casefold() == folded for name in same)
    return any(letter in verdict.decide(plan, os.fsdecode(name)).access for name in same)


def agree(place: bytes, case: Case, python: str, *, frozen: bool) -> Counter[str]:
    """One example; AssertionError with all differences. Normalized names are asked for beside those given."""
    clear(place)
    tree = Tree(place, case)
    tree.modes(case)
    options = options_of(case, tree, frozen=frozen)
    submodules_of(case, tree, options)
    where = places.places(os.environ)
    try:
        planned = planning.make(options, [python], os.fsdecode(tree.root), where)
    except Refusal as refusal:
        return Counter({f"refused: {refusal.reference}": 1})
    planning.prepare(planned, where)
    plan = planned.plan
    jobs = [(operation, path) for path in tree.paths for operation in ALL]
    box = WorktreeSandbox()
    context = planning.context_for_tools(planned)
    results = [box.validate_in_context(path, context, Operation(operation)) for operation, path in jobs]
    for (operation, path), result in zip(tuple(jobs), tuple(results), strict=True):
        if result.allowed and result.normalized_path not in (None, os.fsdecode(path)):
            jobs.append((operation, os.fsencode(result.normalized_path or "")))
            results.append(box.validate_in_context(jobs[-1][1], context, Operation(operation)))
    answers = [result.allowed for result in results]
    outside = forked.run(lambda: unjailed(tree.root, jobs))
    entry = cache.Entry(
        plan, planned.support.to_data(), planning.filter_program(plan, planned.support, planned.machine)
    )
    text = "".join(f"{operation} {path.hex()}\n" for operation, path in jobs).encode()
    inside = jailed(entry, where, text)
    assert len(inside) == len(jobs)
    wrong = []
    for job, allowed, free, held in zip(jobs, answers, outside, inside, strict=True):
        if why := difference(plan, tree, job, allowed, free, held):
            answer = box.validate_in_context(job[1], context, Operation(job[0]))
            said = answer.reason or "allows"
            wrong.append(f"{job[0]:8}{job[1]!r}: {why}; unjailed {free}, jailed {held}, validator {said}")
    if plan.backend == promises.GUARD:
        theirs = forked.run(lambda: second_opinion(plan, tree.root, jobs))
        for job, held, said in zip(jobs, inside, theirs, strict=True):
            if (held == "ok") is not (said == "ok"):
                wrong.append(f"{job[0]:8}{job[1]!r}: jailed {held}, behind the rules of the landlock package {said}")
    assert not wrong, "\n".join([f"{case}", f"{options}", *wrong])
    return Counter(
        ("allowed" if allowed else "denied") + ("" if held == "ok" else " and failed")
        for allowed, held in zip(answers, inside, strict=True)
    )


def clear(place: bytes) -> None:
    """Empties the place, whatever modes the last example left."""
    for folder, names, _ in os.walk(place):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o755)
    for name in os.listdir(place):
        if name != b"home":
            shutil.rmtree(os.path.join(place, name))


def explore(place: Path, python: str, *, frozen: bool, examples: int = EXAMPLES) -> Counter[str]:
    """All examples, in one process; how often each outcome came."""
    counts: Counter[str] = Counter()
    os.environ.clear()
    os.environ.update({"HOME": str(place / "home"), "PATH": "/usr/bin:/bin"})
    if frozen:
        os.environ["PADDOCK_NO_USERNS"] = "1"
    (place / "home").mkdir()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=CASE)
    def compare(case: Case) -> None:
        counts.update(agree(os.fsencode(place), case, python, frozen=frozen))

    compare()
    return counts


@pytest.fixture
def wide(who: Who, public_dir: Path) -> Iterator[Path]:
    """A directory of `who` that lies, where that is possible, outside of /tmp: the jail has a /tmp of its own."""
    for candidate in ("/srv", "/opt", "/home"):
        if os.access(candidate, os.W_OK | os.X_OK):
            path = Path(tempfile.mkdtemp(prefix="paddock-agreement-", dir=candidate))
            path.chmod(0o755)
            yield who.give(path)
            shutil.rmtree(path)
            return
    path = public_dir / "wide"
    path.mkdir()
    yield who.give(path)


@pytest.mark.spec("SC-002")
@pytest.mark.parametrize(
    ("who", "frozen"),
    [(IDENTITIES[-1], False), (IDENTITIES[0], True)],
    ids=lambda value: None if isinstance(value, str) else "landlock" if value else "namespaces",
    indirect=["who"],
)
def test_the_validator_and_the_kernel_agree(who: Who, wide: Path, frozen: bool) -> None:
    """Allowed by the validator is allowed by the kernel; only grants outside the worktree go the other way.

    Root where no mounts hold him.
    """
    features.need("landlock")
    if not frozen:
        features.need("userns")
    counts = forked.run(lambda: explore(wide, str(install.base_python()), frozen=frozen), who)
    # The comparison means something only if all of these occurred.
    assert counts["allowed"] > 100, counts
    assert counts["denied and failed"] > 100, counts
    assert counts["denied"] > 10, counts
