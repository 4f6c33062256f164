"""Mirrors that the user's own settings name: what of them is told inside, and which hosts are allowed for it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.session import inputs
from launcher.session.machine import Machine
from policy import egress_rules, mirrors
from policy.mirrors import Mirrors

Find = Callable[..., Mirrors]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory, on a machine that has no settings of its own."""
    tools = [tool | {"files": [each for each in tool["files"] if each.rpartition("|")[2][0] != "/"]}
             for tool in mirrors.table()]  # fmt: skip
    monkeypatch.setattr(mirrors, "table", lambda: tools)
    place = tmp_path / "home"
    place.mkdir()
    return place


@pytest.fixture
def find(home: Path) -> Find:
    """What is found for these variables, where every bundle is allowed; nothing secret is ever recorded."""

    def found(
        *, trees: tuple[str, ...] = (), taken: tuple[str, ...] = (), granted: tuple[str, ...] = (), **environ: str
    ) -> Mirrors:
        machine = Machine({"HOME": str(home), **environ})
        known = egress_rules.bundles()
        result = mirrors.find(machine, known, trees=trees, taken=taken.__contains__, granted=granted)
        assert "secret" not in repr((machine.recorded(), result))
        return result

    return found


def put(path: Path, content: str | bytes) -> Path:
    """A file of the user's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_the_table_is_in_order() -> None:
    """Every tool has a known bundle and format, and a way to be closed; variables for several have as many stars."""
    for tool in mirrors.table():
        assert tool["bundle"] in egress_rules.bundles()
        assert tool["format"] in mirrors.FORMATS or not tool["files"]
        (closed,) = tool["closed"].get("environment", {"": tool["closed"].get("file")}).values()
        assert NOWHERE in closed
        for setting in tool["settings"]:
            assert setting.keys() <= {"keys", "variables", "kind", "between", "upper", "part", "of"}
            assert setting.get("kind", "words") in ("words", "paths", "contents", "switch")
            variables = setting.get("variables", [])
            assert variables or tool["inside"]
            stars = {text.count("*") for text in (*setting["keys"], *variables[:1])}
            assert stars in ({0}, {1})


PIP = "[global]\nindex-url = https://mirror.example.com/simple\n"


@pytest.mark.parametrize(
    ("place", "content", "variables", "rules"),
    [
        (".config/pip/pip.conf", PIP, {"PIP_INDEX_URL": "https://mirror.example.com/simple"},
         {"mirror.example.com:443": "@python: index-url in ~/.config/pip/pip.conf"}),
        (".pip/pip.conf", "[global]\nINDEX_URL: http://mirror.example.com:8081/a/b/\ntrusted_host=mirror.example.com\n",
         {"PIP_INDEX_URL": "http://mirror.example.com:8081/a/b/", "PIP_TRUSTED_HOST": "mirror.example.com"},
         {"mirror.example.com:8081": "@python: index-url in ~/.pip/pip.conf"}),
        (".config/pip/pip.conf", f"{PIP}extra-index-url =\n    https://two.example.com/\n    http://[2001:db8::7]:80/x\n",
         {"PIP_INDEX_URL": "https://mirror.example.com/simple", "PIP_EXTRA_INDEX_URL": "https://two.example.com/ http://[2001:db8::7]:80/x"},
         {"mirror.example.com:443": "@python: index-url in ~/.config/pip/pip.conf",
          "two.example.com:443": "@python: extra-index-url in ~/.config/pip/pip.conf"}),
        (".config/pip/pip.conf", f"{PIP}[install]\nindex-url = http://[fd00:1::7]:8080/x\n",
         {"PIP_INDEX_URL": "http://[fd00:1::7]:8080/x"},
         {"[fd00:1::7]:8080": "@python: index-url in ~/.config/pip/pip.conf"}),
        (".npmrc", "; ours\nregistry = \"https://npm.example.com/a/\" ; x\n  @corp:registry=http://10.1.2.3:4873\nfund=false\n",
         {".npmrc": "registry=https://npm.example.com/a/\n@corp:registry=http://10.1.2.3:4873\n"},
         {"npm.example.com:443": "@node: registry in ~/.npmrc", "10.1.2.3:4873": "@node: @corp:registry in ~/.npmrc"}),
        (".config/uv/uv.toml", 'index-url = "https://a.example.com/"\nextra-index-url = ["https://b.example.com:1/"]',
         {"UV_INDEX_URL": "https://a.example.com/", "UV_EXTRA_INDEX_URL": "https://b.example.com:1/"},
         {"a.example.com:443": "@python: index-url in ~/.config/uv/uv.toml",
          "b.example.com:1": "@python: extra-index-url in ~/.config/uv/uv.toml"}),
        (".config/uv/uv.toml", '[[index]]\nname = "corp"\nurl = "https://a.example.com/"\n[[index]]\ndefault = true\n'
         'url = "https://b.example.com/"\n[[index]]\nexplicit = true\nname = "x"\nurl = "https://c.example.com/"\n',
         {"UV_INDEX": "corp=https://a.example.com/", "UV_DEFAULT_INDEX": "https://b.example.com/"},
         {"a.example.com:443": "@python: index in ~/.config/uv/uv.toml",
          "b.example.com:443": "@python: index.default in ~/.config/uv/uv.toml"}),
        (".cargo/config.toml", '[registries.my-corp]\nindex = "sparse+https://c.example.com/i/"\n[registry]\ndefault="my-corp"',
         {".cargo/config.toml": 'registries.my-corp.index = "sparse+https://c.example.com/i/"\n'
          'registry.default = "my-corp"\n'},
         {"c.example.com:443": "@rust: registries.my-corp.index in ~/.cargo/config.toml"}),
        (".cargo/config.toml", '[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "sparse+http://c.example.com/"',
         {".cargo/config.toml": 'source.m.registry = "sparse+http://c.example.com/"\n'
          'source.crates-io.replace-with = "m"\n'},
         {"c.example.com:80": "@rust: source.m.registry in ~/.cargo/config.toml"}),
        (".config/go/env", "#\nGOPROXY=https://g.example.com/go, https://h.example.com|direct\nGOPRIVATE=*.corp.example\nCC=x",
         {"GOPROXY": "https://g.example.com/go,https://h.example.com|direct", "GOPRIVATE": "*.corp.example"},
         {"g.example.com:443": "@go: GOPROXY in ~/.config/go/env",
          "h.example.com:443": "@go: GOPROXY in ~/.config/go/env"}),
        (".m2/settings.xml", '<settings xmlns="http://maven.example/1"><mirrors><mirror><url>https://m.example.com/x</url>'
         "<id>a</id><mirrorOf>external:*,!b</mirrorOf></mirror><mirror><url>https://n.example.com</url><mirrorOf>c</mirrorOf>"
         "<blocked>true</blocked></mirror></mirrors><servers><server><password>secret</password></server></servers></settings>",
         {".m2/settings.xml": "<settings><mirrors>\n<mirror><id>mirror0</id><mirrorOf>external:*,!b</mirrorOf>"
          "<url>https://m.example.com/x</url></mirror>\n</mirrors></settings>\n"},
         {"m.example.com:443": "@java: mirror.external:*,!b in ~/.m2/settings.xml"}),
        (".cargo/config.toml", '[source.crates-io]\nreplace-with = "v"\n[source.v]\ndirectory = "/v"\n',
         {".cargo/config.toml": 'source.v.directory = "/v"\nsource.crates-io.replace-with = "v"\n'}, {}),
        (".cargo/config.toml", '[source.crates-io]\nreplace-with = "v"\n', {}, {}),
        (".config/pip/pip.conf", "[global]\nno-index = yes\nfind-links =\n  https://a.example.com/w\n  /srv/w\n  w\n",
         {"PIP_NO_INDEX": "true", "PIP_FIND_LINKS": "https://a.example.com/w /srv/w w"},
         {"a.example.com:443": "@python: find-links in ~/.config/pip/pip.conf"}),
        (".config/pip/pip.conf", "[global]\nno-index = False\nconstraint = http://a.example.com/c.txt c.txt\n",
         {"PIP_NO_INDEX": "false", "PIP_CONSTRAINT": "http://a.example.com/c.txt c.txt"},
         {"a.example.com:80": "@python: constraint in ~/.config/pip/pip.conf"}),
        (".config/uv/uv.toml", 'no-index = true\nfind-links = ["https://a.example.com/w", "/srv/w"]\n',
         {"UV_NO_INDEX": "true", "UV_FIND_LINKS": "https://a.example.com/w,/srv/w"},
         {"a.example.com:443": "@python: find-links in ~/.config/uv/uv.toml"}),
    ],
)  # fmt: skip
def test_a_file_of_the_users_is_told_by_variables(
    home: Path, find: Find, place: str, content: str, variables: dict[str, str], rules: dict[str, str]
) -> None:
    """Each tool's own format; the hosts are allowed with their ports, and say where they come from."""
    put(home / place, content)
    found = find()
    told = {path: content.partition("\n")[2] for path, content in found.files}
    environment = dict(found.environment)
    assert environment.pop("MAVEN_OPTS", "") == ("-Duser.home=${home}" if ".m2/settings.xml" in told else "")
    assert environment | told == variables
    assert all("Written by Paddock" in content.partition("\n")[0] for _, content in found.files)
    assert dict(found.domains) == rules
    assert set(found.internal) == {rule for rule in rules if "example" in rule}
    assert not found.reach


