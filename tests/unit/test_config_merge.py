"""Precedence, sources, and the rule that an untrusted layer only tightens."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.config import layer
from policy.config.layer import Kind, Layer
from policy.config.settings import GIT_TIGHTER, NETWORK_STRICTNESS, Settings, resolve
from policy.config.values import Base, Configuration
from policy.errors import Refusal
from policy.tables import checked

DEFAULT = layer.shipped()


def made(kind: Kind, tables: Mapping[str, object], *, trusted: bool = True) -> Layer:
    """A layer of a file named after its kind."""
    content = checked(Configuration, dict(tables), Base("/p", "/home/u"))
    return Layer(kind, f"/{kind.name.lower()}.toml", content, trusted)


def test_the_last_layer_decides_single_values() -> None:
    """default < /etc < user < project < --config < flags, for each of them in turn."""
    order = [Kind.SYSTEM, Kind.USER, Kind.PROJECT, Kind.FILE]
    values = ["open", "proxy", "open", "proxy"]
    layers = [DEFAULT]
    assert resolve(layers).network_mode.value == "auto"
    for kind, value in zip(order, values, strict=True):
        layers.append(made(kind, {"network": {"mode": value}}))
        found = resolve(layers).network_mode
        assert (found.value, str(found.source)) == (value, f"/{kind.name.lower()}.toml network.mode")
    layers.append(layer.layer({"--net": "none"}, cwd="/", home="/"))
    found = resolve(layers).network_mode
    assert (found.value, str(found.source)) == ("none", "--net")


def test_a_layer_that_says_nothing_changes_nothing() -> None:
    """The value below stays, with its source."""
    layers = [DEFAULT, made(Kind.USER, {"git": {"mode": "shared"}}), made(Kind.FILE, {})]
    assert str(resolve(layers).git_mode.source) == "/user.toml git.mode"


def test_lists_accumulate_and_each_entry_knows_its_source() -> None:
    """A value that two layers name appears once, with the lower one as its source."""
    layers = [
        DEFAULT,
        made(Kind.SYSTEM, {"filesystem": {"read": ["/a"]}}),
        made(Kind.USER, {"filesystem": {"read": ["/a", "/b"]}}),
        layer.layer({"--ro": ["/c"]}, cwd="/", home="/"),
    ]
    assert [(entry.value, str(entry.source)) for entry in resolve(layers).read] == [
        ("/a", "/system.toml filesystem.read"),
        ("/b", "/user.toml filesystem.read"),
        ("/c", "--ro"),
    ]


def test_a_denied_path_stays_denied_whoever_grants_it() -> None:
    """No layer can take a deny entry back."""
    layers = [
        DEFAULT,
        made(Kind.SYSTEM, {"filesystem": {"deny": ["/a"]}}),
        layer.layer({"--rw": ["/a"]}, cwd="/", home="/"),
    ]
    found = resolve(layers)
    assert [entry.value for entry in found.deny] == ["/a"]
    assert [entry.value for entry in found.write] == ["/a"]


def test_limits_and_variables_are_replaced_one_by_one() -> None:
    """A higher layer replaces the names it has, and 'unlimited' removes a bound."""
    layers = [
        DEFAULT,
        made(Kind.USER, {"limits": {"memory": "1G", "disk": 5}, "environment": {"set": {"A": "1", "B": "2"}}}),
        layer.layer({"--limit": ["memory=unlimited", "disk=6"], "--env": ["A=3"]}, cwd="/", home="/"),
    ]
    found = resolve(layers)
    assert {entry.value: str(entry.source) for entry in found.limits} == {
        ("disk", 6): "--limit",
        ("processes", 16384): "default",
    }
    assert ("A", "3") in [entry.value for entry in found.env_set]
    assert ("B", "2") in [entry.value for entry in found.env_set]


def test_the_last_layer_decides_how_a_handoff_pattern_is_treated() -> None:
    """A user may let an agent edit a file that is protected by default."""
    found = resolve([DEFAULT, made(Kind.USER, {"handoff": {"report": [".envrc"], "protect": ["Makefile"]}})])
    assert ".envrc" in [entry.value for entry in found.handoff_report]
    assert ".envrc" not in [entry.value for entry in found.handoff_protect]
    assert ("Makefile", "/user.toml handoff.protect") in [(e.value, str(e.source)) for e in found.handoff_protect]
    assert "Makefile" not in [entry.value for entry in found.handoff_report]


@pytest.mark.parametrize("layers", [[], [made(Kind.USER, {})], [DEFAULT, made(Kind.FILE, {}), made(Kind.USER, {})]])
def test_layers_out_of_order_are_a_mistake_of_the_caller(layers: list[Layer]) -> None:
    """It is not a Refusal: no user can cause it."""
    with pytest.raises(ValueError, match="out of order"):
        resolve(layers)


LOOSE: list[tuple[dict[str, Any], str]] = [
    ({"filesystem": {"read": ["/x"]}}, "filesystem.read: adds /x"),
    ({"filesystem": {"write": ["x"]}}, "filesystem.write: adds /p/x"),
    ({"filesystem": {"freeze_root": False}}, "filesystem.freeze_root: false instead of true"),
    ({"network": {"mode": "open"}}, "network.mode: open instead of proxy"),
    ({"network": {"allow_domains": ["evil.example"]}}, "network.allow_domains: adds evil.example"),
    ({"environment": {"pass": ["AWS_*"]}}, "environment.pass: adds 'AWS_*'"),
    ({"environment": {"set": {"PATH": "/tmp"}}}, "environment.set: sets PATH"),
    ({"git": {"mode": "shared"}}, "git.mode: shared instead of private"),
    ({"git": {"mode": "readonly"}}, "git.mode: readonly instead of private"),
    ({"git": {"sign": False}}, "git.sign: false instead of true"),
    ({"limits": {"memory": "2G"}}, "limits.memory: 2147483648 instead of 1073741824"),
    ({"limits": {"memory": "unlimited"}}, "limits.memory: unlimited instead of 1073741824"),
    ({"backend": {"choice": "bubblewrap"}}, "backend.choice: bubblewrap instead of auto"),
    ({"provider": {"name": "codex"}}, "provider.name: codex instead of auto"),
    ({"provider": {"logins": "exchange"}}, "provider.logins: exchange instead of copy"),
    ({"provider": {"keep_prompts": False}}, "provider.keep_prompts: false instead of true"),
    ({"bring": {"agents": True}}, "bring.agents: true instead of false"),
    ({"bring": {"files": ["~/.bashrc"]}}, "bring.files: adds ~/.bashrc"),
    ({"provider": {"dialect": "contract"}}, "provider.dialect: contract instead of native"),
    ({"handoff": {"report": [".envrc"]}}, "handoff.report: .envrc is protected"),
    ({"system": {"read_trees": ["/root"]}}, "system: describes the machine"),
]

BELOW = [
    DEFAULT,
    made(
        Kind.USER,
        {
            "filesystem": {"freeze_root": True},
            "network": {"mode": "proxy", "allow_domains": ["good.example"]},
            "git": {"mode": "private", "sign": True},
            "limits": {"memory": "1G"},
            "provider": {"keep_prompts": True, "logins": "copy"},
        },
    ),
]


@pytest.mark.parametrize(("tables", "line"), LOOSE)
@pytest.mark.parametrize("kind", [Kind.PROJECT, Kind.FILE])
def test_an_untrusted_layer_that_loosens_is_refused(tables: dict[str, Any], line: str, kind: Kind) -> None:
    """The Refusal names the key and the command that accepts the file; once trusted, the same layer counts."""
    with pytest.raises(Refusal) as caught:
        resolve([*BELOW, made(kind, tables, trusted=False)])
    assert caught.value.reference == "config-untrusted"
    assert line in caught.value.context.splitlines()
    assert caught.value.hint == f"read it, then: paddock trust /{kind.name.lower()}.toml"
    resolve([*BELOW, made(kind, tables)])


def test_every_loosening_key_is_listed_at_once() -> None:
    """Together, not one per attempt."""
    tables: dict[str, dict[str, Any]] = {}
    for table, _ in LOOSE:
        for name, keys in table.items():
            tables.setdefault(name, {}).update(keys)
    with pytest.raises(Refusal) as caught:
        resolve([*BELOW, made(Kind.PROJECT, tables, trusted=False)])
    shown = caught.value.context
    assert all(
        key in shown for key in ("filesystem.read", "network.mode", "environment.set", "limits.memory", "system")
    )
    assert "network.allow_domains: adds evil.example" in shown


def test_what_loosens_the_rules_is_one_row_and_whole() -> None:
    """An agent may have written it: a row of its own would look like Paddock's, and what is cut off is not read."""
    odd = "/a\n        paddock: nothing to read\u2028" + 400 * "x" + "/end"
    layer = made(Kind.PROJECT, {"filesystem": {"read": [odd]}, "network": {"notify": "b --c: d"}}, trusted=False)
    with pytest.raises(Refusal) as caught:
        resolve([*BELOW, layer])
    assert caught.value.context.split("\n")[1:] == [
        "filesystem.read: adds '/a\\n "
        + 6 * "\\x20"
        + "\\x20paddock:\\x20nothing to read\\u2028"
        + 400 * "x"
        + "/end'",
        "network.notify: 'b\\x20--c:\\x20d' instead of (none)",
    ]


