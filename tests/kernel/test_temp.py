"""The private temp directory: its name leaves room for sockets, nobody else sees it, and it goes with its session."""

from pathlib import Path

import pytest

from policy import promises
from tests.support.features import need, need_backend
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed, base_python
from tests.support.paddock import Paddock, Session, make
from tests.support.programs.scene import SWITCHES

LONG = "a-home-directory-with-a-name-that-leaves-no-room/for-the-address-of-a-socket-in-107-bytes"

# What keeps sockets in TMPDIR: multiprocessing's managers, and asyncio's servers as an example of any other.
SOCKETS = """
import multiprocessing, os, socket, tempfile
if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        assert manager.dict(a=1)["a"] == 1
    path = tempfile.mkdtemp() + "/a-name-of-forty-characters-like-gpg-agents"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
    for name in ("TMPDIR", "TMP", "TEMP"):
        assert os.environ[name] == tempfile.gettempdir()
    print("served in", tempfile.gettempdir())
"""


@pytest.fixture(params=promises.BACKENDS)
def chosen(request: pytest.FixtureRequest) -> tuple[dict[str, str], tuple[str, ...]]:
    """Environment and options that choose a backend."""
    need_backend(request.param)
    return SWITCHES[request.param]


@pytest.fixture
def far(who: Who, installed: Installed, place: Path) -> Paddock:
    """The command of a user whose state directory has a long name."""
    need("landlock")
    made = make(who, installed, place)
    state = place / LONG
    state.mkdir(parents=True)
    who.give(place)
    return Paddock(made.who, installed, place, made.worktree, made.main, {"XDG_STATE_HOME": str(state)})


@AS_A_USER
def test_sockets_have_room_in_the_temp_directory(far: Paddock, chosen: tuple[dict[str, str], tuple[str, ...]]) -> None:
    """However long the path of the user's home is."""
    (far.worktree / "sockets.py").write_text(SOCKETS)
    env, options = chosen
    ended = far.run(*options, "--", base_python(), "sockets.py", env=env)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("served in /tmp")


@AS_A_USER
def test_a_temp_directory_is_its_sessions_alone(far: Paddock, chosen: tuple[dict[str, str], tuple[str, ...]]) -> None:
    """It lies on the disk, further commands share it, another session does not see it, and it goes at the end."""
    env, options = chosen
    script = 'echo x >"$TMPDIR/mine"; mkdir -m 0 "$TMPDIR/closed"; echo ready; exec cat'
    paddock = Paddock(far.who, far.installed, far.place, far.worktree, far.main, {**far.env, **env})
    with Session(paddock, command=("sh", "-c", script), options=options) as session:
        directory = far.place / LONG / "paddock/sessions" / session.name
        temp = (directory / "tmp").resolve()
        assert (temp / "mine").read_text() == "x\n"
        assert session.run("sh", "-c", 'cat "$TMPDIR/mine"').stdout == "x\n"
        other = paddock.run(*options, "--", "sh", "-c", f'cat "$TMPDIR/mine" {temp}/mine')
        assert (other.stdout, other.stderr.count("mine: ")) == ("", 2)
    assert not directory.exists()
    assert not temp.exists()


@AS_A_USER
@pytest.mark.parametrize("chosen", promises.BACKENDS[:1], indirect=True)
def test_what_sigkill_leaves_of_a_temp_directory_is_removed_later(
    far: Paddock, chosen: tuple[dict[str, str], tuple[str, ...]]
) -> None:
    """By the next session that ends."""
    env, options = chosen
    paddock = Paddock(far.who, far.installed, far.place, far.worktree, far.main, {**far.env, **env})
    words = paddock.words("run", "--session", "killed", *options, "--", "sh", "-c", "echo ready; exec cat")
    process = far.who.start(words, cwd=far.worktree, env=paddock.env)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"ready\n"
    temp = (far.place / LONG / "paddock/sessions/killed/tmp").resolve()
    assert temp.is_dir()
    process.kill()
    process.wait(30)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert paddock.run(*options, "--", "true").returncode == 0
    assert not temp.exists()
    assert list((far.place / LONG / "paddock/sessions").iterdir()) == []


@AS_A_USER
def test_var_tmp_is_private_and_beside_tmp(far: Paddock) -> None:
    """Where mounts are possible; both are writable and neither is the machine's."""
    need("userns")
    ended = far.run("--", "sh", "-c", "echo 1 >/tmp/a; echo 2 >/var/tmp/b; cat /tmp/[ab] /var/tmp/[ab]; mktemp -u")
    first, second, name = ended.stdout.split()
    assert (first, second, name.startswith("/tmp/")) == ("1", "2", True), ended.stderr


@AS_A_USER
def test_a_worktree_below_tmp_is_shown_there(who: Who, installed: Installed) -> None:
    """In the session's own /tmp, where its mount point goes with the session; nothing can be written beside it."""
    need("userns")
    made = who.run(["mktemp", "-d", "/tmp/t-worktree-XXXXXX"]).stdout.strip()
    try:
        paddock = make(who, installed, Path(made))
        script = "pwd; echo x >new; echo x >../beside; ls ..; echo y >/tmp/other"
        ended = paddock.run("--", "sh", "-c", script)
        assert ended.stdout.split() == [str(paddock.worktree), "main", "one"]
        assert "../beside: Permission denied" in ended.stderr
        assert (paddock.worktree / "new").read_text() == "x\n"
        assert paddock.left() == []
    finally:
        who.run(["rm", "-rf", made])
