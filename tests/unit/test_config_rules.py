"""Patterns, and settings in the shape that derive takes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from policy.config import layer
from policy.config.layer import Kind, Layer
from policy.config.settings import expand, fits, resolve, rules_of
from policy.config.values import Base, Configuration
from policy.tables import checked


class Listings:
    """A host that only knows listings, and remembers which it was asked for."""

    def __init__(self, table: dict[str, tuple[str, ...]]) -> None:
        self.table = table
        self.asked: list[str] = []

    def listing(self, path: str) -> tuple[str, ...] | None:
        self.asked.append(path)
        return self.table.get(path)

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in self.table.get(directory, ()) if name in names or name.endswith(suffixes))


def test_a_pattern_expands_component_by_component() -> None:
    """A wildcard never crosses a slash, and a directory that cannot be listed gives nothing."""
    host = Listings({"/etc": ("java-11", "java-17", "javax", "x"), "/etc/java-17": ("a.conf", "b"), "/": ("etc",)})
    assert expand("/etc/java-*", host.listing) == ("/etc/java-11", "/etc/java-17")
    assert expand("/etc/java-??/*.conf", host.listing) == ("/etc/java-17/a.conf",)
    assert expand("/*/x", host.listing) == ("/etc/x",)
    assert expand("/none/*", host.listing) == ()


def test_a_path_without_wildcard_stands_for_itself() -> None:
    """Nothing is asked, so nothing becomes an input of the plan."""
    host = Listings({})
    assert expand("/etc/hosts", host.listing) == ("/etc/hosts",)
    assert expand("/a*b/repo/x", host.listing, len("/a*b/repo")) == ("/a*b/repo/x",)
    assert host.asked == []


def test_only_star_and_question_mark_are_special() -> None:
    """Brackets, dots and newlines are ordinary characters of a name."""
    assert fits("[id].t?x*", "[id].tsx\n")
    assert not fits("[id].txt", "i.txt")
    assert not fits("a.b", "aXb")


@given(st.text(alphabet="ab*?", max_size=12), st.text(alphabet="ab", max_size=12))
def test_a_component_fits_as_a_regular_expression_would(pattern: str, name: str) -> None:
    """The hand-written matcher agrees with the obvious one."""
    expression = pattern.replace("*", ".*").replace("?", ".")
    assert fits(pattern, name) == bool(re.fullmatch(expression, name))


def test_a_hostile_pattern_takes_no_time() -> None:
    """The obvious expression would not end in this century."""
    assert not fits("*a" * 100 + "b", "a" * 255)
    assert fits("*a" * 100 + "*b", "a" * 255 + "b")


def test_rules_have_the_shape_that_derive_takes() -> None:
    """Values with their sources as text, patterns replaced by what exists."""
    options: dict[str, str | list[str] | bool] = {
        "--rw": ["/w"],
        "--ro": ["/r"],
        "--deny": ["/d"],
        "--net": "open",
        "--env": ["CI", "A=b"],
        "--limit": ["disk=5"],
    }
    settings = resolve([layer.shipped(), layer.layer(options, cwd="/", home="/")])
    host = Listings({"/etc": ("java-17-openjdk", "passwd"), "/repo": ("x.code-workspace", ".envrc", "package.json")})
    found = rules_of(settings, "/repo", host)
    assert (found.read, found.write, found.deny) == ((("/r", "--ro"),), (("/w", "--rw"),), (("/d", "--deny"),))
    assert ("/usr", "default") in found.system_trees
    assert {("/etc/java-17-openjdk", "default"), ("/etc/passwd", "default"), ("/proc", "default")} <= set(
        found.system_files
    )
    assert not any("*" in path for path, _ in found.system_files)
    assert ("/dev/null", "rwi", "default") in found.devices
    assert (found.net, found.git, found.backend) == ("open", "auto", "auto")
    assert found.env_pass[-1] == "CI"
    assert ("A", "b") in found.env_set
    assert ("disk", 5) in found.limits
    assert {"x.code-workspace", ".envrc"} <= set(found.handoff_protect)
    assert "package.json" in found.handoff_report
    assert found.warnings == ()


def test_a_name_that_is_protected_and_reported_is_protected() -> None:
    """Also when two different patterns meet in it."""
    patterns = {"handoff": {"report": ["*.code-workspace"], "protect": ["my.*"]}}
    content = checked(Configuration, patterns, Base(None, None))
    settings = resolve([layer.shipped(), Layer(Kind.USER, "/u.toml", content)])
    found = rules_of(settings, "/repo", Listings({"/repo": ("my.code-workspace", "other.code-workspace")}))
    assert "my.code-workspace" in found.handoff_protect
    assert "my.code-workspace" not in found.handoff_report
    assert "other.code-workspace" in found.handoff_report
