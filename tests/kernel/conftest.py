"""Nothing may outlive a test of the kernel suite: no process, no mount."""

import ctypes
import os
import select
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from policy import promises
from tests.conftest import IDENTITIES
from tests.support import identity, install, private_git, proxied, repository, served, warmed
from tests.support import jail as jails
from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.identity import MARKER, Who
from tests.support.install import Installed
from tests.support.jail import Jail
from tests.support.paddock import Paddock, Session
from tests.support.private_git import Planted
from tests.support.programs.scene import Scene
from tests.support.proxied import World
from tests.support.repository import Repo

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0

# Mounted by the kernel whenever somebody looks there; no doing of ours.
AUTOMATIC = (" - autofs ", " - binfmt_misc ")


ROOT_ONCE = pytest.mark.parametrize(
    ("scene", "who"),
    [*((each, IDENTITIES[-1]) for each in promises.BACKENDS), *((promises.GUARD, each) for each in IDENTITIES[:-1])],
    indirect=True,
)
"""Of a test of everyday work: an ordinary user on each backend, and root where a guard does what the kernel does
elsewhere."""
ROOT_BY_LANDLOCK = pytest.mark.parametrize(
    ("backend", "who"),
    [
        *((each, IDENTITIES[-1]) for each in ("namespaces", "landlock")),
        *(("landlock", each) for each in IDENTITIES[:-1]),
    ],
    indirect=True,
)
"""Of what the bridge judges or has done in the jail: root where no mounts hold him."""


@pytest.fixture(scope="session", autouse=True)
def _subreaper() -> None:
    """Orphans come to this process, so that a daemon which scrubbed its environment is found too (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@pytest.fixture(autouse=True)
def _nothing_left_behind(_subreaper: None) -> Iterator[None]:
    """Fails a test that leaves a process or a mount. Set up first, so it looks when all other fixtures are gone."""
    with _leaving_nothing():
        yield


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """Fails a block that leaves a process or a mount."""
    marker = uuid.uuid4().hex
    children, mounts = _children(), _mounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKER, marker)
        yield
    survivors = _survivors(marker, children)
    added = _mounts() - mounts
    assert not survivors, "processes outlived the test: " + "; ".join(survivors)
    assert not added, "mounts outlived the test:\n" + "\n".join(sorted(added))


def _survivors(marker: str, known: set[int], *, grace: float = GRACE_SECONDS) -> list[str]:
    """Waits for what is ending, kills what is not, and describes the latter."""
    deadline = time.monotonic() + grace
    left: list[str] = []
    while pids := _marked(marker) | warmed.left() | (_children() - known - warmed.pids() - served.lasting):
        for pid in pids:
            if not _ended(pid, deadline):
                left.append(f"{pid} {_words(pid)}")
                _kill(pid)
                _ended(pid, time.monotonic() + GRACE_SECONDS)
            _reap(pid)
    return left


def _ended(pid: int, deadline: float) -> bool:
    """Whether `pid` ended before the deadline (a zombie has ended); waits on a pidfd, never polls."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(fd)
    return bool(ready)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended by itself in this moment
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else's child, or collected by subprocess already
        return


def _children() -> set[int]:
    """Direct children of this process, whichever thread started them.

    Read twice: proc(5) says that a reading can miss children while one of them ends.
    """
    found: set[int] = set()
    for task in os.listdir("/proc/self/task") * 2:
        try:
            with open(f"/proc/self/task/{task}/children", "rb", buffering=0) as file:
                found.update(map(int, file.read().split()))
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return found


def _marked(marker: str) -> set[int]:
    """Processes whose environment holds the marker, this one excepted."""
    wanted = f"{MARKER}={marker}\0".encode()
    found: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # of some hundred processes after each test: not as Paths
        try:
            with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                if wanted in file.read():
                    found.add(int(name))
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
    return found - {os.getpid()}


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if not any(kind in line for kind in AUTOMATIC)}


@pytest.fixture
def paddock(who: Who, installed: Installed, place: Path) -> Iterator[Paddock]:
    """The installed command with a linked worktree. No session and no half-written file may be left at the end."""
    need("landlock")
    made = paddocks.make(who, installed, place)
    yield made
    assert made.left() == []


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A machine with an Internet, shared by the tests of a file."""
    need("network")
    directory = Path(tempfile.mkdtemp(prefix="w-", dir=install.public_root()))
    directory.chmod(0o755)
    with proxied.world(directory) as made:
        yield made
    shutil.rmtree(directory)


@pytest.fixture(params=["namespaces", "landlock"])
def backend(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that makes Paddock choose a backend."""
    if request.param == "landlock":
        return {"PADDOCK_NO_USERNS": "1"}
    need("userns")
    return {}


