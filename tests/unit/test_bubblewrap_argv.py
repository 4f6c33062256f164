"""What bubblewrap is told: a plan's operations as options, in an order that covers nothing by mistake."""

from typing import Any

import pytest

from launcher.jail import bubblewrap
from launcher.jail.layout import prepare
from launcher.jail.spec import JailSpec
from policy.errors import Refusal

FIRST = [
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--chdir", "/"),
    *("--uid", "1000", "--gid", "100"),
]
DEV = ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--mqueue", "/dev/mqueue"]
OPEN_FIRST = [FIRST[0], FIRST[1], "--share-net", *FIRST[2:]]
TMP = ["--perms", "1777", "--tmpfs", "/tmp"]
VAR_TMP = ["--dir", "/var", "--perms", "1777", "--tmpfs", "/var/tmp"]
LAST = ["--remount-ro", "/dev", "--proc", "/proc", "--remount-ro", "/proc", "--remount-ro", "/"]


def spec(*grants: tuple[str, str], **fields: Any) -> JailSpec:  # noqa: ANN401  # values of any field
    """A jail of which only the view matters."""
    made = tuple((path, access, "test") for path, access in grants)
    return JailSpec(worktree="/w", grants=made, **fields)


def argv(
    wanted: JailSpec, exempt: tuple[str, ...] = (), files: frozenset[str] = frozenset(), terminal: str = ""
) -> list[str]:
    """The options for a plan whose every path is there."""
    return bubblewrap.argv(
        wanted, prepare(wanted.replace(exempt=exempt)), uid=1000, gid=100, files=files, terminal=terminal
    )


def test_an_empty_plan() -> None:
    """New namespaces of every kind, an identity, private directories, everything else read-only."""
    assert argv(spec()) == [*FIRST, *DEV, *TMP, *VAR_TMP, *LAST]


def test_an_open_network_is_shared() -> None:
    """All other namespaces are new all the same."""
    assert argv(spec(net="open")) == [*OPEN_FIRST, *DEV, *TMP, *VAR_TMP, *LAST]


def test_grants_with_their_access() -> None:
    """Parents on the jail's own tmpfs are made first, once, or bwrap would close them for others."""
    assert argv(spec(("/usr", "rx"), ("/home/u/w", "rwx"), ("/home/u/f", "r"))) == [
        *FIRST,
        *DEV,
        *("--dir", "/home", "--dir", "/home/u", "--ro-bind", "/home/u/f", "/home/u/f"),
        *("--bind", "/home/u/w", "/home/u/w"),
        *TMP,
        *("--ro-bind", "/usr", "/usr"),
        *VAR_TMP,
        *LAST,
    ]


def test_protected_paths_and_their_pinned_parents() -> None:
    """A pin shows a directory anew, so it comes before whatever is mounted inside it, masks too."""
    wanted = spec(("/w", "rwx"), handoff=(("/w/a/x", "protect"),), denied=(("/w/a/secret", "test"),))
    assert argv(wanted) == [
        *FIRST,
        *DEV,
        *TMP,
        *VAR_TMP,
        *("--bind", "/w", "/w", "--bind", "/w/a", "/w/a"),
        *("--perms", "0000", "--tmpfs", "/w/a/secret"),
        *("--ro-bind", "/w/a/x", "/w/a/x"),
        *("--remount-ro", "/w/a/secret"),
        *LAST,
    ]


def test_a_mask_over_a_file() -> None:
    """A device that cannot be opened, as the mount has no devices."""
    wanted = spec(("/w", "rwx"), denied=(("/w/secret", "test"),))
    assert argv(wanted, files=frozenset({"/w/secret"}))[-len(LAST) - 3 : -len(LAST)] == [
        *("--ro-bind", "/dev/null", "/w/secret")
    ]


def test_a_mask_with_a_hole() -> None:
    """It can be passed through, what is granted below is shown, and it is closed when that is mounted."""
    wanted = spec(("/home", "rx"), ("/home/state/s/home", "rwx"), denied=(("/home/state", "test"),))
    assert argv(wanted, ("/home/state/s/home",)) == [
        *FIRST,
        *DEV,
        *("--ro-bind", "/home", "/home"),
        *("--perms", "0555", "--tmpfs", "/home/state"),
        *("--dir", "/home/state/s", "--bind", "/home/state/s/home", "/home/state/s/home"),
        *TMP,
        *VAR_TMP,
        *("--remount-ro", "/home/state"),
        *LAST,
    ]


