"""One rule for neighbours: only on a directory of the view's own, and never more than each of them had."""

import pytest

from launcher.jail.layout import gathered

ETC = tuple((f"/etc/{name}", "r", "default") for name in ("passwd", "group", "hosts", "ssl/certs", "services", "rpc"))


def paths(grants: tuple[tuple[str, str, str], ...]) -> dict[str, str]:
    """Access by path."""
    return {path: access for path, access, _ in gathered(grants)}


def test_neighbours_become_one_rule_on_their_directory() -> None:
    """The rest stays as it is."""
    assert paths((*ETC, ("/usr", "rx", ""), ("/", "l", ""))) == {"/usr": "rx", "/": "l", "/etc": "r"}


@pytest.mark.parametrize(
    "other",
    [
        ("/etc/alternatives", "rx", "more than the others"),
        ("/etc/passwd", "rw", "twice"),
        ("/etc", "r", "the outer directory itself is shown"),
        ("/", "r", "everything is shown"),
    ],
)
def test_where_it_would_say_something_else_each_keeps_its_own(other: tuple[str, str, str]) -> None:
    """Another access below, or a directory on the disk, whose other entries a rule would open."""
    grants = (*ETC, other)
    assert gathered(grants) == grants


@pytest.mark.parametrize("directory", ["/tmp", "/var/tmp", "/dev", "/proc", "/tmp/place", "/dev/inner", ""])
def test_directories_that_hold_more_than_grants_are_left_alone(directory: str) -> None:
    """The jail's own ones, and the root."""
    grants = tuple((f"{directory}/{number}", "r", "") for number in range(8))
    assert gathered(grants) == grants


def test_what_may_be_written_is_never_put_together() -> None:
    """A writable rule on a directory would let entries be made in it."""
    grants = tuple((f"/srv/{number}", "rw", "") for number in range(8))
    assert gathered(grants) == grants


def test_a_few_are_not_worth_it() -> None:
    """Three rules stay three rules."""
    assert gathered(ETC[:3]) == ETC[:3]