@pytest.mark.parametrize(
    ("environ", "variables", "rules"),
    [
        ({"PIP_INDEX_URL": "https://a.example.com/s", "PIP_EXTRA_INDEX_URL": "https://b.example.com/ http://c.example.com"},
         {"PIP_INDEX_URL": "https://a.example.com/s", "PIP_EXTRA_INDEX_URL": "https://b.example.com/ http://c.example.com"},
         ["a.example.com:443", "b.example.com:443", "c.example.com:80"]),
        ({"NPM_CONFIG_REGISTRY": "https://a.example.com/"}, {"npm_config_registry": "https://a.example.com/"},
         ["a.example.com:443"]),
        ({"npm_config_@corp:registry": "https://a.example.com/"}, {"npm_config_@corp:registry": "https://a.example.com/"},
         ["a.example.com:443"]),
        ({"UV_INDEX": "corp=https://me:secret@a.example.com/ https://b.example.com:8443/"},
         {"UV_INDEX": "corp=https://a.example.com/ https://b.example.com:8443/"},
         ["a.example.com:443", "b.example.com:8443"]),
        ({"CARGO_REGISTRIES_CORP_INDEX": "sparse+https://secret@a.example.com/"},
         {"CARGO_REGISTRIES_CORP_INDEX": "sparse+https://a.example.com/"}, ["a.example.com:443"]),
        ({"GOPROXY": "https://me:secret@a.example.com,https://b.example.com|off"},
         {"GOPROXY": "https://a.example.com,https://b.example.com|off"}, ["a.example.com:443", "b.example.com:443"]),
        ({"GOSUMDB": "sum.example.com+033de0ae+Ac4zc/x= https://a.example.com/sum"},
         {"GOSUMDB": "sum.example.com+033de0ae+Ac4zc/x= https://a.example.com/sum"}, ["a.example.com:443"]),
        ({"RUSTUP_DIST_SERVER": "https://a.example.com"}, {"RUSTUP_DIST_SERVER": "https://a.example.com"},
         ["a.example.com:443"]),
    ],
)  # fmt: skip
def test_a_variable_of_the_users_is_told(
    find: Find, environ: dict[str, str], variables: dict[str, str], rules: list[str]
) -> None:
    """By the first of its names."""
    found = find(**environ)
    assert dict(found.environment) == variables
    assert [rule for rule, _ in found.domains] == rules
    assert found.domains[0][1].endswith(f": {next(iter(environ))} in your environment")