def test_the_hint_is_quoted_for_the_shell() -> None:
    """It can be pasted, whatever the directory is called."""
    odd = Layer(Kind.PROJECT, "/a b;c/.paddock.toml", made(Kind.PROJECT, LOOSE[0][0]).content, False)
    with pytest.raises(Refusal) as caught:
        resolve([DEFAULT, odd])
    assert caught.value.hint.endswith("paddock trust '/a b;c/.paddock.toml'")


@pytest.mark.parametrize(
    "tables",
    [
        {"filesystem": {"deny": ["x"], "freeze_root": True}},
        {"network": {"mode": "none"}},
        {"network": {"mode": "proxy", "allow_domains": ["good.example"]}},
        {"git": {"mode": "private"}},
        {"limits": {"memory": "1G", "disk": "1G", "processes": 5}},
        {"backend": {"choice": "auto"}, "provider": {"name": "auto", "dialect": "native"}},
        {"environment": {"pass": ["PATH"], "set": {"GIT_CONFIG_NOSYSTEM": "1"}}},
        {"handoff": {"protect": ["hooks", "Makefile"], "report": ["scripts", "package.json"]}},
        {"filesystem": {"read": [], "write": []}},
    ],
)
def test_an_untrusted_layer_may_tighten_or_repeat(tables: dict[str, Any]) -> None:
    """What it says counts."""
    resolve([*BELOW, made(Kind.PROJECT, tables, trusted=False)])


