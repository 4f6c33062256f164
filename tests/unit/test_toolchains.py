"""Toolchains: what PATH reaches is granted, what holds credentials is not."""

import os
import sys
from pathlib import Path

import pytest

from policy.errors import Refusal
from policy.plan import beneath
from policy.toolchains import discover, interpreter_of, load_table
from tests.support.derived import LAYOUTS, TABLE, Disk, found, granted, link, program, put


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory beside a worktree."""
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "tree").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(("name", "entry", "programs", "files", "variables"), LAYOUTS, ids=[row[0] for row in LAYOUTS])
def test_a_toolchain_on_path_is_granted_and_its_neighbours_are_not(
    home: Path, name: str, entry: str, programs: list[str], files: list[str], variables: dict[str, str]
) -> None:
    """Programmes and data of a known layout are granted read and execute; other files of the home are not."""
    for part in programs:
        program(home / part)
    for part in files:
        put(home / part)
    other = put(home / "Documents/letter.txt")
    result = found(home, f"~/{entry}")
    assert name in {tool.name for tool in result.found}
    assert [part for part in [*programs, *files] if not granted(result, home / part)] == []
    assert not granted(result, other)
    assert {access for _, access, _ in result.grants} == {"rx"}
    assert result.path == (f"{home}/{entry}",)
    expected = {key: value.replace("~", str(home)) for key, value in variables.items()}
    assert expected.items() <= dict(result.env_set).items()


@pytest.mark.parametrize(("name", "entry", "programs", "files", "variables"), LAYOUTS, ids=[row[0] for row in LAYOUTS])
def test_a_toolchain_off_path_is_not_granted(
    home: Path, name: str, entry: str, programs: list[str], files: list[str], variables: dict[str, str]
) -> None:
    """Installations that PATH does not lead to stay closed."""
    for part in programs:
        program(home / part)
    for part in files:
        put(home / part)
    result = found(home, "/usr/bin")
    assert (result.found, result.grants, result.env_set) == ((), (), ())


CREDENTIALS = [
    ".ssh/id_ed25519", ".gnupg/secring.gpg", ".aws/credentials", ".azure/token", ".kube/config", ".docker/config.json",
    ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".yarnrc.yml", ".pypirc", ".condarc", ".mambarc", ".bunfig.toml",
    ".cargo/credentials", ".cargo/credentials.toml",
    ".cargo/config.toml", ".m2/settings.xml", ".gradle/gradle.properties",
    ".gem/credentials", ".local/share/gem/credentials", ".bundle/config", ".cabal/config", ".composer/auth.json",
    ".config/composer/auth.json", ".config/pip/pip.conf", ".config/gh/hosts.yml", ".config/pypoetry/auth.toml",
    ".config/mise/config.toml", ".local/share/uv/credentials/credentials.toml", ".local/share/keyrings/login.keyring",
    ".nuget/NuGet/NuGet.Config", ".julia/servers/x/auth.toml", ".hex/hex.config", ".terraform.d/credentials.tfrc.json",
    ".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".gemini/oauth_creds.json", ".vault-token",
    ".local/share/opencode/auth.json", ".dotnet/corefx/x.pfx", ".microsoft/usersecrets/a/secrets.json",
    ".nvm/versions/node/v22/etc/npmrc", ".volta/tools/image/node/22/etc/npmrc", ".pyenv/versions/3.12/pip.conf",
    ".npm-global/etc/npmrc", "miniforge3/.condarc", "miniforge3/conda-meta/history", "miniforge3/envs/a/.condarc",
    "miniforge3/envs/a/conda-meta/history", ".local/share/pnpm/rc", ".local/share/pnpm/.npmrc", ".local/bin/.npmrc",
    ".rbenv/versions/3.3/etc/gemrc", ".sdkman/candidates/maven/3/conf/settings.xml", "bin/credentials.json",
    ".asdf/installs/nodejs/22/etc/npmrc", ".local/share/mise/installs/node/22/etc/npmrc",
]  # fmt: skip


def test_no_credential_file_is_covered_when_every_toolchain_is_on_path(home: Path) -> None:
    """With all layouts and all known credential files in one home, no grant reaches any of the latter."""
    entries = []
    for _, entry, programs, files, _ in LAYOUTS:
        entries.append(f"~/{entry}")
        for part in programs:
            program(home / part)
        for part in files:
            put(home / part)
    put(home / "venv/pyvenv.cfg")
    program(home / "venv/bin/tool")
    program(home / ".npm-global/bin/tool")
    put(home / ".npm-global/lib/node_modules/a/index.js")
    program(home / ".local/bin/tool")
    program(home / "bin/tool")
    put(home / "miniforge3/envs/a/conda-meta/y.json")
    for part in CREDENTIALS:
        put(home / part, "secret", mode=0o755 if part.startswith(("bin/", ".local/bin/")) else 0o600)
    extra = [
        "~/venv/bin",
        "~/.npm-global/bin",
        "~/.local/bin",
        "~/bin",
        "~/.rbenv/bin",
        "~/.ssh",
        "~/.cargo",
        "~/.config",
        "~",
    ]
    result = found(home, *entries, *extra, env={"VIRTUAL_ENV": "~/venv", "JAVA_HOME": "~/.sdkman/candidates/java/21"})
    assert [part for part in CREDENTIALS if granted(result, home / part)] == []
    names = {tool.name for tool in result.found}
    assert {name for name, *_ in LAYOUTS} <= names
    assert granted(result, home / "bin/tool")
    assert granted(result, home / ".npm-global/lib/node_modules/a/index.js")


def test_a_credential_directory_that_is_a_link_stays_closed(home: Path) -> None:
    """~/.ssh kept elsewhere is recognised at its real place, too."""
    put(home / "dotfiles/ssh/id_rsa", mode=0o755)
    link(home / ".ssh", home / "dotfiles/ssh")
    assert found(home, "~/dotfiles/ssh", "~/.ssh").grants == ()


def test_fnm_is_found_through_its_link_per_shell(home: Path) -> None:
    """PATH names a link in the state directory; the installation behind it is granted and the link reported."""
    program(home / ".local/share/fnm/node-versions/v22/installation/bin/node")
    shell = link(home / ".local/state/fnm_multishells/1", home / ".local/share/fnm/node-versions/v22/installation")
    result = found(home, "~/.local/state/fnm_multishells/1/bin")
    assert granted(result, home / ".local/share/fnm/node-versions/v22/installation/bin/node")
    assert dict(result.env_set)["FNM_DIR"] == f"{home}/.local/share/fnm"
    assert result.path == (f"{shell}/bin",)


def test_this_machines_toolchains_are_granted() -> None:
    """Whatever interpreter PATH finds here outside the system directories lies below a grant, after its links."""
    home = Path(os.environ.get("HOME", "/")).resolve()
    path = os.environ["PATH"] + ":" + str(Path(sys.executable).parent)
    result = discover(Disk(home, dict(os.environ)), path, TABLE, programs=(sys.executable,))
    assert sys.executable
    for name in ("python3", "python", "node", "cargo", "rustc", "go", Path(sys.executable).name):
        for directory in path.split(":"):
            candidate = Path(directory) / name
            real = str(candidate.resolve())
            if candidate.is_file() and not any(beneath(real, place) for place in TABLE.system):
                assert granted(result, candidate), candidate
    base = str(Path(sys.base_prefix).resolve())
    assert any(beneath(base, place) for place in TABLE.system) or granted(result, Path(os.__file__))


def test_a_broken_table_is_one_refusal(tmp_path: Path) -> None:
    """An unknown key in the table is refused with the file's name."""
    broken = put(tmp_path / "t.toml", 'schema = 1\nsurprise = "x"\n')
    with pytest.raises(Refusal) as refused:
        load_table(str(broken))
    assert refused.value.reference == "toolchains-invalid"
    assert str(broken) in refused.value.message


def test_every_brought_toolchain_exists_and_values_use_known_slots() -> None:
    """The table's cross references hold."""
    names = {tool.name for tool in TABLE.toolchain}
    for tool in TABLE.toolchain:
        assert set(tool.brings) <= names
        for value in tool.set.values():
            assert "$" not in value.replace("${root}", "").replace("${home}", "")


@pytest.mark.parametrize(
    ("content", "interpreter"),
    [
        (b"#!/opt/p/bin/python -I\nx", "/opt/p/bin/python"),
        (b"#! /opt/p/python\n", "/opt/p/python"),
        (b'#!/bin/sh\n\'\'\'exec\' "/o p/python" "$0" "$@"\n', "/o p/python"),
        (b"#!/bin/sh\n'''exec' /o/python \"$0\"\n", "/o/python"),
        (b"#!python\n", None),
        (b"#!\n", None),
        (b"\x7fELF", None),
        (b"", None),
    ],
)
def test_the_interpreter_of_a_script_is_read(content: bytes, interpreter: str | None) -> None:
    """Kernel and pip forms of `#!` lines."""
    assert interpreter_of(content) == interpreter
