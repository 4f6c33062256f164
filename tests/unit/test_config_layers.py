"""Files and flags as layers: what is accepted, and how mistakes are told."""

import pytest

from policy.config import layer
from policy.config.layer import Kind, Layer
from policy.config.values import Base
from policy.errors import Refusal


def parsed(text: str | bytes, kind: Kind = Kind.PROJECT) -> Layer:
    """A layer from text, as a file of a project at /p."""
    data = text.encode() if isinstance(text, str) else text
    base = Base("/p" if kind >= Kind.PROJECT else None, None if kind == Kind.SYSTEM else "/home/u")
    return layer.parse(data, kind, "/p/f.toml", base)


def refused(text: str | bytes, kind: Kind = Kind.PROJECT) -> Refusal:
    """The Refusal that text gives."""
    with pytest.raises(Refusal) as caught:
        parsed(text, kind)
    return caught.value


def test_every_key_is_read() -> None:
    """A file that sets everything a project can set gives a layer that holds it."""
    content = parsed(
        """
        schema = 1
        [filesystem]
        read = ["~/data", "lib"]
        write = ["/srv/x"]
        deny = ["secrets"]
        freeze_root = true
        [network]
        mode = "proxy"
        allow_domains = ["Example.com:443"]
        [environment]
        pass = ["CI", "APP_*"]
        set = { MODE = "dev" }
        [git]
        mode = "shared"
        [limits]
        processes = 10
        memory = "1G"
        open_files = "20"
        file_size = 30
        disk = "1T"
        cpu_time = "2h"
        tokens = "2M"
        requests = 60
        upload = "1M"
        [backend]
        choice = "landlock"
        [provider]
        name = "codex"
        dialect = "contract"
        [handoff]
        protect = ["x/hooks/"]
        report = ["scripts"]
        """
    ).content
    assert content.filesystem.read == ("/home/u/data", "/p/lib")
    assert (content.filesystem.write, content.filesystem.deny) == (("/srv/x",), ("/p/secrets",))
    assert content.filesystem.freeze_root is True
    assert (content.network.mode, content.network.allow_domains) == ("proxy", ("example.com:443",))
    assert (content.environment.pass_, content.environment.set_) == (("CI", "APP_*"), {"MODE": "dev"})
    assert content.git.mode == "shared"
    assert content.limits.as_data() == {
        "processes": 10, "memory": 1 << 30, "open_files": 20, "file_size": 30, "disk": 1 << 40, "cpu_time": 7200,
        "tokens": 2_000_000, "requests": 60, "upload": 1 << 20,
    }  # fmt: skip
    assert (content.backend.choice, content.provider.name, content.provider.dialect) == (
        "landlock",
        "codex",
        "contract",
    )
    assert (content.handoff.protect, content.handoff.report) == (("x/hooks",), ("scripts",))


def test_an_empty_file_sets_nothing() -> None:
    """It is valid."""
    assert not parsed("").content.given


@pytest.mark.parametrize(
    ("text", "line", "near"),
    [
        ("[filesystem]\n\nraed = []", 3, "filesystem.read"),
        ("[filesytem]\nread = []", 1, "filesystem"),
        ("# x\nread = []", 2, "filesystem.read"),
        ("network.mod = 'none'", 1, "network.mode"),
        ("[limits]\nmem = 1", 2, "limits.memory"),
        ("[backend]\nallow_domains = []", 2, "network.allow_domains"),
        ("shema = 1", 1, "schema"),
    ],
)
def test_an_unknown_key_is_refused_with_line_and_nearest_key(text: str, line: int, near: str) -> None:
    """So that a typing mistake in a deny list is never passed over."""
    refusal = refused(text)
    assert refusal.reference == "config-unknown-key"
    assert f"/p/f.toml: line {line}: unknown key" in refusal.message
    assert refusal.message.endswith(f"did you mean {near}?")