def test_the_tools_own_precedence_counts(home: Path, find: Find, tmp_path: Path) -> None:
    """A variable before files; the file that a variable names instead of the user's; XDG's; none."""
    put(home / ".pip/pip.conf", PIP.replace("mirror", "legacy"))
    assert dict(find().environment)["PIP_INDEX_URL"] == "https://legacy.example.com/simple"
    put(home / ".config/pip/pip.conf", PIP)
    assert dict(find().environment)["PIP_INDEX_URL"] == "https://mirror.example.com/simple"
    put(tmp_path / "xdg/pip/pip.conf", PIP.replace("mirror", "xdg"))
    moved = find(XDG_CONFIG_HOME=str(tmp_path / "xdg"))
    assert dict(moved.environment)["PIP_INDEX_URL"] == "https://xdg.example.com/simple"
    named = put(tmp_path / "named.conf", "[global]\nextra-index-url = https://named.example.com/\n")
    assert dict(find(PIP_CONFIG_FILE=str(named)).environment) == {"PIP_EXTRA_INDEX_URL": "https://named.example.com/"}
    assert not any(find(PIP_CONFIG_FILE="/dev/null", npm_config_userconfig="/dev/null"))
    assert find(PIP_CONFIG_FILE="pip.conf").environment == find().environment  # relative: any directory's
    put(tmp_path / "venv/pip.conf", PIP.replace("mirror", "venv"))
    inner = find(VIRTUAL_ENV=str(tmp_path / "venv"))
    assert dict(inner.environment)["PIP_INDEX_URL"] == "https://venv.example.com/simple"
    said = find(PIP_INDEX_URL="https://own.example.com")
    assert [rule for rule, _ in said.domains] == ["own.example.com:443"]
    put(home / ".npmrc", "registry=https://npm.example.com/\n")
    put(tmp_path / "npmrc", "registry=https://other.example.com/\n")
    assert find(npm_config_userconfig=str(tmp_path / "npmrc")).domains[-1][0] == "other.example.com:443"


