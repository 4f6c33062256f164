"""The path validator with one root: what it allows, what it denies, and why."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from launcher.jail import syscalls
from policy.sandbox import Location, Operation, Reason, Unresolvable, WorktreeSandbox, by_walk, resolve

BOX = WorktreeSandbox()
READING = [operation for operation in Operation if not operation.mutates]
MUTATING = [operation for operation in Operation if operation.mutates]


@pytest.fixture
def wt(tmp_path: Path) -> Path:
    """A worktree with files and links, a look-alike sibling, and something outside."""
    root = tmp_path.resolve() / "wt"
    (root / "src").mkdir(parents=True)
    (root / "file").write_text("in")
    (root / "src" / "deep").mkdir()
    (root / "src" / "deep" / "file").write_text("in")
    for sibling in ("wt-2", "WT", "out"):
        (root.parent / sibling).mkdir()
        (root.parent / sibling / "file").write_text("out")
    (root / "in-link").symlink_to("src/deep")
    (root / "out-link").symlink_to("../out")
    (root / "out-file").symlink_to(root.parent / "out" / "file")
    (root / "new-in").symlink_to("src/new")
    (root / "new-out").symlink_to("../out/new")
    (root / "loop-a").symlink_to("loop-b")
    (root / "loop-b").symlink_to("loop-a")
    return root


@contextmanager
def ordinary_user() -> Iterator[None]:
    """File permissions count inside, even when the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        # Or the kernel keeps this process's /proc from the namespaces that later tests fork into.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def allows(target: str | bytes | Path, root: Path, operation: Operation | str = "READ") -> str:
    result = BOX.validate(target, root, operation)
    assert result.allowed, result
    assert result.reason is None
    assert result.normalized_path is not None
    return result.normalized_path


def denies(target: str | bytes | Path, root: Path, operation: Operation | str = "READ") -> Reason:
    result = BOX.validate(target, root, operation)
    assert not result.allowed, result
    assert result.reason is not None
    assert result.message
    assert json.loads(result.to_error_json())["error"] is True
    return result.reason


@pytest.mark.spec("US2.1", "US2.2", "US3.1", "US3.2", "US4.1", "US4.2", "FR-010", "FR-011", "FR-012", "CONTRACT-4")
@pytest.mark.parametrize("operation", list(Operation))
def test_inside_is_allowed_and_outside_denied_for_every_operation(wt: Path, operation: Operation) -> None:
    """Stories 2 to 4: the same boundary for reading, writing and editing."""
    assert allows(wt / "src" / "deep" / "file", wt, operation) == f"{wt}/src/deep/file"
    assert denies(wt.parent / "out" / "file", wt, operation) is Reason.OUTSIDE
    assert denies("/etc/passwd", wt, operation) is Reason.OUTSIDE
    assert denies("/", wt, operation) is Reason.OUTSIDE
    assert denies(wt.parent, wt, operation) is Reason.OUTSIDE


@pytest.mark.parametrize("sibling", ["wt-2/file", "WT/file", "wt-2/new", "wtx"])
def test_paths_are_compared_by_components_and_case(wt: Path, sibling: str) -> None:
    """A sibling whose name starts the same, or differs in case only, is outside."""
    for operation in Operation:
        assert denies(wt.parent / sibling, wt, operation) is Reason.OUTSIDE
    assert allows(wt / "file", wt)


def test_relative_paths_start_at_the_root_or_the_base(wt: Path) -> None:
    """The validator's own current directory plays no part."""
    assert allows("src/deep/file", wt) == f"{wt}/src/deep/file"
    assert allows(b"file", wt) == f"{wt}/file"
    assert allows(".", wt) == str(wt)
    based = BOX.validate("deep/file", wt, base=wt / "src")
    assert based.normalized_path == f"{wt}/src/deep/file"
    assert BOX.validate("deep/file", wt, base="src").normalized_path == f"{wt}/src/deep/file"
    assert BOX.validate("file", wt, base=wt.parent / "out").reason is Reason.OUTSIDE
    assert BOX.validate("file", wt, base="").reason is Reason.EMPTY


@pytest.mark.spec("US2.3", "US3.3", "FR-013", "SC-004")
@pytest.mark.parametrize(
    "target",
    ["../out/file", "src/../../out/file", "src/deep/../../../wt-2/file", "../../../../../../../../etc/passwd", ".."],
)
def test_traversal_out_is_denied(wt: Path, target: str) -> None:
    """SC-004."""
    assert denies(target, wt) is Reason.OUTSIDE
    assert denies(f"{wt}/{target}", wt, "WRITE") is Reason.OUTSIDE


