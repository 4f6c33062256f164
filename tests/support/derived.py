"""A machine in a table, toolchains on a real disk, and the arguments of `derive` for them."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from launcher.session import cache, places
from launcher.vcs.disk import Names
from policy import verdict
from policy.bring import NOTHING_SECRET, Secrets
from policy.config.settings import Rules
from policy.derive import derive
from policy.errors import Refusal
from policy.launch import Boundaries, Command, Git, Support, Trail, Translation
from policy.plan import Plan, beneath
from policy.toolchains import NOTHING, Toolchains, discover, load_table

# A table of toolchains' homes and a host over the real disk, for the tests of discovery.

TABLE = load_table()


class Disk:
    """A `Host` over the real disk, with an environment of its own."""

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

    def locations(self, pattern: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, self._environment[name]) for name in sorted(self._environment) if fnmatch(name, pattern))

    def kind(self, path: str) -> str | None:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        return "link" if stat.S_ISLNK(mode) else "dir" if stat.S_ISDIR(mode) else "file"

    def resolve(self, path: str) -> str | None:
        return self.trail(path).canonical

    def trail(self, path: str) -> Trail:
        return Names().walk(path)

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        entries = self.listing(directory) or ()
        return tuple(name for name in entries if name in names or (suffixes and name.endswith(suffixes)))

    def listing(self, path: str) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return None

    def contents(self, path: str) -> tuple[tuple[str, str, int], ...] | None:
        found = [(name, f"{path}/{name}") for name in self.listing(path) or ()]
        return tuple((name, self.kind(place) or "", self.names(place)) for name, place in found)

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        return content if len(content) <= limit else None

    def executable(self, path: str) -> bool:
        return Path(path).is_file() and bool(Path(path).stat().st_mode & 0o111)

    def names(self, path: str) -> int:
        return int(self.kind(path) == "file")

    def others_can_write(self, path: str) -> bool:
        found = Path(path).stat()
        return bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in {0, os.geteuid()}


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
    worktree = str(home.parent / "tree")
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


# Launches without the launch, for tests of the plan cache.


class Bench:
    """Launches without the launch: the plan of one command in a real repository, cached as `paddock run` does it.

    Attributes:
        place: everything of this test lies below it.
        root: the main checkout, with a populated submodule ``library``.
        first, second: the directories in front of the system's in PATH.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "repo"
        self.first, self.second = place / "first", place / "second"
        self.options: dict[str, str | list[str] | bool] = {}
        self.command = ["tool", "argument"]

    @property
    def where(self) -> places.Places:
        return places.places(os.environ)

    def key(self) -> bytes:
        words, _ = cache.key_words(self.options, self.command)
        return cache.key(words, str(self.root))

    def plan(self) -> cache.Entry:
        """What a launch does that finds nothing."""
        return cache.planned_anew(self.options, self.command, str(self.root), self.where, self.key())

    def cached(self) -> cache.Entry | None:
        """What a launch finds."""
        return cache.load(self.where, self.key(), os.environ)

    @property
    def entries(self) -> list[Path]:
        return sorted(Path(self.where.cache, "plans").iterdir())

    @property
    def entry(self) -> Path:
        (path,) = self.entries
        return path


ROOT = "/home/u/work"
MAIN = "/home/u/main/.git"
OWN = MAIN + "/worktrees/work"
STATE = "/home/u/.local/state/paddock"


@dataclass
class Table:
    """A machine in a table: path -> kind, text of a link, or content of a file. Directories above exist anyway."""

    entries: dict[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    home: str = "/home/u"
    uid: int = 1000
    links_of: Mapping[str, int] = field(default_factory=dict)

    def env(self, name: str) -> str | None:
        return self.variables.get(name)

    def locations(self, pattern: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, self.variables[name]) for name in sorted(self.variables) if fnmatch(name, pattern))

    def _known(self) -> set[str]:
        found = {"/"}
        for path in self.entries:
            while path != "/":
                found.add(path)
                path = os.path.dirname(path)
        return found

    def trail(self, path: str) -> Trail:
        met: list[tuple[str, str]] = []
        done, rest = "/", [part for part in path.split("/") if part]
        own, entry = len(rest), None if rest else "/"
        while rest and len(met) < 40:
            part = rest.pop(0)
            here = os.path.dirname(done) if part == ".." else os.path.join(done, part)
            if len(rest) < own:
                own = len(rest)
                entry = None if rest else here
            text = self.entries.get(here, "")
            if text.startswith("-> "):
                met.append((here, text[3:]))
                rest = [piece for piece in text[3:].split("/") if piece] + rest
                done = "/" if text.startswith("-> /") else done
            elif here in self._known():
                done = here
            else:
                return Trail(None, tuple(met), entry, here)
        return Trail(done if not rest else None, tuple(met), entry, done)

    def kind(self, path: str) -> str | None:
        if path not in self._known():
            return None
        text = self.entries.get(path, "dir")
        if text.startswith("-> "):
            return "link"
        return text if text in ("dir", "file", "char", "fifo", "socket") else "file"

    def resolve(self, path: str) -> str | None:
        return self.trail(path).canonical

    def listing(self, path: str) -> tuple[str, ...] | None:
        if self.kind(path) != "dir":
            return None
        prefix = path.rstrip("/") + "/"
        return tuple(
            sorted({known[len(prefix) :].split("/")[0] for known in self._known() if known.startswith(prefix)})
        )

    def contents(self, path: str) -> tuple[tuple[str, str, int], ...] | None:
        names = self.listing(path)
        if names is None:
            return None
        found = [(name, f"{path}/{name}") for name in names]
        return tuple((name, self.kind(place) or "", self.names(place)) for name, place in found)

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        found = self.listing(directory) or ()
        return tuple(name for name in found if name in names or name.endswith(suffixes))

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        text = self.entries.get(path)
        return None if text is None or len(text) > limit else text.encode()

    def executable(self, path: str) -> bool:
        return self.kind(path) == "file"

    def names(self, path: str) -> int:
        return self.links_of.get(path, int(self.kind(path) == "file"))

    def others_can_write(self, path: str) -> bool:
        return False