def test_what_the_user_passes_himself_is_not_set(home: Path, find: Find) -> None:
    """By whichever of its names; the host is allowed all the same."""
    found = find(taken=("NPM_CONFIG_REGISTRY",), npm_config_registry="https://npm.example.com/")
    assert found.environment == ()
    assert [rule for rule, _ in found.domains] == ["npm.example.com:443"]


def test_only_the_bundles_that_are_allowed_count(home: Path) -> None:
    """Nothing is looked at for the others."""
    put(home / ".npmrc", "registry=https://npm.example.com/\n")
    machine = Machine({"HOME": str(home)})
    found = mirrors.find(machine, ["python", "github"], trees=(), taken=lambda name: False)
    assert not any(found)
    assert ".npmrc" not in repr(machine.recorded())


@pytest.mark.parametrize(
    "value",
    [
        "https://me:secret@mirror.example.com/simple",
        "https://secret@mirror.example.com/simple",
        "https://me:secr%65tsecret@mirror.example.com/simple",
        "https://me:p@secret@mirror.example.com/simple",
    ],
)
def test_credentials_stay_outside(home: Path, find: Find, value: str) -> None:
    """The address is told without them, and the user that they are missing; no input, rule or variable holds them."""
    put(home / ".pip/pip.conf", f"[global]\nindex-url = {value}\n")
    for found in (find(), find(PIP_INDEX_URL=value)):
        assert dict(found.environment) == {"PIP_INDEX_URL": "https://mirror.example.com/simple"}
        assert [rule for rule, _ in found.domains] == ["mirror.example.com:443"]
        (key,) = found.keys
        assert (key.url, key.rules, key.ambient) == (
            "https://mirror.example.com:443",
            ("GET,HEAD mirror.example.com:443/",),
            True,
        )
        assert not found.warnings
    put(home / ".pip/pip.conf", f"[global]\nindex-url = {value.replace('https', 'http')}\n")
    (warning,) = find().warnings
    assert "needs a credential, which does not enter the jail" in warning
    assert not find().keys


@pytest.mark.parametrize(
    ("place", "text", "wanted"),
    [
        (["", "", "PIP_INDEX_URL"], "https://me:p%40ss@mirror.example.com/simple", "Basic bWU6cEBzcw=="),
        (
            ["", "", "X"],
            "https://a.example/ x=https://me:one@mirror.example.com/b,https://me:two@c.example/",
            "Basic bWU6b25l",
        ),
        (["", "", "X"], "https://token@mirror.example.com/", "Basic dG9rZW46"),
        (["", "", "X"], "https://mirror.example.com/ https://me:two@other.example/", ""),
        (
            ["pip", "", "extra-index-url"],
            "[global]\nextra-index-url =\n  https://me:one@mirror.example.com/\n",
            "Basic bWU6b25l",
        ),
        (
            ["npm", "", "//mirror.example.com/:_authToken"],
            "//mirror.example.com/:_authToken=t${VAR}\n",
            "Bearer t-of-env",
        ),
        (["npm", "", "//mirror.example.com/:_auth"], "//mirror.example.com/:_auth=YTpi\n", "Basic YTpi"),
        (
            ["npm", "", "//mirror.example.com/:_password"],
            "//mirror.example.com/:username=me\n//mirror.example.com/:_password=b25l\n",
            "Basic bWU6b25l",
        ),
        (["npm", "", "//mirror.example.com/:_authToken"], "registry=x\n", ""),
    ],
)
def test_the_header_for_a_mirror_is_what_the_tool_would_send(place: list[str], text: str, wanted: str) -> None:
    """Of the very setting, for the very host."""
    origin = egress_rules.Request("mirror.example.com", 443)
    assert mirrors.header(place, text, origin, {"VAR": "-of-env"}) == wanted


PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(PRINTABLE, PRINTABLE, st.sampled_from(["https://", "x=https://", "", "sparse+http://"]))
def test_no_password_is_recorded(name: str, password: str, scheme: str) -> None:
    """Whatever characters it has, in front of a host and behind another one; a plain setting is recorded as it is."""
    url = f"{scheme}{name}ZQ:ZQ{password}ZQ@mirror.example.com/simple"
    for text in (url, f"https://one.example.com:8080/a {url}", f"{url}|direct", f"https://one.example.com,{url}"):
        assert f"ZQ{password}ZQ" not in inputs.without_credentials(text)
    for plain in ("https://[::1]:80/x,https://b.example.com:1|direct", "sum.example.com+ab/c=", "name=http://h/"):
        assert inputs.without_credentials(plain) == plain


def test_a_token_beside_the_registry_stays_outside(home: Path, find: Find) -> None:
    """As npm keeps it: by the address that it is for."""
    put(home / ".npmrc", "registry=https://npm.example.com/a/\n//npm.example.com/:_authToken=secret\n")
    (key,) = find().keys
    assert key.rules == ("GET,HEAD npm.example.com:443/",)
    put(home / ".npmrc", "registry=https://npm.example.com/a/\n//npm.example.com/a/:_authToken=secret\n")
    (key,) = find().keys
    assert key.rules == ("GET,HEAD npm.example.com:443/a",)
    put(home / ".npmrc", "registry=https://npm.example.com/a/\n//npm.example.com/b/:_authToken=secret\n")
    assert not find().keys
    two = "//npm.example.com/a/:_authToken=one\n//npm.example.com/a/b/:_authToken=two\n"
    put(home / ".npmrc", f"registry=https://npm.example.com/a/\n{two}")
    assert [key.rules for key in find().keys] == [
        ("GET,HEAD npm.example.com:443/a",),
        ("GET,HEAD npm.example.com:443/a/b",),
    ]
    put(home / ".npmrc", "registry=https://npm.example.com/a/\n//npm.example.com/a/:certfile=/secret\n")
    assert "npm.example.com:443 needs a credential" in find().warnings[0]


NOWHERE = "https://passed-over.invalid/"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("https://me:sec/secret@mirror.example.com/simple", NOWHERE),
        ("me:secret@mirror.example.com/simple", NOWHERE),
        ("https://mirror.example.com/@scope/x", NOWHERE),
        ("https://mirror.example.com/simple?token=x", "https://mirror.example.com/simple"),
        ("https://mirror.example.com/${HOME}", NOWHERE),
        ("https://${HOST}/simple", NOWHERE),
        ("https://mirror.example.com/$x", NOWHERE),
        ("ssh://secret@mirror.example.com/simple", "ssh://mirror.example.com/simple"),
        ("file://mirror.example.com/simple", "file://mirror.example.com/simple"),
        ("mirror.example.com/simple", "mirror.example.com/simple"),
        ("https://", "https://"),
        ("https://a_b/", "https://a_b/"),
        ("https://mirror.example.com:99999/", "https://mirror.example.com:99999/"),
        ("https://169.254.169.254/latest", "https://169.254.169.254/latest"),
        ("https://0.0.0.0/", "https://0.0.0.0/"),
        ("https://[fd00:ec2::254]/", "https://[fd00:ec2::254]/"),
        ("https://[fe80::1%25eth0]/", NOWHERE),
        ("https://[::ffff:10.0.0.1]/", NOWHERE),
        ("https://0x7f.1/", "https://0x7f.1/"),
        ("https://mirr\u00f6r.example.com/", NOWHERE),
        ("https://mirror.example.com/\x1b[0m", NOWHERE),
        (f"https://mirror.example.com/{'x' * 3000}", NOWHERE),
        (f"https://mirror.example.com/{'x' * 9000}", NOWHERE),
    ],
)
def test_what_cannot_be_had_does_not_leave_a_tool_on_the_public_registry(
    home: Path, find: Find, value: str, told: str
) -> None:
    """In a variable as in a file: the tool is told it, or what leads nowhere; nothing is allowed, and it is said."""
    put(home / ".npmrc", f"registry={value}\n")
    for found in (find(PIP_INDEX_URL=value), find()):
        text = dict(found.environment).get("PIP_INDEX_URL") or found.files[0][1].partition("registry=")[2].rstrip()
        assert text == told
        assert not (found.domains, found.internal, found.reach, found.keys) > ((), (), (), ())
        assert found.warnings
        for line in found.warnings:
            assert (
                "is passed over: " in line
                if told == NOWHERE
                else "reaches the tool as it is, and nothing is allowed for it: " in line
            )
            assert line.endswith("; the public registry does not take its place")
            assert line.isprintable()


