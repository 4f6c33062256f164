"""State, sessions, reports and amounts that are too much: one clear error or it works, and nothing left behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.identity import AS_A_USER
from tests.support.paddock import Paddock, said


def made(path: Path) -> Path:
    """Makes a directory."""
    path.mkdir()
    return path


# Paddock's own directories


def test_a_state_directory_that_is_not_ours(paddock: Paddock) -> None:
    """Somebody else's, and one that others can write, are refused, warm plan or not; by what only reads there, too."""
    for name, directory in (("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache")):
        base = paddock.who.give(made(paddock.place / directory))
        env, own = {name: str(base)}, base / "paddock"
        assert paddock.run("--", "true", env=env).returncode == 0
        for kind in ("open", "foreign", "file"):
            own.rename(kept := base / "kept")
            paddock.who.give(made(own)).chmod(0o700)
            _spoil(own, kind)
            # State is looked at each time, the cache when a plan is stored.
            reading = [["denials"], ["trust", "--list"]] if directory == "state" else []
            for words in (["run", "--", "true" if directory == "state" else "pwd"], *reading):
                error = paddock.refused(*words, env=env)
                assert (error.reference, str(own) in error.text) == ("state-not-ours", True)
            shutil.rmtree(own) if own.is_dir() and not own.is_symlink() else own.unlink()
            kept.rename(own)


def _spoil(own: Path, kind: str) -> None:
    """Makes a directory of Paddock's unusable; a foreign owner needs root, elsewhere it is a directory of root's."""
    if kind == "open":
        own.chmod(0o777)
    elif kind == "file":
        own.rmdir()
        own.touch()
    elif os.geteuid() == 0:
        os.chown(own, 12345, 12345)
    else:
        own.rmdir()
        own.symlink_to("/root")


@AS_A_USER
def test_a_home_behind_a_link(paddock: Paddock) -> None:
    """Systems whose /home is a link get a private home like all others."""
    (paddock.place / "link").symlink_to(paddock.who.home)
    for home in (paddock.place / "link", Path(f"{paddock.place}/../{paddock.place.name}/link/")):
        ended = paddock.run("--", "sh", "-c", ": > ~/x && cd ~ && pwd", env={"HOME": str(home)})
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith(str(paddock.state.resolve()))


@AS_A_USER
def test_another_state_directory_makes_another_plan(paddock: Paddock) -> None:
    """A plan denies the directories of its day, so it is not used with others."""
    inner = paddock.who.give(made(paddock.worktree / "inner"))
    assert paddock.run("--", "true").returncode == 0
    error = paddock.refused("run", "--", "true", env={"XDG_STATE_HOME": str(inner)})
    assert error.reference == "grant-covers-state"


def test_a_configuration_that_is_kept_in_the_worktree(user_paddock: Paddock) -> None:
    """Who links it from a repository of dotfiles works there in a worktree that the link does not lead to."""
    kept = user_paddock.worktree / "config.toml"
    kept.write_text("")
    link = user_paddock.who.home / ".config/paddock/config.toml"
    link.parent.mkdir(parents=True)
    link.symlink_to(kept)
    user_paddock.who.give(user_paddock.place)
    user_paddock.who.give(user_paddock.who.home)
    error = user_paddock.refused("run", "--", "true")
    assert (error.reference, str(kept) in error.text) == ("grant-covers-state", True)
    assert user_paddock.run("--worktree", str(user_paddock.main), "--", "true").returncode == 0


def test_a_home_that_is_none(user_paddock: Paddock) -> None:
    """Without a usable HOME there is one clear error; XDG directories that are relative are not used."""
    for home in ("", "relative", "/nonexistent/home", "/dev/null"):
        error = user_paddock.refused("run", "--", "true", env={"HOME": home})
        assert error.reference in ("state-unusable", "home-unknown")
    relative = dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "relative")
    assert user_paddock.run("--", "true", env=relative).returncode == 0
    assert not (user_paddock.worktree / "relative").exists()


def test_a_home_that_is_read_only(user_paddock: Paddock) -> None:
    """Nothing is written there, and the error says what could not be."""
    user_paddock.who.home.chmod(0o500)
    error = user_paddock.refused("run", "--", "true")
    assert (error.reference, str(user_paddock.state.parent) in error.text) == ("state-unusable", True)
    user_paddock.who.home.chmod(0o700)


def test_umask_does_not_open_what_is_ours(user_paddock: Paddock) -> None:
    """Directories of Paddock's are private whatever the umask, and the command gets the caller's own."""
    made = user_paddock
    for mask in ("000", "777"):
        shutil.rmtree(made.who.home / ".local", ignore_errors=True)
        ended = made.shell(f"umask {mask}; paddock run -- sh -c umask")
        assert (ended.returncode, ended.stdout) == (0, f"0{mask}\n"), ended.stderr
        for own in (made.who.home / ".local", made.state.parent, made.state, made.state / "sessions"):
            assert (mask, own, own.stat().st_mode & 0o777) == (mask, own, 0o700)