@pytest.fixture
def user_paddock(user: Who, installed: Installed, public_dir: Path) -> Iterator[Paddock]:
    """As `paddock`, for what does not depend on who acts: an ordinary user only."""
    need("landlock")
    place = public_dir / "place-of-user"
    place.mkdir()
    made = paddocks.make(user, installed, user.give(place))
    yield made
    assert made.left() == []


@pytest.fixture
def planted(user: Who, installed: Installed, public_dir: Path) -> Planted:
    """The private git directory of the linked worktree `one`, planted by hand, without submodules; a user's."""
    need("landlock")
    place = public_dir / "harvests"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    return private_git.plant(repo, repo.one, installed, place)


@pytest.fixture
def with_submodule(who: Who, installed: Installed, repo: Repo) -> Paddock:
    """The command in a linked worktree with the populated submodule `library`."""
    need("landlock")
    need("userns")
    return Paddock(who, installed, repo.one.parent, repo.one, repo.main)


@pytest.fixture(params=promises.BACKENDS)
def scene(request: pytest.FixtureRequest, who: Who, installed: Installed, repo: Repo, public_dir: Path) -> Scene:
    """A worktree of a real repository for one backend and one identity."""
    return Scene.make(who, installed, repo, request.param, public_dir)


@pytest.fixture(params=promises.BACKENDS)
def scene_of_user(request: pytest.FixtureRequest, user: Who, installed: Installed, public_dir: Path) -> Scene:
    """The same for an ordinary user alone: for work that takes seconds and knows no difference."""
    place = public_dir / "place"
    place.mkdir()
    return Scene.make(user, installed, repository.make(user, user.give(place)), request.param, public_dir)


@pytest.fixture
def jail(who: Who, installed: Installed, place: Path) -> Jail:
    """A jail around an empty worktree, without what a session adds to it."""
    need("userns")
    return jails.make(who, installed, place)


@pytest.fixture(params=[True, False], ids=["pid-namespace", "subreaper"])
def namespaces(request: pytest.FixtureRequest) -> bool:
    """Whether the jail has namespaces, or only two processes that watch each other."""
    return bool(request.param)


@pytest.fixture(scope="module")
def file_paddock(_subreaper: None, installed: Installed) -> Iterator[Paddock]:
    """As `user_paddock`, for the tests of a file that leave it as it was. Nothing may outlive the last of them."""
    need("landlock")
    top = Path(tempfile.mkdtemp(prefix="f-", dir=install.public_root()))
    top.chmod(0o755)
    with _leaving_nothing():
        made = _paddock_in(top, "user", installed)
        yield made
        assert made.left() == []
    shutil.rmtree(top)


def _paddock_in(top: Path, name: str, installed: Installed) -> Paddock:
    who = (identity.root if name == "root" else identity.user)(top / "home")
    (top / "place").mkdir()
    return paddocks.make(who, installed, who.give(top / "place"))


BACKENDS: Mapping[str, Mapping[str, str]] = {"namespaces": {}, "landlock": {"PADDOCK_NO_USERNS": "1"}}


@pytest.fixture(scope="module")
def live_sessions(_subreaper: None, installed: Installed) -> Iterator[dict[tuple[str, str], Session]]:
    """A live session for each identity and each of `BACKENDS`, for the tests of a file that leave it as it was.

    Begun before the first of them, so that what these start can be told from what is there.
    """
    need("landlock")
    need("userns")
    top = Path(tempfile.mkdtemp(prefix="s-", dir=install.public_root()))
    top.chmod(0o755)
    made: dict[tuple[str, str], Session] = {}
    with _leaving_nothing():
        with ExitStack() as stack:
            for name in IDENTITIES:
                for backend, env in BACKENDS.items():
                    directory = top / f"{name}-{backend}"
                    directory.mkdir()
                    paddock = _paddock_in(directory, name, installed)
                    made[name, backend] = stack.enter_context(Session(paddock, env, paddocks.WITNESS, paddocks.KNOWN))
            yield made
        assert [left for session in made.values() for left in session.paddock.left()] == []
    shutil.rmtree(top)


@pytest.fixture(params=BACKENDS)
def shared_session(
    request: pytest.FixtureRequest, name_of_who: str, live_sessions: dict[tuple[str, str], Session]
) -> Session:
    """One of them: each identity and backend in turn."""
    return live_sessions[name_of_who, request.param]


@pytest.fixture(params=IDENTITIES)
def name_of_who(request: pytest.FixtureRequest) -> str:
    """Each identity in turn, by its name."""
    return str(request.param)