@pytest.mark.parametrize("value", ["file:///srv/a/simple", "file://localhost/srv/a/simple", "/srv/a/simple"])
def test_an_index_that_is_a_directory_is_told_and_its_grant_named(find: Find, value: str) -> None:
    """Unless the jail shows it."""
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "UV_DEFAULT_INDEX", "npm_config_registry", "GOPROXY"):
        found = find(**{name: value})
        if name == "GOPROXY" and value[0] == "/":
            continue  # for go a word
        assert dict(found.environment) == {name: value}
        assert found.warnings[0].endswith(
            "reaches the tool as it is: --ro /srv/a/simple, unless something else grants it"
        )
        assert not find(granted=("/srv/a",), **{name: value}).warnings


def test_a_directory_of_the_homes_is_the_users(home: Path, find: Find) -> None:
    """Inside, `~` is the private home; a path that no shell could take is passed over."""
    found = find(PIP_FIND_LINKS="~/wheels")
    assert dict(found.environment) == {"PIP_FIND_LINKS": f"{home}/wheels"}
    assert f"--ro {home}/wheels" in found.warnings[0]
    assert dict(find(PIP_FIND_LINKS="/a$x /b").environment) == {"PIP_FIND_LINKS": f"{NOWHERE} /b"}


def test_constraints_come_along(home: Path, find: Find, tmp_path: Path) -> None:
    """What the file holds, without credentials; the variable names the file in the private home."""
    pins = put(home / "pins.txt", "demo==1.0\nother @ git+https://me:secret@git.example.com/x@v1\n")
    put(home / ".config/pip/pip.conf", f"[global]\nconstraint = ~/pins.txt\n  {pins}\n")
    found = find()
    names = [name for name, _ in found.files]
    assert dict(found.environment) == {"PIP_CONSTRAINT": " ".join(f"${{home}}/{name}" for name in names)}
    text = "# Written by Paddock from your own settings\ndemo==1.0\nother @ git+https://git.example.com/x@v1\n"
    assert [content for _, content in found.files] == [text, text]
    assert len(set(names)) == 2
    assert not found.warnings
    assert dict(find(PIP_CONSTRAINT=f"file://{pins}").environment) == {"PIP_CONSTRAINT": f"${{home}}/{names[0]}"}


@pytest.mark.parametrize("content", [b"-c other.txt\n", b"\xff", b"a\0b", b"x" * 70_000, None])
def test_constraints_that_cannot_come_along_are_not_lost(find: Find, tmp_path: Path, content: bytes | None) -> None:
    """The tool is told where they are, and fails without them."""
    place = tmp_path / "pins.txt"
    if content is not None:
        put(place, content)
    found = find(PIP_CONSTRAINT=str(place))
    assert dict(found.environment) == {"PIP_CONSTRAINT": str(place)}
    assert f"--ro {place}" in found.warnings[0]
    assert not found.files


def test_constraints_in_a_tree_are_those_that_the_jail_sees(find: Find, tmp_path: Path) -> None:
    """What an agent could write, or a link there, is not carried into another one's home."""
    tree = tmp_path / "tree"
    place = put(tree / "pins.txt", "demo==1.0\n")
    (tree / "link.txt").symlink_to(put(tmp_path / "outside.txt", "secret"))
    for path in (place, tree / "link.txt"):
        found = find(trees=(str(tree),), granted=(str(tree),), PIP_CONSTRAINT=str(path))
        assert dict(found.environment) == {"PIP_CONSTRAINT": str(path)}
        assert not found.files
    assert not find(trees=(str(tree),), granted=(str(tree),), PIP_CONSTRAINT=str(place)).warnings


@pytest.mark.parametrize("value", ["http://127.0.0.1:3141/root/pypi/", "http://localhost:3141/root/pypi/"])
def test_a_mirror_on_this_machine_is_a_port_of_its_loopback(find: Find, value: str) -> None:
    """As a provider's server there is."""
    found = find(PIP_INDEX_URL=value)
    assert found.reach == (("127.0.0.1:3141", "@python: PIP_INDEX_URL in your environment"),)
    assert dict(found.environment) == {"PIP_INDEX_URL": value}
    assert not found.domains