FULL = """
import os, subprocess, sys
kind, home, worktree, paddock, *prefix = sys.argv[1:]
os.environ["HOME"] = home
# Each inode is another file or directory; most blocks are those of files that one function writes.
for number in (*range(1, 25), 28, 48, 64, 80) if kind == "inodes" else (1, 2, 3, 4, *range(7, 32, 6), 152):
    option = f"nr_inodes={number}" if kind == "inodes" else f"size={4 * number}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=777,{option}", "full", home], check=True)
    if kind == "blocks":
        with open(home + "/filler", "wb") as file:
            file.write(bytes(4096))
    ended = subprocess.run(
        [*prefix, paddock, "run", "--", "sh", "-c", "true"], cwd=worktree, capture_output=True, text=True
    )
    left = [os.path.join(directory, name) for directory, names, files in os.walk(home) for name in names + files
            if directory.endswith("/sessions") or name.startswith(".new-")
            or directory.endswith("/plans") and "." in name]
    print(repr((ended.returncode, ended.stdout + ended.stderr, left)))
    subprocess.run(["umount", home], check=True)
"""


@pytest.mark.parametrize("kind", ["inodes", "blocks"])
def test_a_full_disk_at_every_step(user_paddock: Paddock, kind: str) -> None:
    """However far it comes before the disk for its state is full: it runs, or there is one error, and no remains."""
    need("userns")
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    who, installed = user_paddock.who, user_paddock.installed
    words = [sys.executable, "-c", FULL, kind, who.home, user_paddock.worktree, installed.paddock, *who.prefix]
    ended = subprocess.run([*enter, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    outcomes = [eval(line) for line in ended.stdout.splitlines()]
    refused = [said(text).reference for status, text, _ in outcomes if status]
    assert {status for status, *_ in outcomes} == {0, 125}
    assert set(refused) <= {"state-unusable", "git-private-unusable", "view-failed"}
    assert "state-unusable" in refused
    assert [left for *_, left in outcomes if left] == []


# Sessions and reports


@AS_A_USER
def test_a_report_that_cannot_be_written(paddock: Paddock) -> None:
    """It is refused before the command starts, and what is at its place stays as it is."""
    place = paddock.place
    (place / "link").symlink_to("target")
    os.mkfifo(place / "fifo")
    names = ("..", ".", "/", "../link", "../fifo", "/dev/null", "/dev/stdout", "nonexistent/x", "file/x", "/proc/x",
             "x" * 256)  # fmt: skip
    errors = paddock.refused_each(*(["run", "--report", name, "--", "touch", "started"] for name in names))
    assert [error.reference for error in errors] == ["report-unwritable"] * len(names)
    assert not (paddock.worktree / "started").exists()
    assert (place / "link").is_symlink()
    assert not (place / "target").exists()
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in paddock.worktree.iterdir()) == [".git", "file"]


@AS_A_USER
def test_a_report_is_not_led_out_by_a_link_of_the_commands(paddock: Paddock) -> None:
    """A link where a command could write leads the launcher nowhere, in whichever worktree; one elsewhere may."""
    place = paddock.place
    outside, free = place / "outside", place / "free"
    for directory in (outside, free, paddock.worktree / "within"):
        directory.mkdir()
        paddock.who.give(directory)
    planted = "ln -s ../outside out; ln -s within in; mkdir d; ln -s ../out d/chain; ln -s $PWD/../outside ../free/link"
    ended = paddock.run("--rw", str(free), "--", "sh", "-c", planted)
    assert ended.returncode == 0, ended.stderr
    (place / "way").symlink_to("outside")
    commands = [
        [*words, name, "--", "touch", "started"]
        for name in (
            "out/r",
            "./out/r",
            "d/chain/r",
            "d/../out/r",
            "in/r",
            f"{paddock.worktree}/out/r",
            "../free/link/r",
        )
        for words in (("run", "--rw", str(free), "--report"), ("learn", "--write"))
    ]
    elsewhere = [words for words in commands if str(paddock.worktree) in words[-4] or "free" in words[-4]]
    errors = [*paddock.refused_each(*commands), *paddock.refused_each(*elsewhere, cwd=paddock.main)]
    for words, error in zip([*commands, *elsewhere], errors, strict=True):
        assert (words, error.reference, "symbolic link" in error.text) == (words, "report-unwritable", True), error
    assert not (paddock.worktree / "started").exists()
    assert not list(outside.iterdir())
    assert paddock.run("--report", "../way/r", "--", "true").returncode == 0
    assert (outside / "r").is_file()


@AS_A_USER
def test_a_report_inside_the_worktree(paddock: Paddock, backend: dict[str, str]) -> None:
    """The command cannot see it while it runs, and cannot redirect it; a name of full length is one, too."""
    name = "x" * 255
    tricks = f"ls -A | wc -l; ln -s ../stolen {name}"
    ended = paddock.run("--report", name, "--", "sh", "-c", tricks, env=backend)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
    report = paddock.worktree / name
    assert report.is_file()
    assert not report.is_symlink()
    assert not (paddock.place / "stolen").exists()


def test_a_report_that_the_command_keeps_from_its_place(user_paddock: Paddock) -> None:
    """That is an error of its own after the command's end, without remains."""
    assert user_paddock.refused("run", "--report", "r", "--", "mkdir", "r").reference == "report-unwritable"
    assert sorted(path.name for path in user_paddock.worktree.iterdir()) == [".git", "file", "r"]


def test_a_report_of_a_command_that_did_not_start(user_paddock: Paddock) -> None:
    """The first error is the one that is told, and the report says that there was no status."""
    (user_paddock.worktree / "script").write_text("#!/nonexistent\n")
    user_paddock.who.give(user_paddock.worktree / "script").chmod(0o755)
    error = user_paddock.refused("run", "--report", "../r", "--", "./script", status=127)
    assert error.reference == "command-not-found"
    assert '"status": null' in (user_paddock.place / "r").read_text()


# Amounts


MANY = 3_000
"""So many that neither a pipe nor a socket's buffer holds the plan."""


def test_thousands_of_grants(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """All of them work, cold and warm."""
    many = user_paddock.who.give(made(user_paddock.place / "many"))
    for number in range(MANY):
        (many / str(number)).write_text(f"{number}\n")
    words = [f"--ro={many}/{number}" for number in range(MANY)]
    for _ in range(2):
        ended = user_paddock.run(*words, "--", "sh", "-c", f"cat {many}/0 {many}/{MANY - 1}", env=backend)
        assert (ended.returncode, ended.stdout) == (0, f"0\n{MANY - 1}\n"), ended.stderr[-2000:]


@AS_A_USER
def test_arguments_and_environment_of_every_kind(paddock: Paddock) -> None:
    """What the kernel takes, Paddock passes on: a megabyte of each, and bytes that are no text."""
    words = ["x" * 100_000] * 10
    odd = ["a\nb", "\udcff\udc80", "", " ", "--", "-h", "--help", "\x1b[31m"]
    env = {f"V{number}": "y" * 100_000 for number in range(10)}
    passed = [f"--env=V{number}" for number in range(10)]
    script = 'echo $# "$1"; echo $V0$V9; shift 10; printf "<%s>" "$@"'
    ended = paddock.run(*passed, "--", "sh", "-c", script, "sh", *words, *odd, env=env)
    shown = "".join(f"<{word}>" for word in odd)
    assert (ended.returncode, ended.stdout) == (0, f"{10 + len(odd)} {words[0]}\n{'y' * 200_000}\n{shown}")


@AS_A_USER
def test_a_hostile_locale(paddock: Paddock) -> None:
    """Neither a locale that does not exist nor Python's own variables change what is said or done."""
    for env in (
        {"LC_ALL": "xx_YY.bogus"},
        {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "utf-16", "PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent"},
    ):
        assert paddock.run("--", "printf", "ä\udcff", env=env).stdout == "ä\udcff"
        assert paddock.refused("run", "--worktree", "ä\udcff", "--", "true", env=env).reference == "worktree-missing"


# Landlock


def test_a_pinned_abi(user_paddock: Paddock, backend: dict[str, str]) -> None:
    """Each number works or is refused with the reason; what is no number is an error."""
    refusals = {"-1": "environment-invalid", "abc": "environment-invalid"}
    if backend:
        refusals |= {"0": "landlock-missing"} | dict.fromkeys(("1", "5"), "landlock-too-old")
    for abi in ("0", "1", "5", "6", "99", "-1", "abc", "") if backend else ("0", "5", "99", "abc", ""):
        env = backend | {"PADDOCK_LANDLOCK_ABI": abi}
        if abi in refusals:
            error = user_paddock.refused("run", "--", "true", env=env)
            assert (abi, error.reference) == (abi, refusals[abi])
        else:
            both = user_paddock.run("--", "cat", "file", str(user_paddock.main / ".git/../x"), env=env)
            assert (abi, both.stdout, both.returncode) == (abi, "content\n", 1)


def test_a_link_that_a_session_can_set_leads_to_nothing_of_ours(user_paddock: Paddock) -> None:
    """A dotfiles repository may hold what leads to Paddock's own directories: the next command would obey an agent."""
    here = user_paddock
    private, own = here.who.home / "private", here.who.home / ".config/paddock"
    (private / "paddock").mkdir(parents=True)
    (private / "paddock/config.toml").write_text("schema = 1\n")
    link = here.worktree / "link"

    def refused(env: dict[str, str]) -> None:
        here.who.give(here.who.home)
        error = here.refused("run", "--", "true", env=env)
        assert (error.reference, str(link) in error.text) == ("grant-covers-state", True), error

    link.symlink_to(private)
    refused({"XDG_STATE_HOME": str(link)})
    for place, target in ((own, private / "paddock"), (own / "config.toml", private / "paddock/config.toml")):
        link.unlink()
        link.symlink_to(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link)
        refused({})
        place.unlink()  # the allowed twin: a link of the user's that no session can set
        place.symlink_to(target)
        here.who.give(here.who.home)
        assert here.run("--", "true").returncode == 0
        place.unlink()