MACHINE = {
    "/usr/bin/tool": "file",
    "/bin": "-> usr/bin",
    "/etc/hosts": "file",
    "/dev/null": "char",
    "/dev/ptmx": "char",
    f"{ROOT}/src/a.py": "file",
    f"{ROOT}/secret/key": "file",
    f"{ROOT}/link": "-> secret",
    f"{ROOT}/.git": "gitdir: x",
    f"{ROOT}/.envrc": "file",
    f"{ROOT}/lib/one.c": "file",
    f"{ROOT}/lib/.git": "gitdir: y",
    f"{ROOT}/lib/deep/two.c": "file",
    f"{ROOT}/lib/deep/inner/three.c": "file",
    f"{OWN}/modules/lib/HEAD": "file",
    f"{MAIN}/objects/info/alternates": "/srv/objects\nrelative\n# no\n/gone\n",
    f"{MAIN}/objects/relative/x": "file",
    "/srv/objects/pack": "dir",
    "/srv/data/inner/x": "file",
    "/srv/data/y": "file",
    f"{STATE}/sessions": "dir",
    "/home/u/.config/paddock": "dir",
}


def rules_of(fields: dict[str, Any]) -> Rules:
    return Rules(**fields)


RULES = rules_of(
    dict.fromkeys(Rules._fields, ())
    | {
        "system_trees": (("/usr", "default"), ("/bin", "default"), ("/missing", "default")),
        "system_files": (("/etc/hosts", "default"),),
        "devices": (
            ("/dev/null", "rwi", "default"),
            ("/dev/ptmx", "rwi", "default"),
            ("/dev/gone", "r", "default"),
        ),
        "net": "none",
        "git": "readonly",
        "backend": "auto",
        "env_pass": ("PATH", "LC_*"),
        "handoff_protect": (".envrc", ".missing", ".git/hooks"),
        "handoff_report": ("src/a.py",),
    }
)

MOUNTS = SimpleNamespace(
    landlock_abi=7, seccomp=True, userns=True, userns_why="", fresh_proc=True, fresh_proc_why="", uid=1000,
    guard=True, guard_why="", bubblewrap=False, bubblewrap_why="not installed",
)  # fmt: skip
GUARD = SimpleNamespace(**(vars(MOUNTS) | {"userns": False, "userns_why": "AppArmor"}))


class Submodule(NamedTuple):
    name: str
    path: str
    granted: bool


def submodule(name: str, path: str, *, granted: bool) -> Submodule:
    return Submodule(name, path, granted)


def context(*submodules: Submodule, freeze_root: bool = False) -> Boundaries:
    granted, ungranted = (tuple(each[:2] for each in submodules if each.granted is wanted) for wanted in (True, False))
    return Boundaries(ROOT, "work", granted, ungranted, freeze_root)


LINKED = Git("linked", OWN, MAIN, (("lib", f"{OWN}/modules/lib"),))
CHECKOUT = Git("main", f"{ROOT}/.git", f"{ROOT}/.git", ())
COMMAND = Command("tool", "/bin/tool", "/usr/bin/tool", ROOT)


def plan(
    rules: Rules = RULES,
    *,
    about: Boundaries | None = None,
    git: Git = LINKED,
    command: Command = COMMAND,
    support: Any = MOUNTS,  # noqa: ANN401  # a namespace in the probe's place
    more: Mapping[str, str] = {},
    toolchains: Toolchains = NOTHING,
    provider: Translation | None = None,
    own: tuple[str, ...] = (STATE,),
    written: tuple[str, ...] = (),
    secrets: Secrets = NOTHING_SECRET,
    **changes: object,
) -> Plan:
    machine: Support = support
    return derive(
        about or context(),
        git,
        command,
        rules._replace(**changes),  # type: ignore[arg-type]  # keyword by keyword
        machine,
        Table(MACHINE | dict(more)),
        toolchains=toolchains,
        provider=provider,
        own=own,
        written=written,
        secrets=secrets,
    )


def refused(**arguments: Any) -> Refusal:  # noqa: ANN401  # as `plan` takes them
    with pytest.raises(Refusal) as caught:
        plan(**arguments)
    return caught.value


def access(found: Plan, path: str) -> str:
    return verdict.decide(found, path).access
