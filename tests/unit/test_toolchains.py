"""Toolchains: what PATH reaches is granted, what holds credentials is not."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from policy.errors import Refusal
from policy.plan import beneath
from policy.shebang import interpreter_of
from policy.toolchain_table import load_table
from policy.toolchains import Toolchains, discover

TABLE = load_table()


class Disk:
    """A `ToolchainHost` over the real disk, with an environment of its own."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self._home = str(home.resolve())
        self._environment = dict(environment or {})

    @property
    def home(self) -> str:
        return self._home

    @property
    def uid(self) -> int:
        return os.geteuid()

    def env(self, name: str) -> str | None:
        return self._environment.get(name)

    def kind(self, path: str) -> str | None:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        return "link" if stat.S_ISLNK(mode) else "dir" if stat.S_ISDIR(mode) else "file"

    def resolve(self, path: str) -> str | None:
        try:
            return os.path.realpath(path, strict=True)
        except OSError:
            return None

    def links(self, path: str) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        here = path
        while Path(here).is_symlink() and len(found) < 40:
            text = str(Path(here).readlink())
            found.append((here, text))
            here = os.path.normpath(Path(here).parent / text)
        return tuple(found)

    def listing(self, path: str) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return None

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        return content if len(content) <= limit else None

    def executable(self, path: str) -> bool:
        return Path(path).is_file() and bool(Path(path).stat().st_mode & 0o111)

    def others_can_write(self, path: str) -> bool:
        found = Path(path).stat()
        return bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in {0, os.geteuid()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory beside a worktree."""
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "work").mkdir()
    return tmp_path / "home"


def put(path: Path, content: str = "", *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def program(path: Path, content: str = "#!/bin/sh\n") -> Path:
    return put(path, content, mode=0o755)


def link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def found(
    home: Path, *entries: str, env: Mapping[str, str] | None = None, programs: tuple[str, ...] = ()
) -> Toolchains:
    path = ":".join(entry.replace("~", str(home)) for entry in entries)
    worktree = str(home.parent / "work")
    environment = {name: value.replace("~", str(home)) for name, value in (env or {}).items()}
    return discover(Disk(home, environment), path, TABLE, worktree=worktree, programs=programs)


def granted(result: Toolchains, path: Path) -> bool:
    real = str(path.resolve())
    allowed = any(beneath(real, place) for place, _, _ in result.grants)
    return allowed and not any(beneath(real, place) for place, _ in result.denied)


LAYOUTS: list[tuple[str, str, list[str], list[str], dict[str, str]]] = [
    # name, PATH entry, programmes, plain files, variables that must be set
    ("pyenv", ".pyenv/shims", [".pyenv/shims/python", ".pyenv/libexec/pyenv", ".pyenv/versions/3.12/bin/python3.12"],
     [".pyenv/version"], {"PYENV_ROOT": "~/.pyenv", "PIP_CACHE_DIR": "${home}/.cache/pip"}),
    ("nvm", ".nvm/versions/node/v22/bin", [".nvm/versions/node/v22/bin/node"],
     [".nvm/nvm.sh", ".nvm/versions/node/v22/lib/node_modules/npm/index.js"], {"NVM_DIR": "~/.nvm"}),
    ("volta", ".volta/bin", [".volta/bin/volta-shim", ".volta/tools/image/node/22/bin/node"], [],
     {"VOLTA_HOME": "~/.volta"}),
    ("asdf", ".asdf/shims", [".asdf/shims/node", ".asdf/installs/nodejs/22/bin/node"], [".asdf/plugins/nodejs/LICENSE"],
     {"ASDF_DATA_DIR": "~/.asdf"}),
    ("mise", ".local/share/mise/installs/go/1/bin", [".local/share/mise/installs/go/1/bin/go"], [],
     {"MISE_CACHE_DIR": "${home}/.cache/mise"}),
    ("rustup", ".cargo/bin", [".cargo/bin/rustup", ".rustup/toolchains/stable/bin/rustc"], [".rustup/settings.toml"],
     {"RUSTUP_HOME": "~/.rustup", "CARGO_HOME": "${home}/.cargo"}),
    ("go", "sdk/go1.24/bin", ["sdk/go1.24/bin/go", "sdk/go1.24/pkg/tool/compile"], ["sdk/go1.24/src/fmt/print.go"],
     {"GOPATH": "${home}/go", "GOCACHE": "${home}/.cache/go-build", "GOMODCACHE": "${home}/go/pkg/mod"}),
    ("gopath", "go/bin", ["go/bin/gopls"], [], {"GOPATH": "${home}/go"}),
    ("conda", "miniforge3/bin", ["miniforge3/bin/python"], ["miniforge3/conda-meta/x.json", "miniforge3/lib/libz.so"],
     {"CONDA_PKGS_DIRS": "${home}/.conda/pkgs"}),
    ("sdkman", ".sdkman/candidates/java/21/bin", [".sdkman/candidates/java/21/bin/java"],
     [".sdkman/candidates/java/21/release"], {"SDKMAN_DIR": "~/.sdkman"}),
    ("bun", ".bun/bin", [".bun/bin/bun"], [], {"BUN_INSTALL_CACHE_DIR": "${home}/.bun/install/cache"}),
    ("deno", ".deno/bin", [".deno/bin/deno"], [], {"DENO_DIR": "${home}/.cache/deno"}),
    ("pnpm", ".local/share/pnpm", [".local/share/pnpm/pnpm"], [".local/share/pnpm/global/5/package.json"],
     {"PNPM_HOME": "~/.local/share/pnpm"}),
    ("ghcup", ".ghcup/bin", [".ghcup/bin/ghc", ".ghcup/ghc/9.8/bin/ghc"], [], {"CABAL_DIR": "${home}/.cabal"}),
    ("rbenv", ".rbenv/shims", [".rbenv/shims/ruby", ".rbenv/libexec/rbenv", ".rbenv/versions/3.3/bin/ruby"], [],
     {"RBENV_ROOT": "~/.rbenv"}),
    ("rvm", ".rvm/rubies/ruby-3.3/bin", [".rvm/rubies/ruby-3.3/bin/ruby"], [".rvm/scripts/rvm"],
     {"rvm_path": "~/.rvm"}),
    ("juliaup", ".juliaup/bin", [".juliaup/bin/julia", ".julia/juliaup/julia-1.10/bin/julia"],
     [".julia/juliaup/juliaup.json"], {"JULIA_DEPOT_PATH": "${home}/.julia:"}),
    ("dotnet", ".dotnet", [".dotnet/dotnet", ".dotnet/tools/dotnet-ef"], [".dotnet/sdk/9/dotnet.dll"],
     {"NUGET_PACKAGES": "${home}/.nuget/packages"}),
    ("jenv", ".jenv/shims", [".jenv/shims/java", ".jenv/libexec/jenv"], [".jenv/version"], {"JENV_ROOT": "~/.jenv"}),
    ("composer", ".config/composer/vendor/bin", [".config/composer/vendor/bin/phpstan"], [],
     {"COMPOSER_HOME": "${home}/.config/composer"}),
]  # fmt: skip


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


def test_links_out_of_a_plain_directory_lead_to_their_installations(home: Path) -> None:
    """~/.local/bin leads to uv's interpreters and tools, pipx and npm, but uv's credentials stay closed."""
    python = program(home / ".local/share/uv/python/cpython-3.13/bin/python3.13")
    link(home / ".local/share/uv/tools/ruff/bin/python", python)
    link(home / ".local/bin/ruff", program(home / ".local/share/uv/tools/ruff/bin/ruff"))
    link(home / ".local/bin/black", program(home / ".local/share/pipx/venvs/black/bin/black"))
    put(home / ".local/lib/node_modules/tsc/cli.js", mode=0o755)
    link(home / ".local/bin/tsc", "../lib/node_modules/tsc/cli.js")
    secret = put(home / ".local/share/uv/credentials/credentials.toml")
    diary = put(home / ".local/share/diary/today.txt")
    result = found(home, "~/.local/bin")
    assert {"uv", "pipx", "node"} <= {tool.name for tool in result.found}
    assert granted(result, python)
    assert granted(result, home / ".local/lib/node_modules/tsc/cli.js")
    assert not granted(result, secret)
    assert not granted(result, diary)
    assert result.path == (f"{home}/.local/bin",)


def test_a_script_leads_to_the_interpreter_of_its_first_line(home: Path) -> None:
    """A copied pipx script names its environment's interpreter, which is a link into pyenv."""
    real = program(home / ".pyenv/versions/3.12/bin/python3.12")
    program(home / ".pyenv/libexec/pyenv")
    put(home / "envs/tool/pyvenv.cfg")
    link(home / "envs/tool/bin/python", real)
    module = put(home / "envs/tool/lib/python3.12/site-packages/tool.py")
    program(home / "bin/tool", f"#!{home}/envs/tool/bin/python\n")
    result = found(home, "~/bin")
    assert granted(result, module)
    assert granted(result, real)


def test_a_link_to_one_programme_grants_just_that_file(home: Path) -> None:
    """A single binary that belongs to no known layout is granted alone."""
    target = program(home / ".local/share/claude/versions/2.1", "\x7fELF")
    neighbour = put(home / ".local/share/claude/notes.txt")
    link(home / ".local/bin/claude", target)
    result = found(home, "~/.local/bin")
    assert granted(result, target)
    assert not granted(result, neighbour)


def test_a_link_to_a_plain_file_grants_nothing(home: Path) -> None:
    """A link in a directory of programmes does not open what is no programme."""
    target = put(home / "Documents/letter.txt")
    link(home / "bin/letter", target)
    result = found(home, "~/bin")
    assert not granted(result, target)
    assert any("letter.txt" in note for note in result.notes)


def test_a_directory_with_other_files_is_granted_programme_by_programme(home: Path) -> None:
    """~/bin with a plain file in it: the programme runs, the file stays closed, and a note says so."""
    tool, stray = program(home / "bin/tool"), put(home / "bin/passwords.txt")
    result = found(home, "~/bin")
    assert granted(result, tool)
    assert not granted(result, stray)
    assert any("passwords.txt" in note for note in result.notes)


def test_a_directory_of_programmes_is_granted_whole(home: Path) -> None:
    """~/bin with nothing but programmes is one grant."""
    program(home / "bin/a")
    program(home / "bin/b")
    assert found(home, "~/bin").grants == ((f"{home}/bin", "rx", "PATH"),)


@pytest.mark.parametrize(("entry", "word"), [("bin", "relative"), ("", "relative"), (".", "relative"), ("~", "home")])
def test_odd_path_entries_are_refused_with_a_reason(home: Path, entry: str, word: str) -> None:
    """Relative entries and the home directory itself are not granted."""
    program(home / "tool")
    result = found(home, entry)
    assert (result.grants, result.path) == ((), ())
    assert word in result.notes[0]


def test_a_directory_that_others_can_write_is_not_granted(home: Path) -> None:
    """Anybody could put a programme there."""
    program(home / "bin/tool")
    (home / "bin").chmod(0o777)
    result = found(home, "~/bin")
    assert (result.grants, result.path) == ((), ())
    assert "other users" in result.notes[0]
    (home / "bin").chmod(0o755)
    assert granted(found(home, "~/bin"), home / "bin/tool")


def test_the_worktree_is_left_to_its_own_grant(home: Path) -> None:
    """A PATH entry in the worktree stays on PATH and adds no grant."""
    program(home.parent / "work/node_modules/.bin/tool")
    result = found(home, "~/../work/node_modules/.bin")
    assert result.grants == ()
    assert len(result.path) == 1


def test_a_root_that_holds_the_worktree_is_never_granted(home: Path) -> None:
    """A virtual environment made in the worktree's parent would open everything beside the worktree."""
    put(home.parent / "pyvenv.cfg")
    program(home.parent / "bin/tool")
    result = found(home, env={"VIRTUAL_ENV": str(home.parent)})
    assert result.grants == ()


def test_an_active_virtual_environment_is_granted_with_its_base(home: Path) -> None:
    """VIRTUAL_ENV counts without PATH, passes through, and leads to the interpreter it was made from."""
    program(home / "opt/py/bin/python3")
    library = put(home / "opt/py/lib/python3.12/os.py")
    put(home / "venv/pyvenv.cfg")
    link(home / "venv/bin/python", home / "opt/py/bin/python3")
    result = found(home, env={"VIRTUAL_ENV": "~/venv"})
    assert granted(result, library)
    assert dict(result.env_set)["VIRTUAL_ENV"] == f"{home}/venv"


def test_a_variable_alone_opens_nothing(home: Path) -> None:
    """A variable that names a directory without the toolchain's markers is ignored and not passed on."""
    secret = put(home / "private/file")
    result = found(home, env={"VIRTUAL_ENV": "~/private", "JAVA_HOME": "~/private", "PYENV_ROOT": "~/private"})
    assert not granted(result, secret)
    assert result.env_set == ()


def test_an_environment_in_the_worktree_leads_to_a_known_toolchain_only(home: Path) -> None:
    """The worktree's .venv opens uv's interpreters; a link that an agent planted to another project opens nothing."""
    python = program(home / ".local/share/uv/python/cpython-3.13/bin/python3.13")
    link(home.parent / "work/.venv/bin/python", python)
    put(home / "other/pyvenv.cfg")
    link(home.parent / "work/venv/bin/python", program(home / "other/bin/python"))
    result = found(home)
    assert granted(result, python)
    assert not granted(result, home / "other/bin/python")


def test_a_named_programme_is_followed(home: Path) -> None:
    """The command itself may lie off PATH."""
    tool = program(home / "tools/agent/run", "\x7fELF")
    assert granted(found(home, programs=(str(tool),)), tool)


def test_a_shared_prefix_is_not_taken_for_an_installation(home: Path) -> None:
    """~/.local with python3 in bin and lib stays closed apart from its programmes and site packages."""
    program(home / ".local/bin/python3")
    site = put(home / ".local/lib/python3.12/site-packages/a.py")
    data = put(home / ".local/share/mail/inbox")
    result = found(home, "~/.local/bin")
    assert granted(result, site)
    assert not granted(result, data)
    assert dict(result.env_set)["PYTHONUSERBASE"] == f"{home}/.local"


def test_asdf_brings_its_version_file_to_the_private_home(home: Path) -> None:
    """The shims look for .tool-versions in HOME."""
    program(home / ".asdf/shims/node")
    put(home / ".tool-versions", "nodejs 22\n")
    assert found(home, "~/.asdf/shims").seeds == ((".tool-versions", f"{home}/.tool-versions"),)


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
        load_table(broken)
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
