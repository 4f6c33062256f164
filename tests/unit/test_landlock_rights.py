"""The tables of Landlock rights, against each other and against what the letters of an Access mean."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.jail import landlock
from policy.errors import Refusal

TABLES = {
    "filesystem": (landlock.FS_ADDED, "FS_"),
    "network": (landlock.NET_ADDED, "NET_"),
    "scopes": (landlock.SCOPES_ADDED, "SCOPE_"),
}

ABIS = range(1, landlock.NEWEST_ABI + 1)
ACCESS = st.text(alphabet="rwxi", max_size=4)


def _named(prefix: str) -> dict[str, int]:
    return {
        name: value
        for name, value in vars(landlock).items()
        if name.startswith(prefix) and isinstance(value, int) and name != "NEWEST_ABI"
    }


@pytest.mark.parametrize("table", TABLES)
def test_each_right_is_introduced_by_exactly_one_abi(table: str) -> None:
    """The rows of a table are disjoint, and together they are all rights of its kind."""
    added, prefix = TABLES[table]
    for one, other in combinations(added.values(), 2):
        assert one & other == 0
    everything = 0
    for value in _named(prefix).values():
        assert value.bit_count() == 1
        everything |= value
    assert landlock.up_to(added, landlock.NEWEST_ABI) == everything


def test_the_flags_of_restrict_self_are_introduced_by_exactly_one_abi() -> None:
    """Logging flags came with ABI 7, thread synchronization with ABI 8."""
    assert landlock.FLAGS_ADDED == {7: 0b0111, 8: 0b1000}


@pytest.mark.parametrize(
    ("abi", "highest"), [(1, 12), (2, 13), (3, 14), (4, 14), (5, 15), (6, 15), (7, 15), (8, 15), (9, 16), (10, 16)]
)
def test_an_abi_knows_all_rights_up_to_its_newest(abi: int, highest: int) -> None:
    """Filesystem rights are numbered without gaps in the order in which they came."""
    assert landlock.up_to(landlock.FS_ADDED, abi) == (1 << highest + 1) - 1


def test_no_abi_is_beyond_the_newest() -> None:
    """`NEWEST_ABI` is not behind any table."""
    tables = (landlock.FS_ADDED, landlock.NET_ADDED, landlock.SCOPES_ADDED, landlock.FLAGS_ADDED)
    assert max(abi for table in tables for abi in table) == landlock.NEWEST_ABI


@given(access=ACCESS, abi=st.sampled_from(ABIS))
def test_rights_on_a_file_are_those_on_a_directory_that_a_file_can_have(access: str, abi: int) -> None:
    """A rule on a file never carries a directory's right, and loses no other."""
    directory = landlock.fs_rights(access, abi, True)
    file = landlock.fs_rights(access, abi, False)
    assert file == directory & landlock.FILE_RIGHTS


@given(access=ACCESS, abi=st.sampled_from(ABIS))
def test_rights_are_always_among_those_of_the_abi(access: str, abi: int) -> None:
    """The kernel would answer EINVAL to a right that it does not know."""
    assert landlock.fs_rights(access, abi, True) & ~landlock.up_to(landlock.FS_ADDED, abi) == 0


@given(access=ACCESS, abi=st.sampled_from(ABIS))
def test_devices_can_never_be_made(access: str, abi: int) -> None:
    """No letter holds the right to make a character or block device."""
    devices = landlock.FS_MAKE_CHAR | landlock.FS_MAKE_BLOCK
    assert landlock.fs_rights(access, abi, True) & devices == 0


@given(one=ACCESS, other=ACCESS, abi=st.sampled_from(ABIS), directory=st.booleans())
def test_letters_add_up(one: str, other: str, abi: int, directory: bool) -> None:
    """An Access means the union of its letters, in any order and number."""
    rights = landlock.fs_rights(one, abi, directory) | landlock.fs_rights(other, abi, directory)
    assert landlock.fs_rights(other + one, abi, directory) == rights


def test_reading_does_not_include_executing_or_writing() -> None:
    """The letters of a plan are disjoint."""
    for one, other in combinations((landlock.LETTERS[letter] for letter in "rwxi"), 2):
        assert one & other == 0


def test_every_other_letter_asks_for_less_than_one_of_a_plan() -> None:
    """What the launcher uses for itself opens nothing that a plan could not say."""
    for letter in landlock.LETTERS.keys() - set("rwxi"):
        rights = landlock.LETTERS[letter]
        assert any(rights & ~landlock.LETTERS[wider] == 0 for wider in "rwxi"), letter


def test_an_unknown_letter_is_an_error() -> None:
    """A misspelt Access grants nothing silently."""
    with pytest.raises(ValueError, match="unknown access letter 'q'"):
        landlock.fs_rights("rq", 1, True)


def test_the_environment_can_lower_the_abi(monkeypatch: pytest.MonkeyPatch) -> None:
    """PADDOCK_LANDLOCK_ABI=1 caps what the kernel offers."""
    monkeypatch.setattr(landlock, "kernel_abi", lambda: (7, ""))
    monkeypatch.setenv(landlock.ENV_ABI, "1")
    assert landlock.abi() == 1


def test_the_environment_cannot_raise_the_abi(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number above the kernel's is the kernel's."""
    monkeypatch.setattr(landlock, "kernel_abi", lambda: (3, ""))
    monkeypatch.setenv(landlock.ENV_ABI, "7")
    assert landlock.abi() == 3


def test_a_newer_kernel_is_used_as_the_newest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights that these tables do not name are not asked for."""
    monkeypatch.setattr(landlock, "kernel_abi", lambda: (99, ""))
    assert landlock.abi() == landlock.NEWEST_ABI


def test_the_environment_can_switch_landlock_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """PADDOCK_NO_LANDLOCK=1 means ABI 0, whatever the kernel offers."""
    monkeypatch.setattr(landlock, "kernel_abi", lambda: (7, ""))
    monkeypatch.setenv(landlock.ENV_DISABLE, "1")
    assert landlock.abi() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (landlock.ENV_ABI, "three"),
        (landlock.ENV_ABI, "-1"),
        (landlock.ENV_ABI, " 3"),
        (landlock.ENV_ABI, "\u0663"),
        (landlock.ENV_DISABLE, "yes"),
        (landlock.ENV_DISABLE, "2"),
    ],
)
def test_nonsense_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A cap that cannot be read is never read as "no cap"."""
    monkeypatch.setenv(name, value)
    with pytest.raises(Refusal, match=name) as refused:
        landlock.abi()
    assert refused.value.reference == "environment-invalid"


def test_without_landlock_nothing_is_restricted_silently() -> None:
    """ABI 0 is a refusal, not an empty ruleset."""
    with pytest.raises(Refusal, match="not available"):
        landlock.restrict((), abi=0, network=False, log=False)
