"""The same random rules, applied by Paddock and by the `landlock` package of PyPI, give the same verdicts.

The package knows filesystem rights up to ABI 5 and was written by others, so it is a second opinion on the numbers,
the structures and the meaning of the calls. What a letter asks for is spelt out once more here, in its names.
"""

import ctypes
import functools
import os
import shutil
import socket
import stat
from pathlib import Path

import landlock as oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.jail import hygiene, landlock, syscalls
from tests.conftest import IDENTITIES
from tests.support import features, forked
from tests.support.forked import verdict
from tests.support.identity import Who

FS = oracle.FSAccess

LETTERS = {
    "r": FS.READ_FILE | FS.READ_DIR,
    "w": FS.WRITE_FILE
    | FS.TRUNCATE
    | FS.REMOVE_DIR
    | FS.REMOVE_FILE
    | FS.MAKE_REG
    | FS.MAKE_DIR
    | FS.MAKE_SYM
    | FS.MAKE_SOCK
    | FS.MAKE_FIFO
    | FS.REFER,
    "x": FS.EXECUTE,
    "i": FS.IOCTL_DEV,
}
LATER = {2: FS.REFER, 3: FS.TRUNCATE, 5: FS.IOCTL_DEV}
ORACLE_ABI = 5

DIRECTORIES = ("a", "a/b", "a/b/c", "d", "d/e")
FILES = ("a/one", "a/b/two", "a/b/c/three", "d/four", "d/e/five")
PLACES = ("", *DIRECTORIES, *FILES, "/dev/null", "/dev/zero", "gone")

Rules = list[tuple[str, str]]


def known(abi: int) -> "oracle.FSAccess":
    """All rights of the package that exist in `abi`."""
    mask = FS.all()
    for introduced, right in LATER.items():
        if introduced > abi:
            mask &= ~right
    return mask


def plant(root: Path, who: Who) -> None:
    """The tree that the operations work on, anew."""
    if root.exists():
        shutil.rmtree(root)
    root.mkdir()
    for name in DIRECTORIES:
        (root / name).mkdir()
        (root / name / "empty").mkdir()
        (root / name / "victim").write_text("v")
        (root / name / "mover").write_text("m")
    for name in FILES:
        (root / name).write_text("#!/bin/false\n")
        (root / name).chmod(0o755)
    who.give(root)


def read(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def write(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def overwrite(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def execute(path: Path) -> None:
    """Raises what execve(2) fails with; returns where the kernel would have run the file."""
    os.waitpid(os.posix_spawn(path, [str(path)], {}), 0)  # as vfork(2) does: this process is too large to be copied


def ask(device: str) -> None:
    """A device ioctl; ENOTTY is the device's own answer, so the request went through."""
    fd = os.open(device, os.O_RDWR)
    try:
        syscalls.ioctl(fd, 0x5401)
    finally:
        os.close(fd)


def operations(root: Path) -> list[str]:
    """Verdicts of everything that one can do to the tree, in a fixed order."""
    seen = []
    for name in FILES:
        seen += [verdict(call, root / name) for call in (read, write, execute)]
    for name in DIRECTORIES:
        here = root / name
        seen += [
            verdict(os.listdir, here),
            verdict(create, here / "created"),
            verdict(os.mkdir, here / "made"),
            verdict(os.symlink, "target", here / "link"),
            verdict(os.mkfifo, here / "fifo"),
            verdict(listen, here / "socket"),
            verdict(os.mknod, here / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
            verdict(os.truncate, here / "mover", 0),
            verdict(overwrite, here / "mover"),
            verdict(os.unlink, here / "victim"),
            verdict(os.rmdir, here / "empty"),
        ]
    for source in DIRECTORIES:
        for target in DIRECTORIES:
            name = f"from-{source.replace('/', '-')}"
            seen.append(verdict(os.link, root / source / "mover", root / target / f"{name}-linked"))
            seen.append(verdict(os.rename, root / source / "mover", root / target / f"{name}-moved"))
            if os.path.lexists(root / target / f"{name}-moved"):
                # Back to where the next round expects it; what could move there can be moved back or stays.
                verdict(os.rename, root / target / f"{name}-moved", root / source / "mover")
    return [*seen, *(verdict(call, device) for device in ("/dev/null", "/dev/zero") for call in (read, write, ask))]


def ours(root: Path, rules: Rules, abi: int) -> list[str]:
    """The verdicts behind Paddock's own calls."""
    hygiene.no_new_privs()
    grants = tuple((os.path.join(root, place) if place else str(root), access, "") for place, access in rules)
    landlock.restrict(grants, abi=abi, network=True, log=False, scope_abstract=False, scope_signals=False)
    return operations(root)


def theirs(root: Path, rules: Rules, abi: int) -> list[str]:
    """The verdicts behind the package's calls."""
    # The package takes any errno left over from an earlier call for a failure of its own.
    ctypes.set_errno(0)
    ruleset = oracle.Ruleset(known(abi))
    for place, access in rules:
        path = os.path.join(root, place) if place else str(root)
        rights = FS(0)
        for letter in access:
            rights |= LETTERS[letter]
        rights &= known(abi)
        if not os.path.isdir(path):
            rights &= FS.all_file()
        # Both are errors for the package, and nothing to grant for Paddock.
        if rights and os.path.exists(path):
            ruleset.allow(path, rules=rights)
    ruleset.apply()
    return operations(root)


RULES = st.lists(st.tuples(st.sampled_from(PLACES), st.text(alphabet="rwxi", max_size=4)), max_size=6)


NEWEST = min(landlock.kernel_abi()[0], ORACLE_ABI)


@pytest.mark.parametrize(
    ("who", "abi"),
    [(IDENTITIES[-1], abi) for abi in range(1, NEWEST + 1)] + [(who, NEWEST) for who in IDENTITIES[:-1]],
    indirect=["who"],
)
def test_both_give_the_same_verdicts(who: Who, public_dir: Path, abi: int) -> None:
    """Whatever the rules, each open, creation, removal, rename, link, execution and ioctl ends the same way."""
    features.need("landlock")
    root = public_dir / "tree"
    verdicts: set[str] = set()

    @settings(max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(rules=RULES)
    def compare(rules: Rules) -> None:
        seen = []
        for implementation in (ours, theirs):
            plant(root, who)
            seen.append(forked.run(functools.partial(implementation, root, rules, abi), who))
        assert seen[0] == seen[1]
        verdicts.update(seen[0])

    compare()
    # The comparison means something only if both ways out occurred.
    assert {"ok", "EACCES"} <= verdicts


def test_the_package_numbers_its_rights_like_we_do() -> None:
    """Each right that it names is the bit that we use."""
    assert {right.name: right.value for right in FS} == {
        right.name: getattr(landlock, f"FS_{right.name}") for right in FS
    }