def test_the_public_registry_gets_no_more_than_others(find: Find) -> None:
    """It has its rule from the bundle, and no private address."""
    host = egress_rules.require("python").rules[0].partition(":")[0]
    found = find(PIP_INDEX_URL=f"https://{host}/simple")
    assert found.internal == ()


CLOSED = {"PIP_INDEX_URL": NOWHERE}


@pytest.mark.parametrize(
    ("place", "content", "environment", "line"),
    [
        (".config/pip/pip.conf", PIP.encode() + b"# \xff\n", CLOSED, ""),
        (".config/pip/pip.conf", b"\0" * 40, CLOSED, ""),
        (".config/pip/pip.conf", PIP.encode() * 3, CLOSED, ""),
        (".config/pip/pip.conf", PIP.encode() + b"#" * 100_000, CLOSED, ""),
        (".config/uv/uv.toml", b"index-url = ", {"UV_DEFAULT_INDEX": NOWHERE}, ""),
        (".npmrc", b"=x\n", {}, f"registry={NOWHERE}"),
        (".cargo/config.toml", b"x = 1\n" * 2, {}, f'source.passed-over.registry = "sparse+{NOWHERE}"'),
        (".config/go/env", b"\xff", {"GOPROXY": NOWHERE}, ""),
        (".m2/settings.xml", b"<settings>", {}, f"<mirrorOf>*</mirrorOf><url>{NOWHERE}</url>"),
        (".m2/settings.xml", b'<!DOCTYPE x [<!ENTITY a "aaaa">]><settings/>', {}, f"<url>{NOWHERE}</url>"),
    ],
)
def test_a_file_that_makes_no_sense_leaves_no_tool_on_the_public_registry(
    home: Path, find: Find, place: str, content: bytes, environment: dict[str, str], line: str
) -> None:
    """Binary, huge, broken: the tool gets an index that leads nowhere, unless the user passes one, and it is said."""
    put(home / place, content)
    found = find(**({"PIP_EXTRA_INDEX_URL": "https://a.example.com/"} if environment == CLOSED else {}))
    assert {name: value for name, value in found.environment if name != "MAVEN_OPTS"} == environment
    assert [line in text for _, text in found.files] == ([True] if line else [])
    assert (*found[:3], found.keys) == ((),) * 4
    (warning,) = found.warnings
    assert re.fullmatch(rf"@[a-z]+: ~/{place} is passed over: .*; the public registry does not take its place", warning)
    if environment:
        own = find(taken=tuple(environment))
        assert environment.items().isdisjoint(own.environment)
        assert own.warnings == found.warnings


@pytest.mark.parametrize("word", ["{secret=}", "${env.SECRET}", "s3/cr@t"])
def test_a_server_of_mavens_has_the_credential_of_its_mirror(home: Path, find: Find, word: str) -> None:
    """As it is written there; of what only Maven can decrypt or fill in, it is said that it is not put in."""
    mirror = "<mirror><id>a</id><mirrorOf>*</mirrorOf><url>https://m.example.com/x</url></mirror>"
    server = f"<server><id>a</id><username>me</username><password>{word}</password></server>"
    put(home / ".m2/settings.xml", f"<settings><servers>{server}</servers><mirrors>{mirror}</mirrors></settings>")
    found = find()
    assert "<url>https://m.example.com/x</url>" in found.files[0][1]
    if "{" in word:
        assert not found.keys
        assert "m.example.com:443 needs a credential, which does not enter the jail" in found.warnings[0]
    else:
        (key,) = found.keys
        assert (key.url, found.warnings) == ("https://m.example.com:443", ())
        assert word not in repr(found)


def test_settings_that_protect_hold_inside(home: Path, find: Find) -> None:
    """Without any index, too; what pip and uv are told by variables npm has in its file."""
    put(
        home / ".config/pip/pip.conf",
        "[global]\nrequire-hashes = true\nonly-binary = :all:\nno-binary = a,b c\nuploaded-prior-to = 2026-01-01\n",
    )
    put(home / ".config/uv/uv.toml", 'no-build = true\nno-binary-package = ["a", "b"]\nexclude-newer = "7 days"\n'
        "[pip]\nrequire-hashes = true\n")  # fmt: skip
    put(home / ".npmrc", "ignore-scripts = true\nbefore=2026-01-01\nmin-release-age=3\n")
    found = find(GOVCS="*:git|hg", npm_config_min_release_age="7")
    assert dict(found.environment) == {
        "PIP_REQUIRE_HASHES": "true",
        "PIP_ONLY_BINARY": ":all:",
        "PIP_NO_BINARY": "a,b c",
        "PIP_UPLOADED_PRIOR_TO": "2026-01-01",
        "UV_NO_BUILD": "true",
        "UV_NO_BINARY_PACKAGE": "a b",
        "UV_EXCLUDE_NEWER": "7 days",
        "UV_REQUIRE_HASHES": "true",
        "GOVCS": "*:git|hg",
        "npm_config_min_release_age": "7",
    }
    assert found.files[0][1].splitlines()[1:] == ["ignore-scripts=true", "before=2026-01-01"]
    assert not found.warnings


