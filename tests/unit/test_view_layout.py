"""Which mounts show a Plan: pure decisions, no mount is made here."""

from typing import Any

import pytest

from launcher.jail.layout import BIND, LINK, MASK, PIN, PRIVATE, PROTECT, Operation, prepare
from launcher.jail.spec import JailSpec
from policy.errors import Refusal

Words = list[tuple[str, str]]


def spec(*grants: tuple[str, str], **fields: Any) -> JailSpec:  # noqa: ANN401  # values of any field
    """A jail of which only the view matters."""
    made = tuple((path, access, "test") for path, access in grants)
    return JailSpec(worktree="/w", grants=made, **fields)


def steps(wanted: JailSpec, exempt: tuple[str, ...] = ()) -> Words:
    """(kind, path) of each operation, without the directories that every jail has for itself."""
    return [(o.kind, o.path) for o in prepare(wanted.replace(exempt=exempt)) if o.kind != PRIVATE]


def test_of_narrowed_paths_the_longest_counts() -> None:
    """Read-only in a writable tree, writable in that again; what is read-only for another reason stays so."""
    narrowed = (("/w/a", "r", "--ro"), ("/w/a/b", "w", "--rw"), ("/w/a/b/c", "r", "--ro"))
    assert steps(spec(("/w", "rwx"), narrowed=narrowed)) == [
        (BIND, "/w"), (PROTECT, "/w/a"), (BIND, "/w/a/b"), (PROTECT, "/w/a/b/c")
    ]  # fmt: skip
    whole = spec(("/w", "rwx"), narrowed=(("/w", "r", "--ro"), ("/w/a", "w", "--rw")), read_only=(("/w/a", "test"),))
    assert steps(whole) == [(BIND, "/w")]
    assert one(whole, "/w").writable is False


def one(wanted: JailSpec, path: str, exempt: tuple[str, ...] = ()) -> Operation:
    """The only operation at `path`."""
    (found,) = (operation for operation in prepare(wanted.replace(exempt=exempt)) if operation.path == path)
    return found


def test_an_empty_plan_shows_the_jails_own_directories_only() -> None:
    """There is always a private /dev, /tmp and /var/tmp."""
    assert [(o.kind, o.path) for o in prepare(spec())] == [
        (PRIVATE, "/dev"),
        (PRIVATE, "/tmp"),
        (PRIVATE, "/var/tmp"),
    ]


def test_grants_are_shown_with_their_access() -> None:
    """The letter w decides between read-only and writable."""
    assert one(spec(("/usr", "rx")), "/usr").writable is False
    assert one(spec(("/w", "rwx")), "/w").writable is True


@pytest.mark.parametrize(
    "path", ["/tmp", "/var/tmp", "/proc", "/proc/sys", "/dev/null", "/dev/pts", "/dev/shm", "/dev"]
)
def test_what_is_the_jails_own_is_never_the_hosts(path: str) -> None:
    """A grant of such a path is answered with the private one."""
    assert steps(spec((path, "rwxi"))) == []


def test_another_device_is_shown_in_the_jails_dev() -> None:
    """Only the standard nodes are built in; a granted one is bound."""
    operation = one(spec(("/dev/kvm", "rwi")), "/dev/kvm")
    assert (operation.kind, operation.makes, operation.nested) == (BIND, True, False)


def test_a_grant_below_one_of_the_same_kind_needs_no_mount() -> None:
    """It is shown already."""
    assert steps(spec(("/usr", "rx"), ("/usr/lib", "r"), ("/w", "rwx"), ("/w/a", "rw"))) == [
        (BIND, "/usr"),
        (BIND, "/w"),
    ]


def test_names_that_only_start_alike_are_not_below() -> None:
    """/w2 is no part of /w."""
    assert steps(spec(("/w", "rwx"), ("/w2", "rwx"))) == [(BIND, "/w"), (BIND, "/w2")]


def test_a_writable_grant_inside_a_read_only_one_is_mounted_there() -> None:
    """On the disk's own directory: no mount point is made."""
    operation = one(spec(("/opt", "rx"), ("/opt/cache", "rwx")), "/opt/cache")
    assert (operation.kind, operation.writable, operation.nested, operation.makes) == (BIND, True, True, False)


def test_a_read_only_grant_inside_a_writable_one_is_protected() -> None:
    """Its parents are pinned, or renaming one would free its name."""
    assert steps(spec(("/w", "rwx"), ("/w/a/b/.git", "rx"))) == [
        (BIND, "/w"),
        (PIN, "/w/a"),
        (PIN, "/w/a/b"),
        (PROTECT, "/w/a/b/.git"),
    ]