def test_traversal_that_stays_inside_is_allowed(wt: Path) -> None:
    """`..` as such is no crime; going out and coming back leads inside as well."""
    assert allows("src/../file", wt) == f"{wt}/file"
    assert allows("../wt/file", wt) == f"{wt}/file"
    assert allows("./src/.//deep/../../file", wt) == f"{wt}/file"


@pytest.mark.spec("FR-013", "SC-004")
def test_dotdot_behind_a_link_goes_up_from_the_links_target(wt: Path) -> None:
    """The kernel does not take `link/..` away as text."""
    assert allows("in-link/../deep/file", wt) == f"{wt}/src/deep/file"
    assert allows("in-link/..", wt) == f"{wt}/src"
    (wt / "up").symlink_to("/usr/bin")
    assert denies("up/../lib", wt) is Reason.OUTSIDE


def test_dotdot_behind_something_missing_is_denied(wt: Path) -> None:
    """A tool that makes the missing directory first would end where nobody looked."""
    assert denies("missing/../file", wt) is Reason.TRAVERSAL
    assert denies("missing/../../../etc/passwd", wt, "WRITE") is Reason.TRAVERSAL
    assert denies("file/../file", wt) is Reason.TRAVERSAL
    assert denies("file/..", wt, "DELETE") is Reason.TRAVERSAL
    assert denies("new-in/../x", wt) is Reason.TRAVERSAL
    assert allows("src/../missing", wt, "WRITE") == f"{wt}/missing"


@pytest.mark.spec("EDGE-2")
def test_links_are_followed(wt: Path) -> None:
    """A link is judged by where it leads."""
    assert allows("in-link/file", wt) == f"{wt}/src/deep/file"
    assert denies("out-link/file", wt) is Reason.OUTSIDE
    assert denies("out-file", wt) is Reason.OUTSIDE
    assert denies("out-link", wt, "LIST") is Reason.OUTSIDE
    (wt.parent / "back").symlink_to(wt)
    assert allows(wt.parent / "back" / "file", wt) == f"{wt}/file"


@pytest.mark.spec("EDGE-2")
def test_a_dangling_link_is_judged_by_what_it_would_create(wt: Path) -> None:
    """Writing through it creates its target."""
    assert allows("new-in", wt, "WRITE") == f"{wt}/src/new"
    assert denies("new-out", wt, "WRITE") is Reason.OUTSIDE
    assert denies("new-out/below", wt, "WRITE") is Reason.OUTSIDE
    (wt / "hop").symlink_to("new-out")
    assert denies("hop", wt, "WRITE") is Reason.OUTSIDE
    (wt / "hop-in").symlink_to(wt / "new-in")
    assert allows("hop-in", wt, "WRITE") == f"{wt}/src/new"


def test_deleting_a_link_deletes_the_link(wt: Path) -> None:
    """The entry counts, wherever it leads; behind a trailing slash the target counts."""
    assert allows("out-link", wt, "DELETE") == f"{wt}/out-link"
    assert allows("new-out", wt, "MOVE") == f"{wt}/new-out"
    assert allows("loop-a", wt, "DELETE") == f"{wt}/loop-a"
    assert denies("out-link/", wt, "DELETE") is Reason.OUTSIDE
    assert denies("out-link/.", wt, "DELETE") is Reason.OUTSIDE
    assert denies("out-link/file", wt, "DELETE") is Reason.OUTSIDE
    (wt.parent / "out" / "in").symlink_to(wt / "file")
    assert denies(wt.parent / "out" / "in", wt, "DELETE") is Reason.OUTSIDE
    assert allows(wt.parent / "out" / "in", wt, "WRITE") == f"{wt}/file"


def test_paths_that_do_not_exist_yet_are_judged_by_their_parent(wt: Path) -> None:
    """The part that exists is resolved, the rest is plain names."""
    for operation in Operation:
        assert allows("new", wt, operation) == f"{wt}/new"
        assert allows("in-link/new", wt, operation) == f"{wt}/src/deep/new"
        assert allows("a/b/./c//d", wt, operation) == f"{wt}/a/b/c/d"
        assert allows("new/", wt, operation) == f"{wt}/new"
        assert denies("out-link/new", wt, operation) is Reason.OUTSIDE
        assert denies("out-link/a/b", wt, operation) is Reason.OUTSIDE
        assert denies("/nowhere/at/all", wt, operation) is Reason.OUTSIDE


def test_below_a_file_is_nothing_to_escape_to(wt: Path) -> None:
    """ENOTDIR is the tool's own error; only the place is judged."""
    assert allows("file/x/y", wt) == f"{wt}/file/x/y"
    assert allows("file/", wt) == f"{wt}/file"
    assert allows("file/x", wt, "DELETE") == f"{wt}/file/x"
    assert denies("out-file/x", wt) is Reason.OUTSIDE
    assert denies("out-file/", wt) is Reason.OUTSIDE


