"""What a Plan says about a path, held against a model that knows nothing but the words of its definition."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.plan import VERSION, Plan
from policy.promises import NESTED
from policy.remedy import remedy
from policy.verdict import decide

PATHS = ("/", "/w", "/w/a", "/w/a/b", "/w/a/b/c", "/w/ab", "/w/a b", "/x", "/x/y", "@home", "@home/a")
QUESTIONS = (*[path for path in PATHS if path[0] == "/"], "/w/a/b/c/d", "/nowhere")
ACCESS = st.sampled_from(["r", "rx", "rw", "rwx", "rwxi", "w", "x", "i"])
SOURCE = st.sampled_from(["worktree", "--ro", NESTED])
PAIRS = st.lists(st.tuples(st.sampled_from(PATHS[:-2]), st.just("--deny")), max_size=3).map(tuple)


def plan(**fields: object) -> Plan:
    empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    return Plan(**(empty | {"version": VERSION, "worktree": "/w"} | fields))


def above(path: str) -> list[str]:
    """The path and all that is above it, by its components."""
    parts = path.split("/")
    return ["/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)]


def model(grants: list[tuple[str, str, str]], denied: list[str], read_only: list[str], path: str) -> set[str]:
    """The definition: all grants above add up; what is denied above takes everything, unless a granted submodule lies
    between it and the path; what is read-only above takes writing."""
    chain = above(path)
    access = {letter for where, letters, _ in grants if where in chain for letter in letters}
    nested = [chain.index(where) for where, _, source in grants if where in chain and source == NESTED]
    closed = [chain.index(where) for where in denied if where in chain]
    if any(at > max(nested, default=-1) for at in closed):
        return set()
    return access - {"w"} if any(where in chain for where in read_only) else access


@given(
    grants=st.lists(st.tuples(st.sampled_from(PATHS), ACCESS, SOURCE), max_size=5).map(tuple),
    denied=PAIRS,
    read_only=PAIRS,
)
def test_the_verdict_is_what_the_definition_says(
    grants: tuple[tuple[str, str, str], ...],
    denied: tuple[tuple[str, str], ...],
    read_only: tuple[tuple[str, str], ...],
) -> None:
    """For every path and every combination of grants and exceptions."""
    subject = plan(grants=grants, denied=denied, read_only=read_only)
    for path in QUESTIONS:
        expected = model(list(grants), [where for where, _ in denied], [where for where, _ in read_only], path)
        if any(where == path and source == NESTED for where, _, source in grants) and path in dict(denied):
            continue  # a plan never denies and grants the same submodule
        assert set(decide(subject, path).access) == expected, path


def test_rules_and_limits_come_nearest_first() -> None:
    """The first line explains most."""
    found = decide(
        plan(
            grants=(("/", "r", "one"), ("/w/a", "rx", "two")),
            denied=(("/w", "--deny"), ("/w/a/b", "--deny")),
            read_only=(("/w/a", "git"),),
        ),
        "/w/a/b",
    )
    assert [path for path, _, _ in found.rules] == ["/w/a", "/"]
    assert [path for path, _, _ in found.limits] == ["/w/a/b", "/w/a", "/w"]


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, "--ro '/a b' (read and execute) or --rw '/a b' (write too)"),
        ({"grants": (("/a b", "r", "s"),)}, "--rw '/a b' (to write too)"),
        ({"grants": (("/a b", "rw", "s"),)}, ""),
        ({"denied": (("/a b", "--deny"),)}, "leave out --deny '/a b'"),
        (
            {"denied": (("/a b", "submodule x is not granted"),)},
            "change what makes '/a b' denied: submodule x is not granted",
        ),
    ],
)
def test_the_hint_says_what_would_allow_it(fields: dict[str, object], hint: str) -> None:
    """Ready to paste, quoted for the shell; nothing where everything is allowed."""
    assert decide(plan(**fields), "/a b").hint == hint


def test_the_hint_for_what_a_tool_looks_for_at_home_names_the_variable() -> None:
    """The jail's ~ is a home of its own: a grant alone would not be found. Of narrowed paths the longest counts."""
    hint = decide(plan(), "/home/me/.npmrc").hint
    assert hint.startswith("--ro /home/me/.npmrc --env NPM_CONFIG_USERCONFIG=/home/me/.npmrc (")
    grants, narrowed = (("/w", "rwx", "worktree"),), (("/w/a", "r", "--ro"), ("/w/a/b", "w", "--rw"))
    found = plan(grants=grants, narrowed=narrowed)
    assert decide(found, "/w/a/c").hint == "leave out --ro /w/a, or add --rw /w/a/c"
    assert [decide(found, path).access for path in ("/w", "/w/a", "/w/a/b/x")] == ["rwx", "rx", "rwx"]


def test_a_name_of_two_lines_is_granted_on_one() -> None:
    """As a word of a shell's, and as a string of the configuration's."""
    found = remedy(plan(), "/a\nb", "w")
    assert found.flag == "--rw $'/a\\012b'"
    assert tomllib.loads(found.toml) == {"filesystem": {"write": ["/a\nb"]}}
    assert found.flag in decide(plan(), "/a\nb").hint


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/home/u/.ssh", "keys"),
        ("/home/u/.ssh/id", "keys"),
        ("/etc/shadow", "password"),
        ("/run/docker.sock", "root"),
        ("/w/.git/hooks/x", "hooks"[:4]),
        ("/shop/.env", "passwords"),
        ("/shop/.env.production", "passwords"),
    ],
)
def test_the_risk_of_a_grant_is_told(path: str, word: str) -> None:
    """Paths whose opening has consequences are known by their name."""
    assert word in decide(plan(), path).risk or "programmes" in decide(plan(), path).risk


def test_an_ordinary_path_has_no_risk() -> None:
    """A name that only begins like a dangerous one is ordinary."""
    assert decide(plan(), "/home/u/.sshd/x").risk == ""
    assert [decide(plan(), f"/s/{name}").risk for name in (".env.example", ".env.sample", ".env.template")] == [""] * 3
    assert decide(plan(), "/s/.environment").risk == ""


def test_words_for_people_name_rule_and_source() -> None:
    """`describe` shows what is granted, by what, and what takes it away."""
    lines = decide(plan(grants=(("/w", "rwx", "worktree"),), read_only=(("/w/a", "git pointer"),)), "/w/a").describe()
    assert lines[0] == "/w/a: read, execute"
    assert "  granted by  /w (read, write, execute): it is the worktree" in lines
    assert any(line.startswith("  read-only   /w/a: ") and "git" in line for line in lines)


def test_nothing_granted_is_said_so() -> None:
    """Without any rule the reason is that there is none."""
    lines = decide(plan(), "/x").describe("the wall")
    assert lines[:3] == [
        "/x: denied",
        "  decided by  no rule: what is not granted is denied",
        "  held by     the wall",
    ]
