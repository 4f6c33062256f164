"""Single values: paths, units, variable names, patterns."""

from collections.abc import Callable

import pytest

from policy.config import values


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("/srv/data", "/srv/data"),
        ("/srv//data/./x/", "/srv/data/x"),
        ("/", "/"),
        ("~", "/home/u"),
        ("~/x", "/home/u/x"),
        ("x/y", "/repo/x/y"),
        ("./~odd", "/repo/~odd"),
        ("../other", "/repo/../other"),
        ("/a/$", "/a/$"),
        ("/routes/[id]", "/routes/[id]"),
        ("/odd/\udcff", "/odd/\udcff"),
    ],
)
def test_a_path_becomes_absolute(written: str, expected: str) -> None:
    """Home and base directory are filled in; .. is left to the kernel, which knows the links."""
    assert values.path(written, "/repo", "/home/u") == expected


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("~root/x", "another user"),
        ("$HOME/x", "variable"),
        ("/x/${HOME}", "variable"),
        ("/x/$(id)", "variable"),
        ("*.env", "wildcard"),
        ("secret?", "wildcard"),
        ("/" + "a" * 4095, "longer"),
        (3, "a number"),
        (None, "nothing"),
    ],
)
def test_a_path_that_would_not_mean_what_it_says_is_refused(written: object, reason: str) -> None:
    """A deny rule with a wildcard that is never expanded would protect nothing."""
    with pytest.raises(ValueError, match=reason):
        values.path(written, "/repo", "/home/u")


def test_relative_and_home_paths_need_a_base() -> None:
    """Where there is no project, or no one user, such a path has no meaning."""
    with pytest.raises(ValueError, match="relative"):
        values.path("x", None, "/home/u")
    with pytest.raises(ValueError, match="no meaning"):
        values.path("~/x", None, None)
    assert values.path("~/x", None, "/home/u") == "/home/u/x"


@pytest.mark.parametrize(
    ("check", "written", "expected"),
    [
        (values.size, 512, 512),
        (values.size, "512", 512),
        (values.size, "512M", 512 << 20),
        (values.size, "2g", 2 << 30),
        (values.size, "1KiB", 1024),
        (values.size, "1T", 1 << 40),
        (values.size, "unlimited", None),
        (values.seconds, 600, 600),
        (values.seconds, "90s", 90),
        (values.seconds, "10m", 600),
        (values.seconds, "2h", 7200),
        (values.seconds, "1d", 86400),
        (values.count, 4096, 4096),
        (values.count, "4096", 4096),
        (values.count, "unlimited", None),
    ],
)
def test_a_limit_has_one_canonical_unit(check: Callable[[object], int | None], written: object, expected: int) -> None:
    """Bytes, seconds or a count."""
    assert check(written) == expected


@pytest.mark.parametrize("check", [values.size, values.seconds, values.count])
@pytest.mark.parametrize(
    "written",
    [0, -1, True, 1.5, "", "M", "1.5G", "1 G", "-1", "0", "1e3", "10MB", "1ib", "1w", [], 1 << 63, "9" * 19, "१"],
)
def test_a_limit_in_an_unclear_unit_is_refused(check: Callable[[object], int | None], written: object) -> None:
    """MB could mean two numbers, 0 would end everything, and a boolean is no number."""
    with pytest.raises(ValueError, match=r"must|not"):
        check(written)


def test_units_do_not_cross() -> None:
    """M is minutes for times and mebibytes for sizes, and a count has none."""
    assert values.size("1m") == 1 << 20
    assert values.seconds("1M") == 60
    with pytest.raises(ValueError, match="whole number"):
        values.count("1m")
    with pytest.raises(ValueError, match="powers of 1024"):
        values.size("1h")