def longest(resolver: Callable[[str], Location], path: str) -> Location:
    """The answer for as many links as the kernel follows: one that gives up a quick walk (of RCU) on its way begins
    again, and counts those that it has followed twice."""
    for _ in range(100):
        with suppress(Unresolvable):
            return resolver(path)
    return resolver(path)


def test_loops_are_denied(wt: Path) -> None:
    """ELOOP, and chains one link longer than the kernel follows; the longest it follows is allowed."""
    assert denies("loop-a", wt) is Reason.SYMLINK_LOOP
    assert denies("loop-a/x", wt, "WRITE") is Reason.SYMLINK_LOOP
    (wt / "c0").symlink_to("file")
    (wt / "d0").symlink_to("new")
    for number in range(1, 41):
        (wt / f"c{number}").symlink_to(f"c{number - 1}")
        (wt / f"d{number}").symlink_to(f"d{number - 1}")
    for resolver in (by_walk, resolve):
        assert longest(resolver, f"{wt}/c39") == Location(f"{wt}/file", None)
        assert longest(resolver, f"{wt}/d39") == Location(f"{wt}/new", str(wt))
        for chain in ("c40", "d40"):
            with pytest.raises(Unresolvable) as caught:
                resolver(f"{wt}/{chain}")
            assert caught.value.reason is Reason.SYMLINK_LOOP
    (wt / "self").symlink_to("self/x")
    assert denies("self", wt) is Reason.SYMLINK_LOOP


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", Reason.EMPTY),
        (b"", Reason.EMPTY),
        ("file\0", Reason.NUL),
        ("\0", Reason.NUL),
        (b"a\0b", Reason.NUL),
        ("x" * 256, Reason.TOO_LONG),
        ("missing/" + "x" * 256, Reason.TOO_LONG),
        ("ü" * 128, Reason.TOO_LONG),
        ("a/" * 2048 + "b", Reason.TOO_LONG),
        ("src/" + "./" * 2048 + "deep", Reason.TOO_LONG),
        ("\ud800", Reason.UNENCODABLE),
        ("a\udc41", Reason.UNENCODABLE),
    ],
)
def test_what_no_file_name_can_be_is_denied(wt: Path, target: str | bytes, reason: Reason) -> None:
    """Each has a reason of its own, and none raises."""
    for operation in Operation:
        assert denies(target, wt, operation) is reason


@pytest.mark.parametrize(
    "name", ["x" * 255, "ü" * 127, "-rf", "new\nline", " ", "~", "*", "\\", "a\x1b[31m", "CON", "..."]
)
def test_odd_names_are_ordinary_names(wt: Path, name: str) -> None:
    """They are allowed before and after they exist; `~` does not lead home."""
    assert allows(name, wt, "WRITE") == f"{wt}/{name}"
    (wt / name).write_text("")
    assert allows(name, wt) == f"{wt}/{name}"
    assert allows(f"~/{name}", wt, "WRITE") == f"{wt}/~/{name}" if name != "~" else True
    assert denies(f"../{name}", wt) is Reason.OUTSIDE


def test_names_that_are_not_utf8(wt: Path) -> None:
    """Bytes and surrogateescape mean the same file; JSON shows the bytes escaped."""
    raw = os.fsencode(wt) + b"/n\xff"
    with open(raw, "w"):
        pass
    assert os.fsencode(allows(raw, wt)) == raw
    assert os.fsencode(allows(os.fsdecode(raw), wt)) == raw
    assert os.fsencode(allows(raw + b"\xfe", wt, "WRITE")) == raw + b"\xfe"
    denied = BOX.validate(b"/out/\xff\n", wt)
    assert json.loads(denied.to_error_json())["attemptedPath"] == "/out/\\xff\n"
    assert json.loads(denied.model_dump_json())["attempted_path"] == "/out/\\xff\n"
    assert denied.attempted_path == "/out/\udcff\n"


@pytest.mark.spec("EDGE-4")
def test_the_root_itself_can_be_read_and_never_changed(wt: Path) -> None:
    """However it is spelt."""
    (wt / "here").symlink_to(".")
    for spelling in (str(wt), f"{wt}/", ".", "src/..", "here/", "src/deep/../.."):
        for operation in READING:
            assert allows(spelling, wt, operation) == str(wt)
        for operation in MUTATING:
            assert denies(spelling, wt, operation) is Reason.ROOT_ITSELF
    assert allows("here", wt, "DELETE") == f"{wt}/here"
    assert denies("here", wt, "WRITE") is Reason.ROOT_ITSELF
    assert allows("src", wt, "DELETE")