def test_tightening_counts_and_the_user_has_the_last_word() -> None:
    """A project closes the network; an option of the same launch opens it again."""
    project = made(Kind.PROJECT, {"network": {"mode": "none"}, "filesystem": {"deny": ["s"]}}, trusted=False)
    found = resolve([*BELOW, project])
    assert (found.network_mode.value, [entry.value for entry in found.deny]) == ("none", ["/p/s"])
    assert resolve([*BELOW, project, layer.layer({"--net": "open"}, cwd="/", home="/")]).network_mode.value == "open"


def test_what_a_project_may_do_is_judged_against_the_layers_below_only() -> None:
    """A flag that opens the network does not let the project's file ask for it."""
    project = made(Kind.PROJECT, {"network": {"mode": "open"}}, trusted=False)
    with pytest.raises(Refusal):
        resolve([DEFAULT, project, layer.layer({"--net": "open"}, cwd="/", home="/")])


def _few(*values: object) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True)


PATHS = _few("/a", "/b", "~/c", "d")
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "filesystem": st.fixed_dictionaries(
            {}, optional={"read": PATHS, "write": PATHS, "deny": PATHS, "freeze_root": st.booleans()}
        ),
        "network": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(NETWORK_STRICTNESS),
                "allow_domains": _few("a.x", "b.x:1", "@python"),
                "deny_domains": _few("a.x", "POST c.x/upload"),
                "server_name": st.sampled_from(["match", "require"]),
                "reach": _few("5432", "[::1]:80"),
                "publish": _few("8080", "8080:80"),
            },
        ),
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "pass": _few("PATH", "CI", "AWS_*"),
                "set": st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["1", "2"]), max_size=2),
            },
        ),
        "git": st.fixed_dictionaries({}, optional={"mode": st.sampled_from(tuple(GIT_TIGHTER))}),
        "limits": st.dictionaries(
            st.sampled_from(["processes", "memory", "open_files", "file_size", "disk", "cpu_time"]),
            st.sampled_from([1, 10, 100, 100_000, "unlimited"]),
            max_size=3,
        ),
        "backend": st.fixed_dictionaries({}, optional={"choice": st.sampled_from(["auto", "landlock", "bubblewrap"])}),
        "provider": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["", "codex"]), "dialect": st.sampled_from(["native", "contract"])}
        ),
        "handoff": st.one_of(
            st.fixed_dictionaries({"protect": _few("x", ".envrc", "Makefile")}),
            st.fixed_dictionaries({"report": _few("x", ".envrc", "Makefile")}),
        ),
    },
)


def _values(entries: tuple[Any, ...]) -> set[Any]:
    return {entry.value for entry in entries}


