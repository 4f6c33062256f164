"""What lies in the cache directory and is not what Paddock wrote there counts as absent; it never crashes a launch.

The checksum of an entry finds damage, it is no proof of origin: who can write the directory as this user could write
any entry. What keeps jails out is that the directory is denied in every Plan, and other users its mode and owner.
"""

import _imp
import marshal
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.session import cache, inputs
from launcher.session.places import Places
from policy.errors import Refusal
from policy.plan import VERSION, Plan
from tests.support.identity import AS_A_USER, Who, Word
from tests.support.install import Installed
from tests.support.repository import Repo

KEY = cache.key(("run", "tool"), "/somewhere")
PLAN = Plan(**(dict.fromkeys(Plan.FIELDS, ()) | {"version": VERSION, "worktree": "/w"}))
ENTRY = cache.Entry(PLAN, ("x86_64",), b"\x06\0\0\0\0\0\0\0")
INPUTS: tuple[inputs.Input, ...] = ((inputs.ENVIRONMENT, "A", "1"),)
ENVIRON = {"A": "1"}

# Loads every file of a directory as if it were the entry for the key, and says how many were taken.
LOADER = """
import os, sys
from launcher.session import cache
from launcher.session.places import Places
key = bytes.fromhex(sys.argv[2])
taken = 0
for name in sorted(os.listdir(sys.argv[1])):
    cache._path = lambda places, key_bytes, name=name: os.path.join(sys.argv[1], name)
    taken += cache.load(Places("", "", "", ""), key, {"A": "1"}) is not None
print(taken)
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    base = str(tmp_path)
    return Places(base, f"{base}/config", f"{base}/state", f"{base}/cache")


@pytest.fixture
def entry(places: Places) -> Path:
    """The file of a stored entry."""
    cache.store(places, KEY, INPUTS, ENTRY)
    (path,) = Path(places.cache, "plans").iterdir()
    assert found(places)
    return path


def found(places: Places) -> bool:
    return cache.load(places, KEY, ENVIRON) is not None


def taken(directory: Path) -> int:
    """How many files of `directory` an interpreter of its own takes for the entry; it must survive them all."""
    ended = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{LOADER}",
            directory,
            KEY.hex(),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return int(ended.stdout)


def packed(value: Any) -> bytes:  # noqa: ANN401  # typeshed names no type for what marshal takes
    return marshal.dumps(value, 2)


def fake(path: Path, body: bytes) -> None:
    """An entry with a valid checksum around any body."""
    path.write_bytes(cache._MAGIC + _imp.source_hash(1, body) + body)
    path.chmod(0o600)


def test_an_entry_is_private(entry: Path) -> None:
    """Nobody else can read or write it, or list the directories it lies in."""
    assert entry.stat().st_mode & 0o7777 == 0o600
    assert entry.parent.stat().st_mode & 0o7777 == 0o700
    assert entry.parent.parent.stat().st_mode & 0o7777 == 0o700


def steps(*acts: Callable[[], object]) -> None:
    """One after the other."""
    for act in acts:
        act()


ATTACKS: dict[str, Callable[[Path], object]] = {
    "readable by the group": lambda path: path.chmod(0o640),
    "readable by others": lambda path: path.chmod(0o604),
    "writable by others": lambda path: path.chmod(0o602),
    "a second name": lambda path: path.with_name("second").hardlink_to(path),
    "a symbolic link": lambda path: steps(lambda: path.rename(path.with_name("real")), lambda: path.symlink_to("real")),
    "a FIFO": lambda path: steps(path.unlink, lambda: os.mkfifo(path, 0o600)),
    "a directory": lambda path: steps(path.unlink, lambda: path.mkdir(0o600)),
    "a device": lambda path: steps(path.unlink, lambda: path.symlink_to("/dev/zero")),
    "nothing in it": lambda path: path.write_bytes(b""),
    "larger than any entry": lambda path: os.truncate(path, 9 << 20),
    "more at the end": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "another magic": lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_a_file_that_is_not_ours_alone_counts_as_absent(places: Places, entry: Path, what: str) -> None:
    """Its kind, mode, number of names and size are looked at before a byte of it is believed."""
    ATTACKS[what](entry)
    assert not found(places)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_counts_as_absent(places: Places, entry: Path) -> None:
    """Even with the right content and mode."""
    os.chown(entry, 65534, -1)
    assert not found(places)
    os.chown(entry, 0, -1)
    assert found(places)


def test_every_truncation_counts_as_absent(entry: Path, tmp_path: Path) -> None:
    """Cut at any length, it is no entry, and the interpreter lives."""
    content = entry.read_bytes()
    directory = tmp_path / "cut"
    directory.mkdir()
    for length in range(len(content) + 1):
        path = directory / f"{length:08}"
        path.write_bytes(content[:length])
        path.chmod(0o600)
    assert taken(directory) == 1  # the one that is whole


def test_every_flipped_byte_counts_as_absent(entry: Path, tmp_path: Path) -> None:
    """One wrong byte anywhere is found before marshal, which does not survive damage, sees any of it."""
    content = entry.read_bytes()
    directory = tmp_path / "flipped"
    directory.mkdir()
    for at in range(len(content)):
        path = directory / f"{at:08}"
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        path.chmod(0o600)
    assert taken(directory) == 0


@pytest.mark.parametrize(
    "body",
    [
        packed((KEY, INPUTS, PLAN.to_data(), ("x86_64",))),
        packed((KEY, INPUTS, PLAN.to_data(), ("x86_64",), b"", b"")),
        packed((KEY, INPUTS, (VERSION + 1, *PLAN.to_data()[1:]), ("x86_64",), b"")),
        packed((KEY, INPUTS, PLAN.to_data()[1:], ("x86_64",), b"")),
        packed((KEY, INPUTS, None, None, None)),
        packed(None),
        b"",
        b"\xff" * 100,
        packed(KEY)[:-3],
    ],
    ids=["fewer", "more", "next version", "fewer fields", "nothing", "none", "empty", "garbage", "short"],
)
def test_an_entry_of_another_version_counts_as_absent(places: Places, entry: Path, body: bytes) -> None:
    """A later or earlier Paddock may have written another shape, with a checksum that is right."""
    fake(entry, body)
    assert not found(places)


def test_an_entry_for_another_key_counts_as_absent(places: Places, entry: Path) -> None:
    """File names are short hashes: on a collision the whole key decides."""
    fake(entry, packed((b"other", INPUTS, PLAN.to_data(), ("x86_64",), b"")))
    assert not found(places)


def test_a_changed_input_makes_it_absent_and_back(places: Places, entry: Path) -> None:
    """The environment that is asked is the caller's."""
    assert entry.exists()
    assert cache.load(places, KEY, {"A": "2"}) is None
    assert cache.load(places, KEY, {"A": "1"}) is not None


