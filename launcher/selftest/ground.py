"""The scratch area of the self-test: a home directory worth robbing, repositories, and the worktree of the sandbox.

Whatever an attack does here without a sandbox harms nobody. Everything but the worktree is watched: `Ground.changes`
says what differs from before, and `Ground.restore` puts it back.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.safefs.remove import remove_tree
from policy.errors import Refusal

PRIZES = {
    "an SSH key": "home/.ssh/id_ed25519",
    "cloud credentials": "home/.aws/credentials",
    "passwords of .netrc": "home/.netrc",
    "git's stored passwords": "home/.git-credentials",
    "a token of npm": "home/.npmrc",
    "a token of PyPI": "home/.pypirc",
    "a token of GitHub": "home/.config/gh/hosts.yml",
    "a login of Docker": "home/.docker/config.json",
    "a key of Kubernetes": "home/.kube/config",
    "a GPG key": "home/.gnupg/private-keys-v1.d/key",
    "a browser's logins": "home/.mozilla/firefox/profile/logins.json",
    "the shell's history": "home/.bash_history",
    "a letter": "home/Documents/letter",
    "another project": "project/plans",
    "an ignored file of the main checkout": "main/.env",
    "an ignored file of another worktree": "other/.env",
    "a temporary file of another programme": "temp/secret",
    "shared memory of another programme": "shared/memory",
}
"""What holds a secret -> where."""

STARTING = ("home/.bashrc", "home/.profile", "home/.local/bin/ls", "home/.config/autostart/editor.desktop",
            "home/.ssh/authorized_keys", "home/.config/systemd/user/a.service")  # fmt: skip
"""What other programmes start or trust."""

HANDOFF = (".envrc", ".vscode/tasks.json", ".vscode/settings.json", ".claude/settings.json", ".mcp.json",
           ".zed/tasks.json", ".idea/workspace.xml", ".vscode/launch.json")  # fmt: skip
"""Files of the worktree that other tools execute or obey."""

_WATCHED = ("home", "main", "other", "project", "out")
_FILES = {
    "README": "A project.\n", "src/a.py": "print('hello')\n", "src/b.c": "int main(void) { return 0; }\n",
    "Makefile": "all:\n\t@echo built\n", ".gitignore": ".env\n", ".github/workflows/ci.yml": "on: push\n",
}  # fmt: skip


class State(NamedTuple):
    """Everything about an entry that anybody could change; nobody sets a change time back."""

    mode: int
    owner: tuple[int, int]
    links: int
    changed: int
    content: bytes


class Ground:
    """A scratch area; `base` and `tree` are directories.

    Args:
        base: where.
        elsewhere: directories in /tmp and in shared memory, by the names ``temp`` and ``shared``.
        tokens: place -> the secret that lies there.
        environment: of what is started.
        add: words that make the worktree `base/tree` on a new branch, in `base/main`.
    """

    def __init__(
        self,
        base: Path,
        elsewhere: dict[str, Path],
        tokens: dict[str, str],
        environment: dict[str, str],
        add: Iterable[str],
    ) -> None:
        self.base, self._environment = base, environment
        self.tree = base / "tree"
        self._tokens, self._add, self._elsewhere = tokens, list(add), elsewhere
        self._roots = {name: base / name for name in _WATCHED} | elsewhere
        self._before: dict[str, State] = {}

    def make(self) -> None:
        """Makes all of it.

        Raises:
            Refusal: git or what adds the worktree failed.
        """
        base, tokens = self.base, self._tokens
        for directory in (base / "out", base / "run", *self._elsewhere.values()):
            directory.mkdir(parents=True)
        (base / "run").chmod(0o700)
        for place, path in PRIZES.items():
            if not path.startswith(("main/", "other/")):
                _put(self._at(path), f"{tokens[place]}\n", 0o600)
        for path in STARTING:
            _put(base / path, f"# {path}\n", 0o755 if "/bin/" in path else 0o644)
        _put(base / "home/.gitconfig", "[user]\n\tname = Tester\n\temail = tester@example.invalid\n", 0o644)
        self._repository(tokens)
        for place in ("an ignored file of the main checkout", "an ignored file of another worktree"):
            _put(base / PRIZES[place], f"{tokens[place]}\n", 0o600)

    def _repository(self, tokens: dict[str, str]) -> None:
        main = self.base / "main"
        self._git("init", "-q", "--template=", "-b", "main", str(main), at=self.base)
        for path, content in _FILES.items():
            _put(main / path, content, 0o644)
        for path in HANDOFF:
            _put(main / path, f"# {path}\n", 0o644)
        shutil.copyfile(Path(__file__).with_name("inside.py"), main / "inside.py")
        token = tokens["the repository's configuration"]
        self._git("config", "remote.origin.url", f"https://me:{token}@forge.invalid/project", at=main)
        self._git("add", "-A", at=main)
        self._git("commit", "-qm", "project: First.", at=main)
        self._git("tag", "v1", at=main)
        self._git("worktree", "add", "-q", "-b", "other", str(self.base / "other"), at=main)
        self._start(self._add, main)

    def _git(self, *words: str, at: Path) -> None:
        self._start(["git", *words], at)

    def _start(self, words: list[str], at: Path) -> None:
        done = subprocess.run(
            words, cwd=at, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise Refusal(
                "selftest-failed", f"the scratch area could not be made: {words[0]} failed", context=done.stderr[-2000:]
            )

    def facts(self) -> dict[str, str]:
        """What the scripts are told of it."""
        named = {name.upper(): str(path) for name, path in self._roots.items()} | {"TREE": str(self.tree)}
        named |= {"HOST_HOME": named.pop("HOME"), "OTHERS_TMP": named.pop("TEMP")}  # TEMP means something to programmes
        return named

    def _at(self, path: str) -> Path:
        """Where a watched path lies."""
        name, _, below = path.partition("/")
        return (self._roots[name] if name in self._roots else self.base / name) / below

    def keep(self) -> None:
        """Remembers what is there now."""
        self._before = self._seen()

    def changes(self) -> list[str]:
        """What differs from what was remembered, by path."""
        now = self._seen()
        return sorted(path for path in self._before.keys() | now.keys() if self._before.get(path) != now.get(path))

    def restore(self, changed: Iterable[str]) -> None:
        """Puts back what has changed, and remembers that."""
        for path in changed:  # what is above something comes before it
            place, before = self._at(path), self._before.get(path)
            if before is None or not (stat.S_ISDIR(before.mode) and place.is_dir() and not place.is_symlink()):
                _removed(place)
            if before is not None:
                _put_back(place, before)
        self._before = self._seen()

    def _seen(self) -> dict[str, State]:
        found: dict[str, State] = {}
        pending = [(str(root), name) for name, root in self._roots.items() if os.path.lexists(root)]
        found |= {name: _state(path) for path, name in pending}
        while pending:
            directory, below = pending.pop()
            entries: list[os.DirEntry[str]] = []
            with suppress(OSError), os.scandir(directory) as scanned:
                entries += scanned
            for entry in entries:
                name = f"{below}/{entry.name}"
                found[name] = _state(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, name))
        for each in (*HANDOFF, ".git"):
            if os.path.lexists(self.tree / each):
                found[f"tree/{each}"] = _state(str(self.tree / each))
        return found

    def remove(self) -> None:
        """Removes all of it."""
        for path in (self.base, *self._roots.values()):
            remove_tree(str(path))


def _removed(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        remove_tree(str(place))
    else:
        place.unlink(missing_ok=True)


def _put_back(place: Path, before: State) -> None:
    if stat.S_ISLNK(before.mode):
        place.symlink_to(os.fsdecode(before.content))
        return
    if stat.S_ISDIR(before.mode):
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.write_bytes(before.content)
    place.chmod(stat.S_IMODE(before.mode))


def _put(path: Path, content: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def _state(path: str) -> State:
    """Of an entry. Content is read each time: what is written through a mapping need not change a time (mmap(2))."""
    entry = os.lstat(path)
    content = b""
    if stat.S_ISLNK(entry.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(entry.st_mode):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            while piece := os.read(descriptor, 1 << 20):
                content += piece
        finally:
            os.close(descriptor)
    return State(entry.st_mode, (entry.st_uid, entry.st_gid), entry.st_nlink, entry.st_ctime_ns, content)
