"""The Plan as data: it goes through marshal and back, and is bound to a session without being changed."""

import marshal
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import promises
from policy.keys import parse_key
from policy.plan import SLOTS, VERSION, Plan, beneath
from tests.support.install import ROOT

KEY = parse_key("TOKEN=https://api.example.com/v1,method=POST")

FIELDS: dict[str, object] = {
    "version": VERSION,
    "worktree": "/srv/tree",
    "worktree_id": "tree-1",
    "cwd": "/srv/tree/src",
    "provider": "",
    "provider_source": "",
    "dialect": "native",
    "program": "/usr/bin/true",
    "command": "true",
    "arguments": ("--flag",),
    "arguments_unless": (),
    "review": False,
    "cow": False,
    "root": "",
    "follow": True,
    "narrowed": (("/srv/tree/docs", "r", "--ro"),),
    "sign": True,
    "logins": (),
    "arguments_at": 1,
    "grants": (("/srv/tree", "rwx", "worktree"), ("@home", "rwx", "home"), ("@tmp/x", "rw", "temp")),
    "links": (("/bin", "usr/bin"),),
    "denied": (("/srv/tree/secret", "--deny"),),
    "read_only": (("/srv/tree/.vscode/tasks.json", "hand-off"),),
    "binds": (("@git/git", "/srv/tree/.git", "rwx"),),
    "brought": (("/home/me/dotfiles/bashrc", ".bashrc", "--bring"), ("", ".vimrc", "/etc/x bring.files")),
    "files": ((".npmrc", "registry=https://mirror.example.com/\n"),),
    "authorities": (("PIP_CERT", "/home/me/ca.pem"),),
    "handoff": ((".vscode/tasks.json", "protect"),),
    "handoff_patterns": ((".vscode/tasks.json", "protect"), ("Makefile", "report")),
    "net": "none",
    "domains": (),
    "domains_denied": (),
    "internal": ("mirror.example.com:443",),
    "ask": "auto",
    "notify": "beep",
    "keys": (tuple(KEY),),
    "budget": (("tokens", 2_000_000),),
    "named_ports": (443,),
    "routes": ("198.18.0.0/15",),
    "server_name": "match",
    "reach": (),
    "publish": (),
    "env_pass": ("PATH", "LC_*"),
    "env_set": (("HOME", "${home}"), ("TMPDIR", "${tmp}/a:${home}")),
    "limits": (("processes", 100),),
    "git": "readonly",
    "repositories": (("", "/srv/tree", "/srv/tree/.git", "/srv/tree/.git", "", "sha1", ("/srv/tree/.git/objects",)),),
    "nested": ("/srv/tree/own/.git",),
    "bounds": (("memory", 75),),
    "left_open": (("/srv/tree", "/srv/tree/.git", "/srv/tree/library"),),
    "backend": "landlock+guard",
    "required": ("reads", "writes"),
    "warnings": ("look out",),
}


def plan(**changes: object) -> Plan:
    """The example plan with some fields changed."""
    return Plan(**(FIELDS | changes))


def test_a_plan_survives_marshal() -> None:
    """What the cache writes is what the launch reads."""
    data: Any = plan().to_data()
    assert Plan.from_data(marshal.loads(marshal.dumps(data))) == plan()


def test_plans_that_differ_in_one_field_are_unequal() -> None:
    """Equality looks at every field."""
    assert plan() == plan()
    for name in Plan.FIELDS:
        assert plan(**{name: "something else"}) != plan()