def test_links_come_after_every_mount() -> None:
    """So nothing is made through one; where a mount point had to be made, that one stays."""
    wanted = spec(("/usr", "rx"), ("/lib/x", "rx"), links=(("/bin", "usr/bin"), ("/lib", "usr/lib")))
    words = argv(wanted)
    assert words[-len(LAST) - 3 : -len(LAST)] == ["--symlink", "usr/bin", "/bin"]
    assert "usr/lib" not in words


def test_the_whole_file_system_for_reading() -> None:
    """It comes first; the jail's own directories are mounted over it, and none has to be made."""
    words = argv(spec(("/", "rx"), ("/w", "rwx")))
    assert words == [*FIRST, "--ro-bind", "/", "/", *DEV, *TMP, *VAR_TMP[2:], "--bind", "/w", "/w", *LAST]


def test_the_limit_of_disk_bounds_dev_shm() -> None:
    """The one tmpfs of a session; what is on the disk is watched."""
    words = argv(spec(limits=(("disk", 1 << 20),)))
    assert words[words.index("--size") :][:4] == ["--size", str(1 << 20), "--tmpfs", "/dev/shm"]
    assert words.count("--size") == 1


def test_the_sessions_own_directories_are_shown_as_tmp() -> None:
    """A directory on the disk in the place of an empty tmpfs, for each that is given."""
    operations = prepare(spec(private={"/tmp": "/s/tmp"}))
    words = bubblewrap.argv(spec(), operations, uid=1000, gid=100)
    assert words == [*FIRST, *DEV, "--bind", "/s/tmp", "/tmp", *VAR_TMP, *LAST]


def test_devices() -> None:
    """A granted one stays a device; what is to be locked afterwards are all of them, and no writable directory."""
    wanted = spec(("/dev/kvm", "rwi"), ("/dev/dri", "rw"), ("/dev/snd", "r"))
    operations = prepare(wanted)
    words = argv(wanted, files=frozenset({"/dev/kvm"}), terminal="/dev/pts/7")
    for path in ("/dev/kvm", "/dev/dri", "/dev/snd"):
        at = words.index(path)
        assert words[at - 1 : at + 2] == ["--dev-bind", path, path]
        assert words.index("--dev") < at < words.index("--remount-ro")
    assert words[words.index("/dev/pts/7") - 1 :][:3] == ["--dev-bind", "/dev/pts/7", "/dev/console"]
    own = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
    assert bubblewrap.to_lock(operations, frozenset({"/dev/kvm"}), "/dev/pts/7") == (
        *own,
        "/dev/console",
        "/dev/kvm",
        "/dev/snd",
    )
    assert bubblewrap.to_lock(operations, frozenset(), "") == (*own, "/dev/snd")


@pytest.mark.parametrize("word", ["--clearenv", "--setenv", "--new-session", "--cap-add", "--bind-try"])
def test_what_bubblewrap_is_never_told(word: str) -> None:
    """Nothing about the environment, no other session, no capability, nothing that may silently be left out."""
    wanted = spec(("/w", "rwx"), ("/usr", "rx"), links=(("/bin", "usr/bin"),), environment={"TOKEN": "value"})
    assert word not in argv(wanted)
    assert "value" not in argv(wanted)


def test_names_of_every_kind_stay_one_word() -> None:
    """Newlines, spaces, leading dashes and bytes that are no UTF-8."""
    names = ("/w/a\nb", "/w/ --bind", "/w/\udcff")
    words = argv(spec(*((name, "rx") for name in names)))
    for name in names:
        at = words.index(name)
        assert words[at - 1 : at + 2] == ["--ro-bind", name, name]


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_keeper_is_a_whole_elf_file(machine: str, number: int) -> None:
    """64-bit, for its machine, with one segment that holds all of it and the entry point."""
    program = bubblewrap.keeper_program(machine)

    def field(at: int, size: int) -> int:
        return int.from_bytes(program[at : at + size], "little")

    assert program[:6] == b"\x7fELF\x02\x01"
    assert (field(16, 2), field(18, 2), field(32, 8), field(56, 2)) == (2, number, 64, 1)
    base, size = field(80, 8), field(96, 8)
    assert (field(64, 4), field(68, 4), size) == (1, 5, len(program))
    assert field(24, 8) - base == 120
    assert program[-1] == 0  # what it writes


def test_an_unknown_machine_has_no_keeper() -> None:
    """It is named."""
    with pytest.raises(Refusal, match="riscv64"):
        bubblewrap.keeper_program("riscv64")
