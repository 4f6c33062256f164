"""Git on the files of a worktree: in a jail, and in a skeleton of the repository.

An agent may have written those files, or may be writing them now: names, links and contents are its own. A fault of
git's, met by what it reads there, would be one outside; and a directory that is exchanged for a symbolic link while git
writes below it would lead git out of the tree. In the jail git sees the files, the objects, the index and a skeleton
without hooks, refs and configuration (`skeleton`); the worktree's own `.git` is hidden. It writes what the command
has to write: the files, or a private directory with an index or with new objects.
"""

import marshal
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import IO

from launcher.jail import confined
from launcher.vcs import hardening
from launcher.vcs.git import TIMEOUT, Completed, Git, GitFailed
from launcher.vcs.quarantine.settings import quoted
from launcher.vcs.skeleton import COPIED, Skeleton
from policy.errors import EXIT_REFUSED, Refusal
from policy.plan import SYSTEM_PATH, beneath

_WITHOUT_FILES = frozenset(
    {"cat-file", "config", "count-objects", "diff-tree", "for-each-ref", "ls-files", "ls-tree",
     "merge-base", "rev-list", "rev-parse", "show-ref", "symbolic-ref", "update-ref"}
)  # fmt: skip
"""Commands on objects, refs, the index and configuration alone, but for `_OF_FILES`."""
_OF_FILES = frozenset({"--deleted", "--filters", "--ignored", "--killed", "--modified", "--others", "--textconv"})
_WRITE_INDEX = frozenset({"checkout-index", "read-tree", "update-index", "write-tree"})
_LIMITS = (("memory", 4 << 30), ("open_files", 1024))

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The finder of `launcher.start` halves the time to import what the jail is made of.
_START = (
    "import sys; sys.path.insert(0, {root!r}); from launcher import start; "
    "sys.meta_path.insert(0, start.CompiledModules); from launcher.jail import confined; "
    "sys.exit(confined.main({fd}, {parent}))"
)


class JailedGit(Git):
    """`Git` on a trusted repository and the files of one of its worktrees, which nobody has to trust.

    Args:
        git_dir: as for `Git`.
        work_tree: root of the files.
        timeout: as for `Git`.
        settings: as for `Git`; files that they name are copied.
        hold: as for `Git`; the jail's helper inherits them, and git's end is its own.
    """

    def __init__(
        self,
        git_dir: str,
        work_tree: str,
        *,
        timeout: float = TIMEOUT,
        settings: Iterable[hardening.Setting] = (),
        hold: Iterable[int] = (),
    ) -> None:
        super().__init__(git_dir, timeout=timeout, settings=settings, hold=hold)
        self.work_tree = work_tree
        self._skeleton: Skeleton | None = None
        self._making = threading.Lock()

    @property
    def repository(self) -> Git:
        """`Git` on the same repository, without files."""
        return Git(self.git_dir, timeout=self.timeout, settings=self._settings, hold=self._hold)

    def run(
        self,
        *arguments: str,
        input: bytes | None = None,
        ok: Iterable[int] = (0,),
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """As `Git.run`. A command that writes an index, files or objects names the index or object directory.

        Raises:
            GitFailed: as there; Refusal: the jail cannot be built.
        """
        try:
            return super().run(*arguments, input=input, ok=ok, environment=environment, timeout=timeout)
        except GitFailed as error:
            refusal = confined.refusal_in(error.err.decode(errors="replace")) if error.status == EXIT_REFUSED else None
            if refusal is None:
                raise
            raise refusal from None

    def start(
        self,
        *arguments: str,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.DEVNULL,
        stderr: int | IO[bytes] | None = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """As `Git.start`."""
        if arguments[0] in _WITHOUT_FILES and _OF_FILES.isdisjoint(arguments):
            return super().start(*arguments, stdin=stdin, stdout=stdout, stderr=stderr, environment=environment)
        program = shutil.which("git", path=SYSTEM_PATH)
        if program is None:
            raise GitFailed("git-missing", arguments, self.git_dir, f"there is no git in {SYSTEM_PATH}", status=None)
        if beneath(self.work_tree, "/dev"):
            raise Refusal(
                "worktree-place",
                f"no jail can show the files in {self.work_tree}",
                context="a jail has a /dev of its own, and git works on files in a jail only",
                hint="move the repository to another place",
            )
        skeleton = self.skeleton()
        if arguments[0] == "status" or "HEAD" in arguments:
            skeleton.point(super().run("rev-parse", "--verify", "--quiet", "HEAD", ok=(0, 1)).out.decode().strip())
        given = dict(environment or {})
        readable, writable = [skeleton.path, *skeleton.shared, *skeleton.stores], []
        objects = given.setdefault("GIT_OBJECT_DIRECTORY", skeleton.stores[0])
        if objects not in skeleton.stores:
            writable.append(objects)
            given.setdefault("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(skeleton.stores[0]))
        index = given.setdefault("GIT_INDEX_FILE", f"{self.git_dir}/index")
        if os.path.dirname(index) == self.git_dir:
            readable += [index] if os.path.exists(index) else []
        else:
            (writable if arguments[0] in _WRITE_INDEX else readable).append(os.path.dirname(index))
        writes = arguments[0] == "checkout-index" or (arguments[0] == "read-tree" and "-u" in arguments)
        (writable if writes else readable).append(self.work_tree)
        own = (setting for setting in self._settings if setting[0].lower() not in COPIED)
        entry = f"{self.work_tree}/.git"
        words = [os.path.realpath(program), f"--git-dir={skeleton.path}", f"--work-tree={self.work_tree}"]
        spec: confined.Spec = (
            self.work_tree,
            (*words, "--no-pager", *arguments),
            (tuple(dict.fromkeys(readable)), tuple(writable), (entry,) if os.path.lexists(entry) else ()),
            tuple((hardening.environment((*skeleton.settings, *own)) | given).items()),
            _LIMITS,
        )
        return start(spec, stdin=stdin, stdout=stdout, stderr=stderr, hold=self._hold)

    def skeleton(self) -> Skeleton:
        """The skeleton in which jailed commands run."""
        with self._making:
            if self._skeleton is None:
                self._skeleton = Skeleton(Git(self.git_dir), self._settings)
            return self._skeleton


def start(
    spec: confined.Spec,
    *,
    stdin: int | IO[bytes] | None,
    stdout: int | IO[bytes] | None,
    stderr: int | IO[bytes] | None,
    hold: tuple[int, ...] = (),
) -> "subprocess.Popen[bytes]":
    """Starts a command in a jail of its own, which ends with this process.

    Args:
        spec: see `confined.Spec`.
        stdin: as for `subprocess.Popen`, like `stdout` and `stderr`.
        stdout: see there.
        stderr: see there.
        hold: descriptors that the helper inherits; the command does not get them.
    """
    told = os.memfd_create("paddock-spec", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(told), "wb") as file:
            file.write(marshal.dumps(spec))
        os.lseek(told, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START.format(root=_ROOT, fd=told, parent=os.getpid())],
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            bufsize=0,
            stderr=stderr,
            pass_fds=(told, *hold),
            start_new_session=True,  # no terminal, and no signal of a terminal
        )
    finally:
        os.close(told)