def test_an_unknown_key_without_a_neighbour_is_refused_too() -> None:
    """Nothing is guessed then."""
    assert refused("zzzzzz = 1").message == "/p/f.toml: line 1: unknown key zzzzzz"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filesystem = 3", "line 1: filesystem must be a table, not a number"),
        ("[filesystem]\nread = '/x'", "line 2: filesystem.read must be a list of strings, not a string"),
        ("[filesystem]\nread = [1]", "line 2: filesystem.read must be a string, not a number"),
        ("[filesystem]\nfreeze_root = 1", "line 2: filesystem.freeze_root must be true or false, not a number"),
        ("[network]\nmode = 'off'", "line 2: network.mode must be one of 'none', 'auto', 'proxy' or 'open'"),
        ("[network]\nmode = true", "line 2: network.mode must be one of"),
        (
            "[network]\nallow_domains = ['http://x']",
            "line 2: network.allow_domains 'http://x' is not a host rule: it is a URL",
        ),
        ("[environment]\nset = []", "line 2: environment.set must be a table, not a list"),
        ("[environment.set]\nA = 1", "line 2: environment.set.A must be a string, not a number"),
        ("[limits]\nmemory = 1979-05-27", "line 2: limits.memory must be a size"),
        ("[limits]\ncpu_time = nan", "line 2: limits.cpu_time must be a time"),
        ("[handoff]\nprotect=['a']\nreport=['a']", "line 1: handoff names 'a' under both protect and report"),
        ("[provider]\nname = 1", "line 2: provider.name must be a string, not a number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(text: str, message: str) -> None:
    """The message names file, line, key, and what would be right."""
    refusal = refused(text)
    assert refusal.reference == "config-invalid"
    assert refusal.message.startswith(f"/p/f.toml: {message}")


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    """The first in the message, the others below."""
    refusal = refused("[network]\nmode = 1\n[git]\nmode = 2")
    assert "line 2: network.mode" in refusal.message
    assert "also line 4: git.mode" in refusal.context


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a =\n", "line 1, column 4: Invalid value"),
        ("x = 1\n[a\n", "line 2, column 3"),
        ("x = 'a", "line 1, column 7: "),
        ("a = 1\na = 2", "line 2, column 6: Cannot overwrite"),
        ("a" + "[" * 100_000, "line 1"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = 1" + "0" * 5000, "4300 digits"),
        ("\ufeffa = 1", "line 1, column 1"),
        ("a = '\0'", "line 1"),
    ],
)
def test_malformed_toml_is_refused_with_line_and_column(text: str, place: str) -> None:
    """Whatever tomllib raises becomes one Refusal."""
    refusal = refused(text)
    assert refusal.reference == "config-syntax"
    assert place in refusal.message


def test_a_file_that_would_keep_the_parser_busy_is_refused_at_once() -> None:
    """A key of 100,000 parts takes tomllib minutes: an agent must not be able to hang the launcher that way."""
    refusal = refused("\n" + ".".join(["a"] * 100_000) + " = 1")
    assert refusal.reference == "config-syntax"
    assert "line 2 has more than 1024 dots" in refusal.message
    parsed("[network]\nallow_domains = [" + ", ".join(f"'h{n}.example.com'" for n in range(400)) + "]")


def test_bytes_that_are_not_utf8_are_refused_with_their_line() -> None:
    """TOML is UTF-8."""
    refusal = refused(b"a = 1\nb = '\xff'")
    assert (refusal.reference, refusal.message) == ("config-encoding", "/p/f.toml: line 2 is not UTF-8")


@pytest.mark.parametrize("version", ["2", "99", "-1", "true", "'1'", "1.0"])
def test_a_schema_we_do_not_know_is_refused(version: str) -> None:
    """A newer file may mean something that this version would pass over."""
    assert refused(f"schema = {version}").reference == "config-schema"


def test_a_file_without_schema_is_of_schema_1() -> None:
    """The key may be left out."""
    assert parsed("[git]\nmode='shared'").content == parsed("schema = 1\n[git]\nmode='shared'").content


def test_schema_0_is_migrated() -> None:
    """Its [fs] is today's [filesystem]; with both it is unclear what is meant."""
    assert parsed("schema = 0\n[fs]\ndeny = ['/x']").content.filesystem.deny == ("/x",)
    assert refused("schema = 0\n[fs]\n[filesystem]").reference == "config-schema"
    assert refused("[fs]\ndeny = ['/x']").reference == "config-unknown-key"


@pytest.mark.parametrize("kind", [Kind.PROJECT, Kind.FILE])
def test_a_project_cannot_describe_the_machine(kind: Kind) -> None:
    """[system] belongs to the machine's or the user's file, where it is accepted."""
    text = "[system]\nread_trees = ['/opt']\ndevices = { '/dev/dri/*' = 'rwi' }"
    refusal = refused(text, kind)
    assert refusal.reference == "config-misplaced-key"
    assert "line 1" in refusal.message
    for allowed in (Kind.SYSTEM, Kind.USER):
        assert parsed(text, allowed).content.system.read_trees == ("/opt",)


