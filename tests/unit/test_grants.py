"""Deny inside allow by expansion: nothing below an exception gets more, everything beside it keeps what it had."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from policy.derive import expand_grants, meet_grants
from policy.plan import Grant, beneath

# A fixed tree, three levels deep: enough for every relation of a grant, an exception and their relatives.
NAMES = ("a", "b", "c")
DIRECTORIES = ["/", *(f"/{x}" for x in NAMES), *(f"/{x}/{y}" for x in NAMES for y in NAMES)]
LEAVES = [f"{directory}/{name}" for directory in DIRECTORIES if directory.count("/") == 2 for name in NAMES]
PATHS = [*DIRECTORIES, *LEAVES]
LINKS = frozenset({"/a/c", "/c"})

ACCESSES = st.sampled_from(["r", "rx", "rw", "rwx", "rwxi", "w", "x"])
LEFT = st.sampled_from(["", "", "r", "rx"])
GRANTS = st.lists(st.tuples(st.sampled_from(PATHS), ACCESSES, st.just("test")), max_size=4).map(tuple)
EXCEPTIONS = st.dictionaries(st.sampled_from(PATHS), LEFT, max_size=4)


def listing(path: str) -> tuple[tuple[str, bool], ...]:
    """The fixed tree, in which two names are symbolic links."""
    if path not in DIRECTORIES or path in LINKS:
        return ()
    prefix = "" if path == "/" else path
    return tuple((name, f"{prefix}/{name}" in LINKS) for name in NAMES)


def reach(grants: tuple[Grant, ...], path: str) -> set[str]:
    """What Landlock makes of rules: the union over everything above."""
    return {letter for where, access, _ in grants if beneath(path, where) for letter in access}


def ceiling(exceptions: Mapping[str, str], path: str) -> set[str]:
    left = set("rwxi")
    for where, access in exceptions.items():
        if beneath(path, where):
            left &= set(access)
    return left


def behind_link(path: str) -> bool:
    return any(beneath(path, link) for link in LINKS)


@given(grants=GRANTS, exceptions=EXCEPTIONS)
def test_nothing_below_an_exception_gets_more_than_it_leaves(
    grants: tuple[Grant, ...], exceptions: dict[str, str]
) -> None:
    """Whatever the grants, the union of the expanded rules at a path stays under every exception above it."""
    expanded = expand_grants(grants, exceptions, listing)
    for path in PATHS:
        assert reach(expanded, path) <= ceiling(exceptions, path)


@given(grants=GRANTS, exceptions=EXCEPTIONS)
def test_everything_beside_an_exception_keeps_its_access(grants: tuple[Grant, ...], exceptions: dict[str, str]) -> None:
    """A path with no exception above and none below loses nothing, unless it hides behind a symbolic link."""
    expanded = expand_grants(grants, exceptions, listing)
    for path in PATHS:
        touched = any(beneath(where, path) or beneath(path, where) for where in exceptions)
        if not touched and not behind_link(path):
            assert reach(expanded, path) == reach(grants, path)


@given(grants=GRANTS, exceptions=EXCEPTIONS)
def test_nothing_is_ever_added(grants: tuple[Grant, ...], exceptions: dict[str, str]) -> None:
    """No path gets an access that it had not before."""
    expanded = expand_grants(grants, exceptions, listing)
    for path in PATHS:
        assert reach(expanded, path) <= reach(grants, path)


@given(grants=GRANTS, exceptions=EXCEPTIONS)
def test_an_exception_keeps_what_it_leaves(grants: tuple[Grant, ...], exceptions: dict[str, str]) -> None:
    """At an exception, exactly what it and those above it leave of the old access remains, links aside."""
    expanded = expand_grants(grants, exceptions, listing)
    for path in exceptions:
        nested = any(where != path and beneath(where, path) for where in exceptions)
        if not nested and not behind_link(path):
            assert reach(expanded, path) == reach(grants, path) & ceiling(exceptions, path)


@given(grants=GRANTS)
def test_without_exceptions_nothing_changes(grants: tuple[Grant, ...]) -> None:
    """No exception, no expansion."""
    assert expand_grants(grants, {}, listing) == grants


@given(grants=GRANTS, exceptions=EXCEPTIONS)
def test_a_link_is_never_granted_itself(grants: tuple[Grant, ...], exceptions: dict[str, str]) -> None:
    """A rule on a link would land on its target, so no expansion makes one."""
    given_paths = {path for path, _, _ in grants}
    for path, _, _ in expand_grants(grants, exceptions, listing):
        assert path in given_paths or path not in LINKS


def test_slots_are_left_alone() -> None:
    """A session path is not known yet, so no exception is compared with it."""
    grants = (("@home", "rwx", "private home"),)
    assert expand_grants(grants, {"/": ""}, listing) == grants


def test_a_directory_above_a_denied_one_cannot_be_listed() -> None:
    """Landlock rules reach the whole subtree, so the parent itself carries nothing."""
    expanded = expand_grants((("/a", "rwx", "worktree"),), {"/a/b": ""}, listing)
    assert expanded == (("/a/a", "rwx", "worktree"),)


def test_a_directory_above_a_read_only_one_can_be_read() -> None:
    """What all entries have in common stays with the parent."""
    expanded = expand_grants((("/a", "rwx", "worktree"),), {"/a/b": "rx"}, listing)
    assert expanded == (("/a", "rx", "worktree"), ("/a/a", "rwx", "worktree"), ("/a/b", "rx", "worktree"))


def test_names_that_begin_alike_are_not_confused() -> None:
    """`/a/bb` is not below `/a/b`."""
    entries = {"/a": (("b", False), ("bb", False))}
    expanded = expand_grants((("/a", "rx", "s"),), {"/a/b": ""}, lambda path: entries.get(path, ()))
    assert expanded == (("/a/bb", "rx", "s"),)


def test_a_name_that_cannot_be_listed_is_not_granted() -> None:
    """Where the siblings are unknown, nothing is guessed."""
    assert expand_grants((("/a", "rx", "s"),), {"/a/b": ""}, lambda path: ()) == ()


def test_the_source_of_a_grant_is_kept() -> None:
    """`paddock explain` names where an expanded grant came from."""
    assert {source for _, _, source in expand_grants((("/", "rx", "--ro"),), {"/a/b": ""}, listing)} == {"--ro"}


@given(first=ACCESSES, second=ACCESSES)
def test_meet_keeps_what_both_allow(first: str, second: str) -> None:
    """In the order of the first."""
    assert set(meet_grants(first, second)) == set(first) & set(second)
    assert meet_grants(first, first) == first