def test_parents_are_pinned_once() -> None:
    """Two protected files in one directory share its pin."""
    wanted = spec(("/w", "rwx"), handoff=(("/w/a/x", "protect"), ("/w/a/y", "protect")))
    assert steps(wanted) == [(BIND, "/w"), (PIN, "/w/a"), (PROTECT, "/w/a/x"), (PROTECT, "/w/a/y")]


def test_a_reported_hand_off_file_stays_writable() -> None:
    """Only the kind `protect` is mounted."""
    assert steps(spec(("/w", "rwx"), handoff=(("/w/x", "report"),))) == [(BIND, "/w")]


def test_an_explicit_writable_grant_frees_a_hand_off_file() -> None:
    """That is how a user allows it."""
    assert steps(spec(("/w", "rwx"), ("/w/x", "rw"), handoff=(("/w/x", "protect"),))) == [(BIND, "/w")]


def test_a_read_only_path_beats_a_writable_grant() -> None:
    """At the path, and below it."""
    wanted = spec(("/w", "rwx"), ("/w/x", "rwx"), ("/w/x/y", "rwx"), read_only=(("/w/x", "test"),))
    assert steps(wanted) == [(BIND, "/w"), (PROTECT, "/w/x")]


def test_a_read_only_path_of_a_grant_of_its_own_is_shown_read_only() -> None:
    """Nothing writable lies around it, so it is simply bound so."""
    assert one(spec(("/w", "rwx"), read_only=(("/w", "test"),)), "/w").writable is False


def test_a_denied_path_inside_a_grant_is_hidden() -> None:
    """A mask, and everything granted below it is gone."""
    wanted = spec(("/w", "rwx"), ("/w/secret/part", "rw"), denied=(("/w/secret", "test"),))
    assert steps(wanted) == [(BIND, "/w"), (MASK, "/w/secret")]


def test_a_denied_path_outside_every_grant_needs_no_mask() -> None:
    """The jail's root does not have it."""
    assert steps(spec(("/w", "rwx"), denied=(("/home/x/.ssh", "test"), ("/tmp/y", "test")))) == [(BIND, "/w")]


def test_a_grant_at_a_denied_path_is_not_shown() -> None:
    """Denial wins."""
    assert steps(spec(("/opt", "rx"), denied=(("/opt", "test"),))) == []


def test_a_slot_below_a_denied_path_is_shown() -> None:
    """Paddock's own state is denied; the private home in it is granted nevertheless."""
    wanted = spec(("/home", "rx"), ("/home/state/home", "rwx"), denied=(("/home/state", "test"),))
    assert steps(wanted, ("/home/state/home",)) == [
        (BIND, "/home"),
        (MASK, "/home/state"),
        (BIND, "/home/state/home"),
    ]
    assert one(wanted, "/home/state", ("/home/state/home",)).holes == ("/home/state/home",)
    assert one(wanted, "/home/state/home", ("/home/state/home",)).makes


def test_links_to_grants_are_made_where_nothing_shows_them() -> None:
    """A link inside a granted tree is on the disk already."""
    wanted = spec(("/usr", "rx"), links=(("/bin", "usr/bin"), ("/usr/link", "lib"), ("/dev/stdin", "x")))
    assert steps(wanted) == [(BIND, "/usr"), (LINK, "/bin")]


def test_the_whole_file_system_can_be_granted_for_reading() -> None:
    """Everything else is then mounted inside it."""
    wanted = spec(("/", "rx"), ("/w", "rwx"), denied=(("/root", "test"),))
    assert steps(wanted) == [(BIND, "/"), (MASK, "/root"), (BIND, "/w")]
    assert all(o.nested and not o.makes for o in prepare(wanted) if o.path != "/")


def test_the_whole_file_system_cannot_be_granted_for_writing() -> None:
    """That would be no jail."""
    with pytest.raises(Refusal, match="root-writable"):
        prepare(spec(("/", "rwx")))


def test_a_worktree_below_tmp_gets_a_mount_point_there() -> None:
    """/tmp is private, and what is granted below it is shown in it."""
    operation = one(spec(("/tmp/w", "rwx")), "/tmp/w")
    assert (operation.makes, operation.nested) == (True, False)


def test_every_operation_says_what_it_does() -> None:
    """One line each, with its path."""
    wanted = spec(
        ("/w", "rwx"),
        ("/usr", "rx"),
        ("/w/s/home", "rwx"),
        links=(("/bin", "usr/bin"),),
        denied=(("/w/s", "test"),),
        handoff=(("/w/a/x", "protect"),),
    )
    operations = prepare(wanted.replace(exempt=("/w/s/home",)))
    assert {o.kind for o in operations} == {PRIVATE, BIND, LINK, PIN, PROTECT, MASK}
    assert all(o.path in o.describe() and "\n" not in o.describe() for o in operations)
    assert one(wanted, "/w/s", ("/w/s/home",)).describe() == "hide /w/s, except /w/s/home"
