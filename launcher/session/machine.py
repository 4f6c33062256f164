"""The `policy.host.Host` of this machine. Each answer is recorded, so that a cached Plan can be re-checked.

Not on the warm launch path: there, `inputs.unchanged` only repeats the recorded questions.
"""

import os
import pwd
import stat

from launcher.session import gitlinks, implied, inputs
from launcher.session.places import places
from launcher.vcs import disk
from launcher.vcs.quarantine import pointer, swap

_DISK = disk.Present()


class Machine:
    """Answers from the kernel and remembers the questions (see `inputs` for the record's shape)."""

    def __init__(self, environ: "os._Environ[str] | dict[str, str]") -> None:
        self._environ = environ
        self._inputs: dict[tuple[str, str], object] = {}
        self._originals: dict[str, bytes] | None = None

    def recorded(self) -> tuple[inputs.Input, ...]:
        """Everything that was asked so far, with the answers, for the plan cache.

        What lies above each canonical path belongs to it: see `inputs.unchanged`.
        """
        seen = {"/"}
        for (kind, subject), answer in list(self._inputs.items()):
            path = answer[0] if kind == inputs.RESOLVED and isinstance(answer, tuple) else "/"
            path = os.path.dirname(path) if path == subject else path
            while path not in seen:
                seen.add(path)
                here = self._ask(inputs.IDENTITY, path)
                if not isinstance(here, tuple) or isinstance(here[2], str):
                    self._inputs[inputs.IDENTITY, path] = "moved meanwhile"  # no answer is ever equal to it
                path = os.path.dirname(path)
        return tuple((kind, subject, answer) for (kind, subject), answer in self._inputs.items())

    def _ask(self, kind: str, subject: str) -> object:
        key = (kind, subject)
        if key not in self._inputs:
            self._inputs[key] = inputs.ask(kind, subject, self._environ)
        return self._inputs[key]

    def depends_on_content(self, path: str) -> None:
        """Records that the Plan depends on this file's content (or absence)."""
        self._ask(inputs.CONTENT, path)

    def depends_on_setting(self, path: str) -> None:
        """Records that the Plan depends on the text of a kernel setting (or its absence)."""
        self._ask(inputs.TEXT, path)

    @property
    def home(self) -> str:
        """Canonical home directory of the calling user."""
        home = self.env("HOME") or ""
        if not home.startswith("/"):
            try:
                home = pwd.getpwuid(self.uid).pw_dir
            except KeyError:
                home = "/"
        return self.resolve(home) or os.path.normpath(home)

    @property
    def uid(self) -> int:
        """Effective user id."""
        return os.geteuid()

    def env(self, name: str) -> str | None:
        """The caller's environment variable, or None."""
        answer = self._ask(inputs.ENVIRONMENT, name)
        return answer if isinstance(answer, str) else None

    def kind(self, path: str) -> str | None:
        """What lstat(2) says `path` is; None when absent."""
        if self._pointer(path) is not None:
            return "file"
        self._ask(inputs.IDENTITY, path)
        return _DISK.kind(path)

    def resolve(self, path: str) -> str | None:
        """The canonical path, None when it does not exist or cannot be reached."""
        if path.endswith(f"/{pointer.NAME}"):
            above = self.resolve(os.path.dirname(path))
            if above is not None and self._pointer(f"{above}/{pointer.NAME}") is not None:
                return f"{above}/{pointer.NAME}"
        answer = self._ask(inputs.RESOLVED, path)
        return answer[0] if isinstance(answer, tuple) else None

    def links(self, path: str) -> tuple[tuple[str, str], ...]:
        """Symbolic links met while resolving `path`, in order. A loop gives what was met before it closed."""
        found = disk.links(path)
        for link, _ in found:
            self._ask(inputs.IDENTITY, link)
        return found

    def listing(self, path: str) -> tuple[str, ...] | None:
        """Sorted names in a directory; None when it cannot be listed."""
        self._ask(inputs.CONTENT, path)
        return _DISK.listing(path)

    def present(self, directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
        """Sorted entries of a directory that are in `names` or end in one of `suffixes`."""
        answer = self._ask(inputs.PRESENT, inputs.packed(directory, names, suffixes))
        return answer if isinstance(answer, tuple) else ()

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        """Content of a regular file up to `limit` bytes; None when longer, not regular, or unreadable."""
        known = self._pointer(path)
        if known is not None:
            return known
        self._ask(inputs.CONTENT, path)
        return _DISK.read(path, limit)

    def _pointer(self, path: str) -> bytes | None:
        """Content of a `.git` file; None for anything else.

        While a jail without mounts lives in a worktree, what lies there is the command's; then it is what it was
        before (`launcher.vcs.quarantine.swap`). The answer is by content: each session puts back another file.
        """
        if not path.endswith(f"/{pointer.NAME}"):
            return None
        if self._originals is None:
            self._originals = swap.originals(places(self._environ).state)
        known = self._originals.get(path)
        if known is None and _DISK.kind(path) != "file":
            return None
        answer = known if known is not None else self._ask(inputs.POINTER, path)
        if not isinstance(answer, bytes):
            return None
        self._inputs[inputs.POINTER, path] = answer
        return answer

    def gitlinks(self, git_dir: str) -> tuple[str, ...]:
        """Paths of the submodules that the index of a trusted git directory names, relative to the root of its files.

        A commit changes the index, and seldom them; what is asked again is what they are (`inputs.LINKS`).
        """
        key = (inputs.LINKS, git_dir)
        if key not in self._inputs:
            mark = implied.mark(f"{git_dir}/index")
            self._inputs[key] = (mark, tuple(gitlinks.named(git_dir)))
        answer = self._inputs[key]
        return answer[1] if isinstance(answer, tuple) else ()

    def executable(self, path: str) -> bool:
        """Whether the calling user may execute this regular file."""
        self._ask(inputs.IDENTITY, path)
        try:
            return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK, effective_ids=True)
        except (OSError, ValueError):
            return False

    def names(self, path: str) -> int:
        """How many names a regular file has (hard links); 0 for anything else."""
        self._ask(inputs.IDENTITY, path)
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return 0
        if not stat.S_ISREG(found.st_mode):
            return 0  # a directory's content is no matter: Paddock's own changes with each session
        self._ask(inputs.CONTENT, path)
        return found.st_nlink

    def set_gid(self, path: str) -> bool:
        """Whether `path` is a directory that gives its group to what is made in it; False for a slot."""
        if path.startswith("@"):
            return False
        self._ask(inputs.IDENTITY, path)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            return False
        return stat.S_ISDIR(mode) and bool(mode & stat.S_ISGID)

    def others_can_write(self, path: str) -> bool:
        """Whether a user other than root and the caller may write `path`. True when it cannot be told."""
        self._ask(inputs.IDENTITY, path)
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return True
        return bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in (0, self.uid)