def test_a_plan_is_not_hashable() -> None:
    """Data that came from a file may hold lists; a plan is no key."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan())


@pytest.mark.parametrize("name", Plan.FIELDS)
def test_no_field_may_be_left_out(name: str) -> None:
    """A missing field is an error of the caller, told by its name."""
    with pytest.raises(TypeError, match=name):
        Plan(**{key: value for key, value in FIELDS.items() if key != name})


def test_no_unknown_field_is_accepted() -> None:
    """A misspelt field is an error too, and no attribute can be invented later."""
    with pytest.raises(TypeError, match="nett"):
        plan(nett="none")
    with pytest.raises(AttributeError):
        plan().nett = "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [
        None,
        (),
        [],
        {},
        "text",
        (VERSION,),
        plan().to_data()[:-1],
        (*plan().to_data(), "more"),
        list(plan().to_data()),
        (VERSION + 1, *plan().to_data()[1:]),
    ],
    ids=repr,
)
def test_data_of_another_version_or_shape_is_no_plan(data: object) -> None:
    """An old cache file is discarded, not interpreted."""
    assert Plan.from_data(data) is None


def test_replace_changes_the_copy_only() -> None:
    """The original stays as it was."""
    first = plan()
    second = first.replace(net="open")
    assert (first.net, second.net) == ("none", "open")
    assert second == plan(net="open")


def test_binding_puts_the_sessions_paths_into_grants_and_environment() -> None:
    """Slots stand for paths that are known at launch only."""
    bound = plan().bind({"home": "/state/h", "tmp": "/state/t", "git": "/state/g"})
    assert bound.grants == (
        ("/srv/tree", "rwx", "worktree"),
        ("/state/h", "rwx", "home"),
        ("/state/t/x", "rw", "temp"),
    )
    assert bound.env_set == (("HOME", "/state/h"), ("TMPDIR", "/state/t/a:/state/h"))
    assert plan().grants[1][0] == "@home"


def test_an_unknown_slot_cannot_be_bound() -> None:
    """A slot without a path is an error, never an empty path."""
    with pytest.raises(KeyError):
        plan().bind({"home": "/state/h"})
    with pytest.raises(KeyError):
        plan(env_set=(), grants=(("@nowhere", "r", "x"),)).bind(dict.fromkeys(SLOTS, "/x"))


def test_an_absolute_path_is_never_taken_for_a_slot() -> None:
    """Only a path that begins with the sign is a slot; a directory may be called @home."""
    bound = plan(grants=(("/srv/@home", "r", "x"),)).bind(dict.fromkeys(SLOTS, "/state"))
    assert bound.grants == (("/srv/@home", "r", "x"),)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0, ["--flag", "true", "a", "b"]),
        (1, ["true", "--flag", "a", "b"]),
        (2, ["true", "a", "--flag", "b"]),
        (3, ["true", "a", "b", "--flag"]),
        (-1, ["true", "a", "b", "--flag"]),
    ],
)
def test_the_providers_flags_stand_where_the_provider_wants_them(at: int, words: list[str]) -> None:
    """The position counts words of the whole command line; -1 is its end."""
    assert plan(arguments_at=at).argv(("a", "b")) == words


def test_without_flags_the_command_line_is_the_callers_own() -> None:
    """A plain command gets nothing added."""
    assert plan(arguments=()).argv(("a", "", "b")) == ["true", "a", "", "b"]


def test_a_description_names_every_decision() -> None:
    """Whoever reads `explain --plan` sees each grant, exception, variable, limit and warning."""
    text = "\n".join(plan(net="proxy", domains=(("example.com", "--allow-domain"),), provider="codex").describe())
    for fact in ("/srv/tree", "@home", "/srv/tree/secret", "tasks.json", "LC_*", "TMPDIR=${tmp}/a", "processes 100"):
        assert fact in text
    for fact in ("codex", "native", "example.com", "readonly", "landlock", "reads writes", "look out", "/usr/bin/true"):
        assert fact in text


@pytest.mark.parametrize(
    ("path", "root", "verdict"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/", "/a", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("/a", "/a/b", False),
    ],
)
def test_beneath_compares_components(path: str, root: str, verdict: bool) -> None:
    """A sibling whose name begins alike is outside."""
    assert beneath(path, root) is verdict


NAMES = st.lists(st.text("ab.", min_size=1, max_size=2), max_size=4)


@given(NAMES, NAMES)
def test_beneath_agrees_with_a_comparison_of_lists(path: list[str], root: list[str]) -> None:
    """Textual comparison and comparison of components give the same answer."""
    assert beneath("/" + "/".join(path), "/" + "/".join(root)) is (path[: len(root)] == root)


def test_the_plan_module_imports_nothing() -> None:
    """Loading a plan costs its own file only."""
    program = "import sys; before = set(sys.modules); import policy.plan; print(*sorted(set(sys.modules) - before))"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["policy", "policy.plan"]


def test_every_exception_in_the_table_of_promises_names_a_backend_and_a_reason() -> None:
    """A row is held, or not held for a reason that can be shown."""
    known = {promises.NAMESPACES, promises.GUARD, promises.BUBBLEWRAP}
    assert len({name for name, _, _ in promises.ROWS}) == len(promises.ROWS)
    for name, promised, _ in promises.ROWS:
        assert promised
        for backend in known:
            verdict, reason = promises.verdict(name, backend)
            assert (verdict == promises.HELD) is (reason == "")


def test_what_a_backend_does_not_hold_is_not_required_of_it() -> None:
    """The requirement follows the verdict, row by row."""
    required = promises.required_rows(promises.GUARD)
    assert "reads" in required
    for name, _, _ in promises.ROWS:
        assert (name in required) is (promises.verdict(name, promises.GUARD)[0] == promises.HELD)


def test_an_unknown_row_is_an_error() -> None:
    """A misspelt id cannot pass for a promise that is kept."""
    with pytest.raises(KeyError):
        promises.verdict("raeds", promises.GUARD)


def test_arguments_are_left_out_where_the_caller_gives_what_stands_for_them() -> None:
    """A flag of the caller's anywhere in front of `--`, with a value or without; a sub-command behind the programme."""
    made = plan().replace(
        command="agent",
        arguments=("-a",),
        arguments_unless=((("--mode=x",), ("--mode", "-y")), (("-d", "dir"), ("mcp",))),
        arguments_at=1,
    )
    all_of_them = ["agent", "-a", "--mode=x", "-d", "dir"]
    for caller in ((), ("hi",), ("hi", "mcp"), ("--modern",), ("--", "--mode", "z"), ("hi", "y")):
        assert made.argv(caller) == [*all_of_them, *caller]
    for caller in (("--mode", "z"), ("p", "--mode=z"), ("-y",)):
        assert made.argv(caller) == ["agent", "-a", "-d", "dir", *caller]
    assert made.argv(("mcp", "list")) == ["agent", "-a", "--mode=x", "mcp", "list"]
    assert made.replace(arguments_at=3).argv(("-u", "env", "mcp")) == [
        "agent", "-u", "env", "-a", "--mode=x", "mcp",
    ]  # fmt: skip
