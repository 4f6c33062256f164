"""A private git directory as a session leaves it, planted by hand, and harvests of it in a process of their own."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.vcs.quarantine import record
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.repository import Repo

PROGRAM = Path(__file__).with_name("harvesting.py")

_IDENTITY = ("-c", "user.name=Agent", "-c", "user.email=agent@example.invalid", "-c", "protocol.file.allow=always")


@dataclass(frozen=True)
class Planted:
    """The private git directory of one worktree.

    Args:
        repo: the main repository and its worktrees.
        worktree: the one that is worked in.
        directory: of Paddock's: record, lock, git.
        installed: the sources under test.
    """

    repo: Repo
    worktree: Path
    directory: Path
    installed: Installed

    @property
    def who(self) -> Who:
        """Whose all of it is."""
        return self.repo.who

    @property
    def git_dir(self) -> Path:
        """What the agent writes."""
        return self.directory / record.GIT

    def agent(self, *words: str, at: str = "", check: bool = True, stdin: str = "") -> str:
        """Runs git as the agent would: in the worktree (or the submodule `at`) on the private git directory."""
        git_dir = self.git_dir / f"modules/{at}" if at else self.git_dir
        ended = self.who.run(
            ["git", f"--git-dir={git_dir}", f"--work-tree={self.worktree / at}", *_IDENTITY, *words],
            cwd=self.worktree / at,
            stdin=stdin,
        )
        if check:
            assert ended.returncode == 0, ended.stderr
        return ended.stdout.removesuffix("\n")

    def commit(self, name: str, content: str, *, at: str = "", link: str = "") -> str:
        """Commits one file as the agent; returns the commit. With `link` the commit names that one of the submodule."""
        path = self.worktree / at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.who.give(path)
        self.agent("add", name, at=at)
        if link:
            # The `.git` of the submodule on the disk is the host's, so git must be told.
            self.agent("update-index", "--cacheinfo", f"160000,{link},library")
        self.agent("commit", "-q", "-m", f"agent: {name}.", at=at)
        return self.agent("rev-parse", "HEAD", at=at)

    def harvest(self, **spec: object) -> dict[str, Any]:
        """The result of a harvest, or the Refusal as `as_dict` gives it. See `harvesting.py` for what `spec` holds."""
        ended = self.start(**spec)
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer

    def start(self, **spec: object) -> "subprocess.CompletedProcess[str]":
        """Runs a harvest to its end, or to its kill."""
        words = [str(self.installed.python), "-I", "-c", PROGRAM.read_text(), json.dumps(spec), str(self.directory)]
        environment = spec.get("environment")
        return self.who.run(words, timeout=120, env=environment if isinstance(environment, dict) else None)

    def host(self, *words: str, at: Path | None = None) -> str:
        """Runs git as the user, outside."""
        return self.repo.git(*words, at=at or self.worktree)


def plant(repo: Repo, worktree: Path, installed: Installed, place: Path, *, submodule: bool = False) -> Planted:
    """Makes a private git directory for a worktree of `repo` (and for its submodule)."""
    directory = place / "state" / worktree.name
    (directory / record.GIT).mkdir(parents=True)
    made = Planted(repo, worktree, directory, installed)
    repo.who.give(place / "state")
    git_dir = Path(repo.git("rev-parse", "--absolute-git-dir", at=worktree))
    common = Path(os.path.normpath(worktree / repo.git("rev-parse", "--git-common-dir", at=worktree)))
    found = [_repository(made, "", worktree, git_dir, common)]
    if submodule:
        inner = Path(repo.git("rev-parse", "--absolute-git-dir", at=worktree / "library"))
        found.append(_repository(made, "library", worktree / "library", inner, inner))
    kind = "main" if git_dir == common else "linked"
    record.write(str(directory), record.Record(str(worktree), kind, record.MOUNTED, tuple(found)))
    repo.who.give(place / "state")
    return made


def _repository(made: Planted, name: str, path: Path, git_dir: Path, common: Path) -> record.Repository:
    repo = made.repo
    private = f"modules/{name}" if name else ""
    here = made.git_dir / private
    base = repo.git("rev-parse", "HEAD", at=path)
    branch = repo.who.run(["git", "symbolic-ref", "-q", "HEAD"], cwd=path).stdout.strip() or None
    run = repo.who.run
    assert run(["git", "init", "-q", "--bare", str(here)]).returncode == 0
    (here / "objects/info/alternates").write_text(f"{common}/objects\n")
    for words in (("config", "core.bare", "false"), ("config", "gc.auto", "0")):
        assert run(["git", f"--git-dir={here}", *words]).returncode == 0
    if branch:
        assert run(["git", f"--git-dir={here}", "update-ref", branch, base]).returncode == 0
        assert run(["git", f"--git-dir={here}", "symbolic-ref", "HEAD", branch]).returncode == 0
    else:
        (here / "HEAD").write_text(f"{base}\n")
    assert run(["git", f"--git-dir={here}", "read-tree", base]).returncode == 0
    repo.git("update-ref", record.pin(made.directory.name), base, at=path)
    stores = (f"{common}/objects",)
    return record.Repository(name, str(path), str(git_dir), str(common), private, branch, base, "sha1", stores)


def tree_state(directory: Path, *, ignore: tuple[str, ...] = ()) -> dict[str, tuple[object, ...]]:
    """Everything below `directory`, bit for bit (mode, content, time); names that begin with `ignore` left out."""
    found: dict[str, tuple[object, ...]] = {}
    for here, names, files in os.walk(directory):
        for name in (*names, *files):
            path = Path(here, name)
            relative = str(path.relative_to(directory))
            if relative.startswith(ignore):
                continue
            entry = path.lstat()
            content: object = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[relative] = (entry.st_mode, entry.st_ino, content, *(
                () if path.is_dir() else (entry.st_size, entry.st_mtime_ns)))  # fmt: skip
    return found
