"""Repositories for the tests of the worktree service, and git as a user would run it on them."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from launcher.vcs.worktrees.service import WorktreeService
from tests.support import templates
from tests.support.identity import SYSTEM_PATH

ENV = {
    "PATH": SYSTEM_PATH,
    "HOME": "/nonexistent",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    "GIT_CONFIG_KEY_1": "user.name",
    "GIT_CONFIG_VALUE_1": "T",
    "GIT_CONFIG_KEY_2": "user.email",
    "GIT_CONFIG_VALUE_2": "t@example.invalid",
}


def git(*words: str, at: Path) -> str:
    """Runs plain git and returns its output without the white space around it."""
    ended = subprocess.run(["git", *words], cwd=at, env=ENV, check=True, capture_output=True, text=True, timeout=60)
    return ended.stdout.strip()


def committed(path: Path, **files: str) -> None:
    """Writes files and commits them."""
    for name, text in files.items():
        (path / name).write_text(text)
    git("add", ".", at=path)
    git("commit", "-q", "-m", "Work.", at=path)


class Place(NamedTuple):
    """A directory with a repository `app` in it, and a service whose state lies beside it."""

    root: Path
    app: Path
    service: WorktreeService

    @property
    def state(self) -> str:
        """The service's state directory."""
        return str(self.root / "state")

    @property
    def branches(self) -> set[str]:
        """Short names of the repository's branches, and full names of its other refs."""
        return set(git("for-each-ref", "--format=%(refname:short)", at=self.app).splitlines())


def plain(root: Path) -> Place:
    """`app` has one file and ignores `.env` and logs."""
    templates.repeat(_plain, root)
    return Place(root, root / "app", WorktreeService(str(root / "state")))


def _plain(root: Path) -> None:
    app = root / "app"
    app.mkdir()
    git("init", "-q", "-b", "main", at=app)
    committed(app, **{"file": "one\n", ".gitignore": ".env\n*.log\n"})


def nested(root: Path) -> Place:
    """`app` has the submodule `outer` at lib/outer, and that `deep/inner`. What they were cloned from is gone."""
    templates.repeat(_nested, root)
    return Place(root, root / "app", WorktreeService(str(root / "state")))


def _nested(root: Path) -> None:
    for name in ("up-inner", "up-outer", "app"):
        (root / name).mkdir()
        git("init", "-q", "-b", "main", at=root / name)
        committed(root / name, file=f"{name}\n")
    git("submodule", "--quiet", "add", "../up-inner", "deep/inner", at=root / "up-outer")
    git("commit", "-q", "-m", "Inner.", at=root / "up-outer")
    git("submodule", "--quiet", "add", "--name", "outer", "../up-outer", "lib/outer", at=root / "app")
    git("commit", "-q", "-m", "Outer.", at=root / "app")
    git("submodule", "--quiet", "update", "--init", "--recursive", at=root / "app")
    for name in ("up-inner", "up-outer"):
        (root / name).rename(root / f"gone-{name}")


def leftovers(place: Place) -> list[str]:
    """What a half-made or half-removed worktree could have left: odd names, locks, metadata without files."""
    found = [path.name for path in place.root.iterdir() if path.name.startswith(".")]
    for store in [place.app / ".git", *(place.app / ".git/modules").rglob("objects")]:
        directory = (store.parent if store.name == "objects" else store) / "worktrees"
        for admin in directory.iterdir() if directory.is_dir() else ():
            if (admin / "locked").exists() or not Path((admin / "gitdir").read_text().strip()).exists():
                found.append(str(admin))
    return [*found, *(name for name in os.listdir(place.app / ".git") if name.endswith(".lock"))]
