"""What happens to grants on their way into a Landlock ruleset: reports, unions, refusals, numbers."""

import os
import threading
from pathlib import Path

import pytest

from launcher.jail import hygiene, landlock
from policy.errors import Refusal
from tests.support import features, forked
from tests.support.forked import ABIS, create, grants, plant, read, restricted, verdict
from tests.support.identity import Who


@pytest.fixture(autouse=True)
def _needs_landlock() -> None:
    features.need("landlock")


@pytest.fixture
def newest() -> int:
    """The newest ABI of this kernel."""
    return landlock.abi()


@pytest.fixture
def tree(place: Path, who: Who) -> Path:
    """`open` and `shut`, alike; see `plant`."""
    return plant(place, who)


@pytest.mark.parametrize(("abstract", "signals"), [(True, False), (False, True), (False, False)])
def test_each_scope_can_be_left_open(newest: int, abstract: bool, signals: bool) -> None:
    """The scopes that were asked for are the ones reported."""

    def act() -> int:
        hygiene.no_new_privs()
        result = landlock.restrict(
            (), abi=newest, network=True, log=False, scope_abstract=abstract, scope_signals=signals
        )
        return result[4]

    expected = (landlock.SCOPE_ABSTRACT_UNIX if abstract else 0) | (landlock.SCOPE_SIGNAL if signals else 0)
    assert forked.run(act) == expected


@pytest.mark.parametrize("abi", ABIS)
def test_what_was_enforced_is_reported(tree: Path, who: Who, abi: int) -> None:
    """The result names the ABI, the rules, all that is handled, and the grants that were not there."""

    def act() -> tuple[int, int, int, int, int, tuple[str, ...]]:
        hygiene.no_new_privs()
        given = grants(
            (tree / "open", "r"), (tree / "open", "w"), (tree / "shut/file", "rw"), (tree / "gone", "r"), (tree, "")
        )
        return landlock.restrict(given, abi=abi, network=False, log=True)

    assert forked.run(act, who) == (
        abi,
        2,
        landlock.up_to(landlock.FS_ADDED, abi),
        landlock.up_to(landlock.NET_ADDED, abi),
        landlock.up_to(landlock.SCOPES_ADDED, abi),
        (str(tree / "gone"),),
    )


def test_the_same_path_twice_gets_the_union(tree: Path, who: Who, newest: int) -> None:
    """Two grants of one path add up."""
    given = grants((tree / "open", "r"), (tree / "open", "w"))

    def act() -> list[str]:
        return [verdict(lambda: read(tree / "open/file")), verdict(lambda: create(tree / "open/new"))]

    assert forked.run(lambda: restricted(given, act, abi=newest), who) == ["ok", "ok"]


def test_a_grant_below_a_missing_directory_is_skipped(tree: Path, newest: int) -> None:
    """ENOENT and ENOTDIR both mean that there is nothing to grant."""

    def act() -> tuple[str, ...]:
        hygiene.no_new_privs()
        given = grants((tree / "gone/below", "r"), (tree / "open/file/below", "r"))
        return landlock.restrict(given, abi=newest, network=True, log=False)[5]

    assert forked.run(act) == (str(tree / "gone/below"), str(tree / "open/file/below"))


@pytest.mark.parametrize("swapped", ["open", "open/inner", "open/inner/deep"])
def test_a_component_that_became_a_link_is_refused(tree: Path, who: Who, newest: int, swapped: str) -> None:
    """Nothing is granted through a link that was not there when the plan was made, wherever it is in the path."""
    os.rename(tree / swapped, tree / "away")
    (tree / swapped).symlink_to(tree / "away")

    def act() -> str:
        hygiene.no_new_privs()
        try:
            landlock.restrict(grants((tree / "open/inner/deep", "r")), abi=newest, network=True, log=False)
        except Refusal as refusal:
            return refusal.reference
        return "accepted"

    assert forked.run(act, who) == "grant-changed"


def test_a_relative_grant_cannot_leave_through_dots(tree: Path, newest: int) -> None:
    """A path is taken as it is: what `..` leads to is granted, and nothing else (plans hold canonical paths)."""
    given = grants((tree / "shut/../open", "r"))

    def act() -> list[str]:
        return [verdict(lambda: read(tree / "open/file")), verdict(lambda: read(tree / "shut/file"))]

    assert forked.run(lambda: restricted(given, act, abi=newest)) == ["ok", "EACCES"]


def test_without_no_new_privs_the_refusal_says_so(user: Who, newest: int) -> None:
    """An ordinary user cannot restrict itself before giving up set-uid."""

    def act() -> str:
        try:
            landlock.restrict((), abi=newest, network=True, log=False)
        except Refusal as refusal:
            return refusal.context
        return "restricted"

    assert forked.run(act, user) == "no_new_privs is not set"


def test_too_many_nested_domains_are_refused_in_words(newest: int) -> None:
    """The kernel's 17th domain is E2BIG; the refusal names the other sandboxes."""

    def act() -> tuple[int, str]:
        hygiene.no_new_privs()
        for count in range(64):
            try:
                landlock.restrict((), abi=newest, network=True, log=False)
            except Refusal as refusal:
                return count, refusal.context
        return 64, "never"

    count, context = forked.run(act)
    assert count <= 16
    assert "16 Landlock domains" in context


def test_ten_thousand_grants_are_added_with_one_descriptor_at_a_time(public_dir: Path, newest: int) -> None:
    """A large plan works under a small limit of open files."""
    root = public_dir / "many"
    root.mkdir()
    paths = [root / str(number) for number in range(10_000)]
    for path in paths:
        path.touch()

    def act() -> tuple[int, str, str]:
        inherited = max(map(int, os.listdir("/proc/self/fd")))  # of earlier tests in this process: they may be many
        hygiene.rlimits((("open_files", inherited + 16),), kernel_uid=os.getuid())
        hygiene.no_new_privs()
        given = grants(*((path, "r") for path in paths[:-1]))
        rules = landlock.restrict(given, abi=newest, network=True, log=False)[1]
        return rules, verdict(lambda: read(paths[0])), verdict(lambda: read(paths[-1]))

    assert forked.run(act) == (9_999, "ok", "EACCES")


def test_threads_made_afterwards_are_inside(tree: Path, newest: int) -> None:
    """The domain is inherited by what the restricted thread starts."""

    def act() -> list[str]:
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(verdict(lambda: read(tree / "shut/file"))))
        thread.start()
        thread.join()
        return seen

    assert forked.run(lambda: restricted(grants((tree / "open", "r")), act, abi=newest)) == ["EACCES"]


def test_no_ruleset_descriptor_is_left_open(newest: int) -> None:
    """A ruleset that stays open could be handed to nobody, but would be inherited."""

    def act() -> tuple[list[str], list[str]]:
        before = sorted(os.listdir("/proc/self/fd"))
        restricted(grants(("/", "r")), lambda: None, abi=newest)
        return before, sorted(os.listdir("/proc/self/fd"))

    before, after = forked.run(act)
    assert after == before
