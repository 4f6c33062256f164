"""A table of toolchains' homes and a host over the real disk, for the tests of discovery."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from launcher.vcs.disk import Names
from policy.launch import Trail
from policy.plan import beneath
from policy.toolchains import Toolchains, discover, load_table

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