@pytest.mark.parametrize("where", ["cache", "cache/plans"])
def test_a_cache_that_others_can_write_is_not_written(places: Places, entry: Path, where: str) -> None:
    """Storing into a directory that is not private refuses or does nothing; no file appears."""
    entry.unlink()
    directory = Path(places.home, where)
    directory.chmod(0o777)
    with pytest.raises(Refusal, match="private directory"):
        cache.store(places, KEY, INPUTS, ENTRY)
    assert list(Path(places.cache, "plans").iterdir()) == []


def test_a_temporary_file_that_was_planted_is_not_written_through(places: Places, entry: Path, tmp_path: Path) -> None:
    """A link under the name of the temporary file leads nowhere."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    entry.with_name(f"{entry.name}.{os.getpid()}").symlink_to(victim)
    cache.store(places, KEY, INPUTS, ENTRY)
    assert victim.read_text() == "untouched"


def test_two_that_write_at_once_leave_a_whole_entry(places: Places, entry: Path) -> None:
    """Many processes store and load the same entry: each load finds a whole one or none, and none crashes."""
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(100):
                    cache.store(places, KEY, INPUTS, ENTRY)
                    if not found(places):
                        os._exit(1)
                os._exit(0)
            finally:
                os._exit(2)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_the_number_of_entries_is_bounded(places: Places) -> None:
    """The oldest go first."""
    for number in range(cache._MOST_ENTRIES + 20):
        cache.store(places, cache.key(("run", number), "/"), INPUTS, ENTRY)
    assert len(list(Path(places.cache, "plans").iterdir())) <= cache._MOST_ENTRIES
    assert cache.load(places, cache.key(("run", cache._MOST_ENTRIES + 19), "/"), ENVIRON) is not None


@AS_A_USER
def test_the_second_launch_finds_the_plan_of_the_first(who: Who, repo: Repo, installed: Installed) -> None:
    """The real command writes the entry once; an edited configuration makes it write again, and once."""

    def launch(*options: str) -> tuple[str, list[tuple[str, int]]]:
        ended = who.run([installed.paddock, "run", *options, "--", "echo", "hello"], cwd=repo.one)
        assert ended.returncode == 0, ended.stderr
        plans = who.home / ".cache/paddock/plans"
        return ended.stdout, sorted((path.name, path.stat().st_mtime_ns) for path in plans.iterdir())

    said, first = launch()
    assert said == "hello\n"
    assert launch() == (said, first)
    config = who.home / ".config/paddock"
    config.mkdir(parents=True)
    (config / "config.toml").write_text("schema = 1\n")
    who.give(who.home / ".config")
    _, again = launch()
    assert again != first
    assert launch()[1] == again


def test_no_jail_can_reach_the_cache(who: Who, repo: Repo, installed: Installed) -> None:
    """Not even with the home directory granted for reading: who could write there would write the rules."""
    (who.home / "beside").write_text("visible\n")
    who.give(who.home / "beside")
    run: list[Word] = [installed.paddock, "run", "--ro", who.home, "--", "sh", "-c"]
    script = f"cat {who.home}/beside; ls {who.home}/.cache/paddock/plans; echo x > {who.home}/.cache/paddock/plans/x"
    for _ in range(2):  # without and with a cached plan
        ended = who.run([*run, script], cwd=repo.one)
        assert ended.stdout == "visible\n"
        assert ended.returncode != 0
    assert not (who.home / ".cache/paddock/plans/x").exists()
