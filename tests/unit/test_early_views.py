"""What of a view can be made before its session is known, and which sessions may have it."""

from launcher.jail.namespaces import early, layout
from launcher.jail.namespaces.layout import Operation
from launcher.session.early import Recipe, common

USR = Operation(layout.BIND, "/usr")
LINK = Operation(layout.LINK, "/bin", text="usr/bin")
WORKTREE = Operation(layout.BIND, "/home/me/one", writable=True)
GIT = Operation(layout.BIND, "/home/me/one/.git", source="/state/git", nested=True, makes=False)
TEMP = Operation(layout.PRIVATE, "/tmp", text="/state/tmp")
SESSION = (USR, TEMP, WORKTREE, GIT, LINK)
COMMON = frozenset({("bind", "/usr", ""), ("link", "/bin", "usr/bin")})


def parts(*operations: Operation) -> list[early.Part]:
    return [found for found in map(early.part, operations) if found is not None]


def test_only_what_no_session_owns_is_made_early() -> None:
    """Read-only trees at their own paths and links are; nothing writable, shown elsewhere, inside of trees, in /tmp."""
    assert frozenset(parts(*SESSION)) == COMMON
    other = Operation(layout.BIND, "/data", source="/elsewhere")
    assert not parts(other, Operation(layout.BIND, "/tmp/data"), Operation(layout.BIND, "/"), TEMP)
    assert not parts(Operation(layout.LINK, "/var/tmp/x", text="y"), Operation(layout.PROTECT, "/home/me/one/f"))


def test_what_is_left_is_the_sessions_own() -> None:
    """The rest stays in its order; with nothing made early, it is all."""
    assert early.remaining(COMMON, SESSION) == (TEMP, WORKTREE, GIT)
    assert early.remaining(frozenset(), SESSION) == SESSION


def test_a_view_that_shows_more_than_the_session_may_see_is_not_its() -> None:
    """One tree too many, the same tree for writing, or a link that leads elsewhere."""
    assert early.remaining(COMMON | {("bind", "/srv", "")}, SESSION) is None
    assert early.remaining(COMMON, (Operation(layout.BIND, "/usr", writable=True), WORKTREE, LINK)) is None
    assert early.remaining(COMMON, (USR, WORKTREE, Operation(layout.LINK, "/bin", text="else"))) is None


def test_a_view_whose_link_is_in_the_way_is_not_the_sessions() -> None:
    """Mount points are made before links, where a session's view is made in one go."""
    below = Operation(layout.BIND, "/bin/tool")
    assert early.remaining(COMMON, (USR, WORKTREE, below, LINK)) is None
    beside = Operation(layout.BIND, "/binary")
    assert early.remaining(COMMON, (USR, WORKTREE, beside, LINK)) == (WORKTREE, beside)


def recipe(*paths: str, flags: int = 1) -> Recipe:
    return flags, None, 0, tuple(("bind", path, "") for path in paths)


def test_a_recipe_for_several_sessions_has_what_they_share() -> None:
    """The later one decides, where they have little or no more than a name in common."""
    one, two = recipe("/etc/a", "/usr", "/one"), recipe("/etc/a", "/usr", "/two")
    assert common(None, one) == one
    assert common(one, two) == recipe("/etc/a", "/usr")
    assert common(recipe("/etc/a", "/usr"), one) == recipe("/etc/a", "/usr")
    assert common(recipe("/one"), two) == two
    assert common(one, recipe("/etc/a", "/usr", flags=2)) == recipe("/etc/a", "/usr", flags=2)