def test_a_tools_own_authority_counts(home: Path, find: Find, tmp_path: Path) -> None:
    """By its file or its variable, with its credential outside and for the tool; none that an agent could make."""
    file = str(put(home / "ca.pem", "x"))
    put(home / ".config/pip/pip.conf", f"{PIP.replace('//', '//me:secret@')}cert = ~/ca.pem\n")
    lines = "AA==\\n-----END CERTIFICATE-----", "BB==\\n-----END CERTIFICATE-----\\n-----BEGIN KEY-----\\nsecret"
    npmrc = "".join(f'ca[] = "-----BEGIN CERTIFICATE-----\\n{line}"\n' for line in lines)
    put(home / ".npmrc", f"registry=https://npm.example.com/\n//npm.example.com/:_authToken=secret\n{npmrc}")
    put(home / ".cargo/config.toml", f'[http]\ncainfo = "{file}"\n')
    pem = "\n".join(f"-----BEGIN CERTIFICATE-----\n{each}==\n-----END CERTIFICATE-----" for each in ("AA", "BB"))
    found = find()
    assert dict(found.authorities) == {"PIP_CERT": file, "npm_config_cafile": pem, "CARGO_HTTP_CAINFO": file}
    assert [key.authority for key in found.keys] == [file, pem]
    assert not found.warnings
    assert "PIP_CERT" not in dict(find(taken=("PIP_CERT",)).authorities)
    other = str(put(tmp_path / "other.pem", "x"))
    assert dict(find(PIP_CERT=other, SSL_CERT_FILE=other).authorities)["PIP_CERT"] == other
    assert dict(find(SSL_CERT_FILE=other).authorities)["SSL_CERT_FILE"] == other
    evil = str(put(tmp_path / "tree/ca.pem", "x"))
    (tmp_path / "link.pem").symlink_to(evil)
    for path in (evil, str(tmp_path / "link.pem"), "ca.pem"):
        found = find(trees=(str(tmp_path / "tree"),), PIP_CERT=path)
        assert "PIP_CERT" not in dict(found.authorities)
        assert found.keys[0].authority == ""
        assert "PIP_CERT in your environment is passed over: " in found.warnings[0]


def test_no_agent_chooses_a_host(home: Path, find: Find, tmp_path: Path) -> None:
    """A file in a tree that jails can write, or behind a link there or into it, is passed over, as is everybody's."""
    tree = tmp_path / "tree"
    evil = put(tree / "pip.conf", PIP)
    place = home / ".config/pip/pip.conf"
    place.parent.mkdir(parents=True)
    place.symlink_to(evil)
    outside = put(tmp_path / "outside.conf", PIP)
    (tree / "link.conf").symlink_to(outside)
    trees = (str(tree),)
    for found in (
        find(trees=trees),
        find(trees=trees, PIP_CONFIG_FILE=str(tree / "pip.conf")),
        find(trees=trees, PIP_CONFIG_FILE=str(tree / "link.conf")),
        find(trees=trees, PIP_CONFIG_FILE=f"{tree}/../tree/pip.conf"),
        find(trees=trees, VIRTUAL_ENV=str(tree)),
    ):
        assert (*found[:3], *found[4:6]) == ((),) * 5
        assert dict(found.environment) == CLOSED
        assert "commands in jails can write there" in found.warnings[0]
    place.unlink()
    shown = find(trees=trees, granted=trees, VIRTUAL_ENV=str(tree))
    assert not any(shown[:5])
    assert shown.warnings[0].endswith("the tool may find it there itself")
    assert find(trees=trees, PIP_CONFIG_FILE=str(outside)).domains
    outside.chmod(0o666)
    assert "other users can write it" in find(trees=trees, PIP_CONFIG_FILE=str(outside)).warnings[0]