@pytest.mark.parametrize("name", ["A", "_x", "LC_*", "CLICOLOR*", "AWS_*", "LD_PRELOAD", "PYTHONPATH", "GIT_DIR"])
def test_a_variable_may_be_named_in_full_or_by_a_harmless_prefix(name: str) -> None:
    """A dangerous variable passes when somebody names exactly it."""
    assert values.variable_pattern(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "*", "L*", "LD_*", "LD_PRE*", "PYTHON*", "P*", "NODE_*", "GIT_*", "G*", "BASH_*", "SSH_*", "PADDOCK_*",
        "", "A-B", "1A", "A B", "A=1", "A*B", "**", "A**", "Ä", "A\0", "A\n", 1,
    ],
)  # fmt: skip
def test_a_prefix_that_covers_a_dangerous_variable_is_refused(name: object) -> None:
    """So is everything that is no variable's name."""
    with pytest.raises(ValueError, match=r"."):
        values.variable_pattern(name)


@pytest.mark.parametrize("name", sorted(values.DANGEROUS_NAMES))
def test_no_accepted_prefix_can_match_a_dangerous_name(name: str) -> None:
    """Every proper prefix of it is refused."""
    for length in range(1, len(name) + 1):
        with pytest.raises(ValueError, match="would pass"):
            values.variable_pattern(name[:length] + "*")


@pytest.mark.parametrize("text", [".envrc", ".vscode/*.json", "*.code-workspace", "a/b/c", "hooks/"])
def test_a_pattern_is_relative_to_the_root(text: str) -> None:
    """A trailing slash is dropped."""
    assert values.pattern(text) == text.rstrip("/")


@pytest.mark.parametrize("text", ["", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "**/x", "a**", "a\0", "*/*/*", 1])
def test_a_pattern_that_leaves_the_root_or_has_no_depth_is_refused(text: object) -> None:
    """** is refused instead of being read as *."""
    with pytest.raises(ValueError, match=r"."):
        values.pattern(text)


def test_access_letters_have_one_order() -> None:
    """As in the Plan."""
    assert [values.access(text) for text in ("r", "rw", "rwi", "rwx")] == ["r", "rw", "rwi", "rwx"]
    for text in ("", "w", "wr", "rwz", "rr"):
        with pytest.raises(ValueError, match="is not r"):
            values.access(text)


def test_names_of_secrets_are_recognized() -> None:
    """So that their values are not shown."""
    assert all(map(values.looks_secret, ("API_KEY", "gh_token", "DB_PASSWORD", "DATABASE_URL", "AWS_SECRET_ACCESS")))
    assert not any(map(values.looks_secret, ("LANG", "TERM", "APP_MODE")))


@pytest.mark.parametrize(
    ("check", "text", "canonical"),
    [
        (values.loopback, "5432", "127.0.0.1:5432"),
        (values.loopback, "localhost:5432", "127.0.0.1:5432"),
        (values.loopback, "127.0.0.2:5432", "127.0.0.2:5432"),
        (values.loopback, "[::1]:5432", "[::1]:5432"),
        (values.published, "8080", "127.0.0.1:8080:8080"),
        (values.published, "8080:3000", "127.0.0.1:8080:3000"),
        (values.published, "localhost:8080:3000", "127.0.0.1:8080:3000"),
        (values.published, "[::1]:8080", "[::1]:8080:8080"),
        (values.domain, "@python", "@python"),
        (values.domain, "GET Example.com/a/", "GET example.com/a"),
    ],
)
def test_a_network_grant_has_one_form(check: Callable[[object], str], text: str, canonical: str) -> None:
    """It is written in full, and means the same again."""
    assert check(text) == canonical
    assert check(canonical) == canonical


@pytest.mark.parametrize("check", [values.loopback, values.published])
@pytest.mark.parametrize(
    "text",
    ["", "0", "http", "0.0.0.0:80", "192.168.1.1:80", "[::]:80", "example.com:80", "127.0.0.0/8:80", "70000"],
)
def test_what_is_not_the_loopbacks_is_no_local_port(check: Callable[[object], str], text: str) -> None:
    """It would reach, or open, more than this machine."""
    with pytest.raises(ValueError):
        check(text)


def test_an_unknown_bundle_is_no_domain() -> None:
    """The nearest one is named."""
    with pytest.raises(ValueError, match="bundle"):
        values.domain("@pyhton")