def test_relative_paths_belong_to_projects() -> None:
    """The machine's file knows neither a project nor a home; the user's file knows a home."""
    for kind in (Kind.SYSTEM, Kind.USER):
        assert "is relative" in refused("[filesystem]\ndeny = ['x']", kind).message
    assert "no one home" in refused("[filesystem]\ndeny = ['~/x']", Kind.SYSTEM).message
    assert parsed("[filesystem]\ndeny = ['~/x']", Kind.USER).content.filesystem.deny == ("/home/u/x",)


def test_a_line_finder_knows_dotted_and_quoted_keys() -> None:
    """The deepest part that it knows counts; what is unknown has no line."""
    line_of = layer.line_finder('a.b = 1\n["c"]\n\n[d.e]\n# f = 1\n"f" = 2\n')
    assert line_of(("a", "b")) == 1
    assert line_of(("c", "x")) == 2
    assert line_of(("d", "e", "f", 0)) == 6
    assert line_of(("z",)) is None


def test_flags_make_the_topmost_layer() -> None:
    """Each option lands in the key that says the same."""
    made = layer.layer(
        {
            "--rw": ["x", "/y"],
            "--ro": ["~/z"],
            "--deny": ["../w"],
            "--freeze-root": True,
            "--net": "open",
            "--allow-domain": ["a.b"],
            "--env": ["CI", "MODE=a=b", "EMPTY="],
            "--limit": ["memory=2G", "cpu_time=unlimited"],
            "--git": "shared",
            "--backend": "landlock",
            "--provider": "codex",
            "--dialect": "contract",
            "--submodule": ["lib/a"],
            "--worktree": "elsewhere",
        },
        cwd="/here",
        home="/home/u",
    )
    content = made.content
    assert (made.kind, made.trusted, made.submodules) == (Kind.FLAGS, True, ("lib/a",))
    assert content.filesystem.write == ("/here/x", "/y")
    assert content.filesystem.read == ("/home/u/z",)
    assert content.filesystem.deny == ("/here/../w",)
    assert content.filesystem.freeze_root is True
    assert (content.network.mode, content.network.allow_domains) == ("open", ("a.b",))
    assert (content.environment.pass_, content.environment.set_) == (("CI",), {"MODE": "a=b", "EMPTY": ""})
    assert content.limits.memory == 2 << 30
    assert content.limits.given == {"memory", "cpu_time"}
    assert (content.git.mode, content.backend.choice) == ("shared", "landlock")
    assert (content.provider.name, content.provider.dialect) == ("codex", "contract")


def test_flags_keep_names_that_are_not_utf8() -> None:
    """File names are bytes."""
    assert layer.layer({"--rw": ["/x\udcff"]}, cwd="/", home="/").content.filesystem.write == ("/x\udcff",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--net": "opne"}, "--net must be one of 'none', 'auto', 'proxy' or 'open'"),
        ({"--git": "x"}, "--git must be one of"),
        ({"--limit": ["memroy=1"]}, "--limit: unknown limit memroy; did you mean memory?"),
        ({"--limit": ["zzz=1"]}, "--limit: unknown limit zzz"),
        ({"--limit": ["memory"]}, "--limit memory needs a value"),
        ({"--budget": ["tokens"]}, "--budget tokens needs a value"),
        ({"--budget": ["tokens=abc"], "--limit": ["memory=1G"]}, "--budget tokens 'abc' is not a number"),
        ({"--budget": ["token=1"]}, "--budget: unknown budget token"),
        ({"--budget": ["memory=1G"]}, "--budget: unknown budget memory"),
        ({"--limit": ["memory=1x"]}, "--limit memory '1x' is not a size"),
        ({"--env": ["A-B=hush"]}, "--env 'A-B' is not a variable name"),
        ({"--env": ["=x"]}, "--env '' is not a variable name"),
        ({"--env": ["LD_*"]}, "--env 'LD_*' would pass"),
        ({"--rw": [""]}, "--rw is an empty path"),
        ({"--deny": ["*.pem"]}, "--deny '*.pem' contains a wildcard"),
        ({"--allow-domain": ["*"]}, "--allow-domain '*' is not a host rule"),
        ({"--submodule": [""]}, "--submodule needs a name"),
    ],
)
def test_a_wrong_option_is_refused_by_its_own_name(options: dict[str, str | list[str] | bool], message: str) -> None:
    """The user typed an option, so the text is about the option, and never holds a variable's value."""
    with pytest.raises(Refusal) as caught:
        layer.layer(options, cwd="/", home="/")
    assert caught.value.reference == "usage"
    assert caught.value.message.startswith(message)
    assert "hush" not in str(caught.value)