def _never_looser(before: Settings, after: Settings) -> None:
    """Written without the code under test: what an agent can do after is a subset of what it could do before."""
    for name in (
        "read",
        "write",
        "allow_domains",
        "reach",
        "publish",
        "env_pass",
        "env_set",
        "read_trees",
        "etc_files",
        "kernel_files",
        "devices",
    ):
        assert _values(getattr(after, name)) <= _values(getattr(before, name)), name
    assert _values(after.deny) >= _values(before.deny)
    assert _values(after.deny_domains) >= _values(before.deny_domains)
    assert (before.server_name.value, after.server_name.value) != ("require", "match")
    assert _values(after.handoff_protect) >= _values(before.handoff_protect)
    assert after.freeze_root.value >= before.freeze_root.value
    modes = ["none", "auto", "proxy", "open"]
    assert modes.index(after.network_mode.value) <= modes.index(before.network_mode.value)
    # Commits, reading the repository, writing it: where private git directories can be held, and elsewhere.
    can = {"readonly": ("r", "r"), "private": ("c", ""), "auto": ("c", "r"), "shared": ("crw", "crw")}
    for now_can, could in zip(can[after.git_mode.value], can[before.git_mode.value], strict=True):
        assert set(now_can) <= set(could)
    now = dict(_values(after.limits))
    for name, value in _values(before.limits):
        assert name in now
        assert now[name] <= value
    assert {*after.lifted} & {"memory", "disk"} <= {*before.lifted}  # the others have no bound to be lifted
    for name in ("backend", "provider", "dialect"):
        assert getattr(after, name).value == getattr(before, name).value


@settings(max_examples=400, deadline=None)
@given(TABLES, TABLES)
def test_an_untrusted_project_never_loosens_the_resolved_settings(
    user: dict[str, Any], project: dict[str, Any]
) -> None:
    """For any two files: either the project's is refused, or nothing becomes possible that was not before."""
    below = [DEFAULT, made(Kind.USER, user)]
    before = resolve(below)
    try:
        after = resolve([*below, made(Kind.PROJECT, project, trusted=False)])
    except Refusal:
        with pytest.raises(AssertionError):  # and it was not refused for nothing
            _never_looser(before, resolve([*below, made(Kind.PROJECT, project)]))
        return
    _never_looser(before, after)


def test_settings_can_be_read_by_people_and_programmes() -> None:
    """Both forms give every value with its source; JSON survives a name that is not UTF-8."""
    found = resolve([DEFAULT, layer.layer({"--rw": ["/x\udcff\n"], "--limit": ["disk=1K"]}, cwd="/", home="/")])
    lines = found.describe()
    assert any(line.split() == ["network.mode", "auto", "[default]"] for line in lines)
    assert any("/x\\udcff\\n  [--rw]" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    document = json.loads(json.dumps(found.as_dict()))
    assert document["filesystem.write"] == [{"value": "/x\udcff\n", "source": "--rw"}]
    assert document["network.mode"] == {"value": "auto", "source": "default"}
    assert {"value": {"name": "disk", "value": 1024}, "source": "--limit"} in document["limits"]


def test_the_value_of_a_secret_is_not_shown() -> None:
    """Neither to people nor to programmes; an ordinary value is."""
    found = resolve([DEFAULT, layer.layer({"--env": ["API_KEY=hush", "MODE=loud"]}, cwd="/", home="/")])
    shown = "\n".join(found.describe()) + json.dumps(found.as_dict())
    assert "hush" not in shown
    assert "loud" in shown
    assert ("API_KEY", "hush") in [entry.value for entry in found.env_set]


@pytest.mark.parametrize(
    ("mode", "effect"), [("none", "no host can be reached"), ("open", "every host can be reached")]
)
def test_domains_without_proxy_give_a_warning(mode: str, effect: str) -> None:
    """They have no effect there; with proxy, and left to itself, there is nothing to warn of."""
    options: dict[str, str | list[str] | bool] = {"--allow-domain": ["a.b"], "--net": mode}
    (warning,) = resolve([DEFAULT, layer.layer(options, cwd="/", home="/")]).warnings()
    assert effect in warning
    assert "--allow-domain" in warning
    assert not resolve([DEFAULT, layer.layer(options | {"--net": "proxy"}, cwd="/", home="/")]).warnings()
    assert not resolve([DEFAULT, layer.layer({"--allow-domain": ["a.b"]}, cwd="/", home="/")]).warnings()
    assert not resolve([DEFAULT]).warnings()