@pytest.mark.spec("EDGE-5")
def test_a_root_that_is_gone_or_replaced_denies_everything(wt: Path) -> None:
    """Deleted, renamed away, turned into a link or a file: each denies with its own reason."""
    moved = wt.parent / "moved"
    assert allows("file", wt)
    wt.rename(moved)
    assert denies(wt / "file", wt) is Reason.ROOT_MISSING
    wt.symlink_to(moved)
    for spelling in (wt, f"{wt}/", f"{wt}/."):
        assert BOX.validate("file", spelling).reason is Reason.ROOT_REPLACED
    assert allows("file", moved)
    wt.unlink()
    wt.write_text("")
    assert denies("file", wt) is Reason.ROOT_REPLACED
    assert BOX.validate("file", "relative/root").reason is Reason.ROOT_MISSING
    assert BOX.validate("file", "").reason is Reason.EMPTY
    assert BOX.validate("file", "/a\0").reason is Reason.NUL
    assert BOX.validate("file", "/etc/passwd/x").reason is Reason.ROOT_REPLACED


def test_a_root_below_a_linked_directory_is_itself(wt: Path) -> None:
    """Only the root's own name must not be a link; directories above it are not the agent's to change."""
    (wt.parent / "alias").symlink_to(wt.parent)
    root = wt.parent / "alias" / "wt"
    assert allows("file", root) == f"{wt}/file"
    assert allows(wt / "file", root) == f"{wt}/file"
    assert denies(wt.parent / "out" / "file", root) is Reason.OUTSIDE


def test_the_whole_file_system_can_be_a_root() -> None:
    """The root directory has no parent to compare with."""
    assert allows("etc/passwd", Path("/")) == "/etc/passwd"
    assert denies("/", Path("/"), "DELETE") is Reason.ROOT_ITSELF


def test_unreadable_directories_are_denied(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A check that cannot be made is a denial; the neighbour that can be checked is allowed."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        (root / "open").mkdir()
        (root / "shut" / "in").mkdir(parents=True)
        (root / "unreadable").write_text("")
        (root / "shut" / "link").symlink_to("../open")
        root.chmod(0o755)
        (root / "unreadable").chmod(0)
        (root / "to-shut").symlink_to("shut/in")
        (root / "shut").chmod(0)
        try:
            with ordinary_user():
                for target in ("shut/in", "shut/new", "shut/..", "shut/in/new", "to-shut", "shut/link/x", "to-shut/n"):
                    for operation in (Operation.READ, Operation.WRITE):
                        assert denies(target, root, operation) is Reason.UNREACHABLE
                assert denies("shut/in", root, "DELETE") is Reason.UNREACHABLE
                assert denies("shut/../open", root) is Reason.UNREACHABLE
                assert BOX.validate("x", root / "shut" / "in").reason is Reason.UNREACHABLE
                assert allows("shut", root)
                assert allows("open/new", root, "WRITE")
                assert allows("unreadable", root)
                assert allows("to-shut", root, "DELETE")
        finally:
            (root / "shut").chmod(0o755)


def test_special_files_are_judged_without_being_opened(wt: Path) -> None:
    """A FIFO without a writer would block an ordinary open for ever; a terminal could become ours."""
    os.mkfifo(wt / "fifo")
    assert allows("fifo", wt) == f"{wt}/fifo"
    assert denies("/dev/tty", wt) is Reason.OUTSIDE


def test_unknown_operations_are_denied(wt: Path) -> None:
    """Names are taken in either case; anything else fails closed."""
    assert allows("file", wt, "read")
    assert allows("file", wt, "Delete")
    assert denies("file", wt, "CHMOD") is Reason.UNKNOWN_OPERATION
    assert denies("file", wt, "") is Reason.UNKNOWN_OPERATION


@pytest.mark.spec("CONTRACT-4", "FR-013")
def test_normalize_and_within(wt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two small questions of the contract."""
    assert BOX.normalize_path(wt / "in-link" / ".." / "deep") == wt / "src" / "deep"
    assert BOX.normalize_path("x", base=wt) == wt / "x"
    monkeypatch.chdir(wt / "src")
    assert BOX.normalize_path("deep") == wt / "src" / "deep"
    assert BOX.is_path_within_sandbox(wt, wt)
    assert BOX.is_path_within_sandbox(wt / "file", wt)
    assert not BOX.is_path_within_sandbox(wt.parent, wt)
    assert not BOX.is_path_within_sandbox(f"{wt}-2", wt)
    for bad in ("", "a\0", f"{wt}/loop-a", f"{wt}/missing/../x"):
        with pytest.raises(Unresolvable):
            BOX.normalize_path(bad)
