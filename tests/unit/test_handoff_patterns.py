"""Hand-off files among the files that a piece of work changed."""

import pytest

from policy.handoff import Patterns

PATTERNS = Patterns((
    (".envrc", "protect"),
    (".vscode/tasks.json", "protect"),
    (".husky", "protect"),
    ("*.code-workspace", "protect"),
    (".github/workflows", "report"),
    ("package.json", "report"),
    ("[id]", "report"),
    ("a?c", "report"),
))  # fmt: skip


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (".envrc", "protect"),
        ("deep/er/.envrc", "protect"),
        (".envrc.example", None),
        (".vscode/tasks.json", "protect"),
        ("tasks.json", None),
        (".husky/pre-commit", "protect"),
        (".husky/_/husky.sh", "protect"),
        ("x/my.code-workspace", "protect"),
        (".github/workflows/ci.yml", "report"),
        (".github/dependabot.yml", None),
        ("packages/one/package.json", "report"),
        ("package.json.md", None),
        ("[id]", "report"),
        ("i", None),
        ("abc", "report"),
        ("abbc", None),
        (".gitattributes", "report"),
        ("src/.gitattributes", "report"),
        (".gitmodules", "report"),
        ("src/main.c", None),
        (".github/workflows/.envrc", "protect"),
    ],
)
def test_a_name_counts_in_every_directory_and_only_whole(path: str, mode: str | None) -> None:
    """A pattern is about its name and all below it, wherever that is; the stricter mode wins."""
    assert PATTERNS.mode(path) == mode


def test_what_git_obeys_counts_without_any_pattern() -> None:
    """An empty configuration cannot make drivers and submodules disappear from the report."""
    assert Patterns(()).mode("src/.gitattributes") == "report"
    assert Patterns(()).mode(".envrc") is None
