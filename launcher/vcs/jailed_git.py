"""Git on the files of a worktree: in a jail, and in a skeleton of the repository.

An agent may have written those files, or may be writing them now: names, links and contents are its own. A fault of
git's, met by what it reads there, would be one outside; and a directory that is exchanged for a symbolic link while git
writes below it would lead git out of the tree. In the jail git sees the files, the objects, the index and a skeleton
without hooks, refs and configuration (`Skeleton`); the worktree's own `.git` is hidden. It writes what the command
has to write: the files, or a private directory with an index or with new objects.
"""

import contextlib
import errno
import marshal
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from launcher import programmes, wire
from launcher.jail import confined, processes
from launcher.safefs import walk
from launcher.vcs import written
from launcher.vcs.disk import Present, Seen
from launcher.vcs.git import ERROR_TAIL, Completed, Git, GitFailed, Setting, executable, hardened_environment
from launcher.vcs.private import writers
from launcher.vcs.private.copied_settings import quoted
from launcher.vcs.scratch import Scratch
from policy.errors import EXIT_REFUSED, Refusal
from policy.pasted import cited, joined
from policy.plan import beneath

# Repositories of Paddock's own, without refs and hooks, that borrow the objects of another one.
#
# Git that meets what an agent wrote works in one of these. Of the other repository's configuration it gets what
# decides how content is stored and compared, so nothing there, nor anything that it includes, can name a programme or
# a file.

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
_CONFIG_SHA256 = (
    "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"  # git-config(1)
)
_HARMLESS = frozenset(
    f"{section}.{name}"
    for section, names in {
        "core": (
            "abbrev", "autocrlf", "bigfilethreshold", "checkroundtripencoding", "compression", "eol", "filemode",
            "fsync", "fsyncmethod", "fsyncobjectfiles", "loosecompression", "precomposeunicode", "protecthfs",
            "protectntfs", "quotepath", "safecrlf", "sharedrepository", "sparsecheckout", "sparsecheckoutcone",
            "symlinks", "whitespace",
        ),
        "diff": ("algorithm", "renamelimit", "renames"),
        "index": ("sparse", "version"),
        "merge": ("conflictstyle", "directoryrenames", "renamelimit", "renames", "renormalize"),
        "pack": ("compression",),
        "sparse": ("expectfilesoutsideofpatterns",),
    }.items()
    for name in names
)  # fmt: skip
"""Not `core.trustCtime` and `core.checkStat`: who writes a file sets its size and time as he likes. `core.ignoreCase`
counts where it is true of the disk."""
COPIED = {"core.excludesfile": "excludes", "core.attributesfile": "attributes"}
"""Keys that name a file of patterns, and the name of its copy here."""
_MOST_BYTES = 16 << 20


def make(path: str, digits: int) -> str:
    """Makes an empty repository anew at `path`, whose directory is ours alone; returns `path`."""
    for name in ("objects", "refs", "info"):
        os.makedirs(f"{path}/{name}", 0o700, exist_ok=True)
    for name, content in (("HEAD", "ref: refs/heads/none\n"), ("config", _CONFIG if digits == 40 else _CONFIG_SHA256)):
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            file.write(content)
    return path


class Skeleton:
    """A skeleton of one trusted repository.

    Args:
        settings: above its configuration; files that they name are copied.

    Attributes:
        path: its git directory.
        settings: configuration that git in it gets.
        shared: the constant parts of a split index (git-update-index(1)), to which links lead from here.
        stores: object directories that it reads: the repository's, and those that this one borrows from.
    """

    def __init__(self, git: Git, settings: tuple[Setting, ...] = ()) -> None:
        self._scratch = Scratch()
        self.path = self._scratch.path("git")
        self.git_dir, self.common_dir = git.git_dir, git.common_dir
        entries = git.configured()
        own = (f"{git.common_dir}/", f"{git.git_dir}/")
        wide = any(name == "extensions.objectformat" and value == "sha256" for _, name, value in entries)
        make(self.path, 64 if wide else 40)
        # What is included from elsewhere may lie in a tree that a session writes.
        stated = [(name, value or "true") for origin, name, value in entries if origin.startswith(own)]
        found: dict[str, str] = {}
        for name, value in (*stated, *((name.lower(), value) for name, value in settings)):
            copy = COPIED.get(name)
            if copy is not None and value.startswith("/") and self._copied(value, copy):
                found[name] = f"{self.path}/{copy}"
            elif name in _HARMLESS or (name == "core.ignorecase" and os.path.lexists(f"{git.git_dir}/hEAD")):
                found[name] = value
        self.settings = (*found.items(), ("core.splitIndex", "false"))
        for name in ("exclude", "attributes"):
            self._copied(f"{git.common_dir}/info/{name}", f"info/{name}")
        self._copied(f"{git.git_dir}/info/sparse-checkout", "info/sparse-checkout")
        names = [name for name in Present().listing(git.git_dir) or () if name.startswith("sharedindex.")]
        self.shared = tuple(f"{git.git_dir}/{name}" for name in names)
        for name, source in zip(names, self.shared, strict=True):
            os.symlink(source, f"{self.path}/{name}")
        self._copied(f"{git.common_dir}/shallow", "shallow")
        own_store = f"{git.common_dir}/objects"
        borrows = os.path.lexists(f"{own_store}/info/alternates")
        lines = git.text("count-objects", "--verbose").splitlines() if borrows else ()
        borrowed = (line.removeprefix("alternate: ") for line in lines if line.startswith("alternate: "))
        self.stores = tuple(dict.fromkeys(map(os.path.realpath, (own_store, *borrowed))))

    def point(self, head: str) -> None:
        """Sets HEAD to a commit; "" for none."""
        with open(f"{self.path}/HEAD", "w", encoding="ascii") as file:
            file.write(f"{head}\n" if head else "ref: refs/heads/none\n")

    def _copied(self, source: str, name: str) -> bool:
        seen = Seen()
        content = None if written.tree_of(seen.trail(source)) else seen.read(source, _MOST_BYTES)
        if content is None:
            return False
        with open(f"{self.path}/{name}", "wb") as file:
            file.write(content)
        return True


_WITHOUT_FILES = frozenset(
    {"cat-file", "config", "count-objects", "diff-tree", "for-each-ref", "ls-files", "ls-tree",
     "merge-base", "rev-list", "rev-parse", "show-ref", "symbolic-ref", "update-ref"}
)  # fmt: skip
"""Commands on objects, refs, the index and configuration alone, but for `_OF_FILES`."""
_OF_FILES = frozenset({"--deleted", "--filters", "--ignored", "--killed", "--modified", "--others", "--textconv"})
_WRITE_INDEX = frozenset({"checkout-index", "read-tree", "update-index", "write-tree"})
_LIMITS = (("memory", 4 << 30), ("open_files", 4096))
"""Git has a directory open for each level that it is in, and no path is deeper than half of PATH_MAX."""


class JailedGit(Git):
    """`Git` on a trusted repository and the files of one of its worktrees, which nobody has to trust.

    A command that writes an index, files or objects names the index or object directory.

    Args:
        git_dir: as for `Git`.
        work_tree: root of the files.
        settings: as for `Git`; files that they name are copied.
        hold: as for `Git`; the jail's helper inherits them, and git's end is its own.

    Attributes:
        without_head: git takes the branch for one without commits.
    """

    def __init__(
        self,
        git_dir: str,
        work_tree: str,
        *,
        settings: Iterable[Setting] = (),
        hold: Iterable[int] = (),
    ) -> None:
        super().__init__(git_dir, settings=settings, hold=hold)
        self.work_tree = work_tree
        self.without_head = False
        self._skeleton: Skeleton | None = None
        self._sleep: processes.Sleep | None = None
        self._making = threading.Lock()

    @property
    def repository(self) -> Git:
        """`Git` on the same repository, without files."""
        return Git(self.git_dir, settings=self._settings, hold=self._hold)

    def _look(self, process: "subprocess.Popen[bytes]") -> Callable[[], None]:
        self._sleep = sleep = processes.Sleep(process.pid, b"git", self._sleep)

        def look() -> None:
            # Only a session can wake it again and again; else it is the disk that is slow.
            if sleep.for_good() or (sleep.for_long() and writers.live(written.user_state(), self.work_tree)):
                check_obstacles(self.work_tree, asleep=True)

        return look

    def _failure(self, error: GitFailed) -> Refusal:
        """What the jail has refused, where that is why."""
        refusal = confined.refusal_in(error.err.decode(errors="replace")) if error.status == EXIT_REFUSED else None
        return refusal or error

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
        program = executable(arguments, self.git_dir)
        if beneath(self.work_tree, "/dev"):
            raise Refusal(
                "worktree-place",
                f"no jail can show the files in {self.work_tree}",
                context="a jail has a /dev of its own, and git works on files in a jail only",
                hint="move the repository to another place",
            )
        skeleton = self.skeleton()
        if arguments[0] == "status" or "HEAD" in arguments:
            skeleton.point("" if self.without_head else self.ref("HEAD"))
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
        words = [program, f"--git-dir={skeleton.path}", f"--work-tree={self.work_tree}"]
        spec: confined.Spec = (
            self.work_tree,
            (*words, "--no-pager", *arguments),
            (tuple(dict.fromkeys(readable)), tuple(writable), (entry,) if os.path.lexists(entry) else ()),
            tuple((hardened_environment((*skeleton.settings, *own)) | given).items()),
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
        hold: descriptors that the jail's first process holds; the command does not get them.
    """
    told = os.memfd_create("paddock-spec", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(told), "wb") as file:
            file.write(marshal.dumps(spec))
        shared: _Helper | None = getattr(_of_thread, "helper", None)
        if shared is not None:
            with contextlib.suppress(OSError):  # the helper was killed: each command starts its own
                return _Forked(shared, told, hold, stdin, stdout, stderr)
        helper = _Helper()
        try:
            return _Forked(helper, told, hold, stdin, stdout, stderr)
        finally:
            helper.close()
    finally:
        os.close(told)


@contextmanager
def many() -> Iterator[None]:
    """Commands that this thread starts in jails meanwhile share one helper, which forks for each (`confined.serve`).

    Starting Python and importing the jail's modules takes longer than the jail. Environment, umask and limits are
    those of the beginning, so nothing may change them inside.
    """
    if getattr(_of_thread, "helper", None) is not None:
        yield
        return
    _of_thread.helper = _Helper()
    try:
        yield
    finally:
        _of_thread.helper.close()
        _of_thread.helper = None


_of_thread = threading.local()
"""`helper` of the thread: jails end with the thread that started their helper (prctl(2), PR_SET_PDEATHSIG)."""


class _Helper:
    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, descriptors: Sequence[int]) -> int:
        """Starts a command as a child of this process, with the spec, three streams and what it holds open; its id."""
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    programmes.helper("jails", str(theirs.fileno()), str(os.getpid()), site=False), cwd="/",
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )  # fmt: skip
        answer, theirs_too = os.pipe()
        with os.fdopen(answer, "rb") as answered:
            try:
                wire.send(self._socket.fileno(), wire.frame(b"S"), (theirs_too, *descriptors))
            finally:
                os.close(theirs_too)
            number = answered.read()
        if not number:
            raise OSError(errno.ECHILD, "the helper that starts jails has exited")
        return int(number)

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


class _Forked(subprocess.Popen[bytes]):
    def __init__(
        self,
        helper: _Helper,
        spec: int,
        hold: tuple[int, ...],
        stdin: int | IO[bytes] | None,
        stdout: int | IO[bytes] | None,
        stderr: int | IO[bytes] | None,
    ) -> None:
        self._request = (helper, spec, hold)
        super().__init__(["git"], stdin=stdin, stdout=stdout, stderr=stderr, bufsize=0)

    def _execute_child(self, *given: Any) -> None:  # noqa: ANN401  # as `Popen` calls it, with its ends of the pipes
        helper, spec, hold = self._request
        sys.audit("subprocess.Popen", None, self.args, None, None)  # as `Popen` itself does here
        pipes = given[10:16]
        ours = [own if end == -1 else end for own, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = helper.fork([spec, *ours, *hold])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # not in its stub


# Git on files that an agent may have written: a name at which it would wait for ever is found soon.
#
# Git opens every `.gitignore` and `.gitattributes` there is, a FIFO too (no other side ever writes into it), and
# would wait until its time is over. Looking for one before each command would double the reading of directories, so
# it is looked for when git takes long. Who works there meanwhile can take the FIFO away before it is found, and git,
# which has begun to open it, still waits: so a git that does nothing at all is ended, too. And who wakes it can hold it
# up by the next FIFO: while a session lives that can write there, the gits of one look may sleep for so long in all.

SOON = 3.0
"""Seconds that git is given before it is asked why. Most worktrees need a hundredth of it."""

_MOST_HOLES = 64 << 30
"""Bytes of files that are not on the disk: they cost an agent nothing, and git a minute."""

_OPENED = frozenset({".gitattributes", ".gitignore", ".gitmodules"})


def run_patiently(
    git: JailedGit, *words: str, ok: Iterable[int] = (0,), environment: Mapping[str, str] | None = None
) -> Completed:
    """`git.run` for a command that may be repeated; a FIFO in its way is refused (worktree-obstructed)."""
    try:
        return git.run(*words, ok=ok, environment=environment, timeout=min(SOON, git.timeout))
    except GitFailed as failure:
        if failure.reference != "git-timeout":
            raise
    check_obstacles(git.work_tree)
    _check_holes(git, environment)
    index = (environment or {}).get("GIT_INDEX_FILE")
    if index is not None and os.path.lexists(f"{index}.lock"):
        os.unlink(f"{index}.lock")
    return git.run(*words, ok=ok, environment=environment)


_FAULTS = frozenset(os.strerror(number) for number in errno.errorcode)
TOO_LONG = os.strerror(errno.ENAMETOOLONG)
TOO_DEEP = (TOO_LONG, os.strerror(errno.EMFILE))
"""How a complaint ends about what lies deeper than a path may be long, or than git has descriptors."""
MOST_PATH = 3800
"""Bytes of a directory's path: what lies in it, and each complaint about it, fits in the 4,096 that git has for it."""
_SHOWN = 200


def unread(done: Completed) -> str:
    """What git could not look at: its first complaint that ends in an error of the system's; "" when it saw all.

    Git goes on and exits with 0 where a directory is closed to it, as if nothing in it had changed. It cuts a complaint
    off that is too long for it (`vreportf` in its usage.c), so longer paths than `MOST_PATH` are to be looked for.
    """
    lines = done.err.decode("utf-8", "surrogateescape").rstrip("\n").split("\n")
    for line in lines:
        what, _, fault = line.rpartition(": ")
        if fault in _FAULTS:
            return fault_of(what, fault)
    return f"more complaints than are kept, the last: {lines[-1]}" if len(done.err) >= ERROR_TAIL else ""


def fault_of(what: str, fault: str) -> str:
    """A complaint, with the middle of a long name left out."""
    return f"{what if len(what) <= 2 * _SHOWN else f'{what[:_SHOWN]} ... {what[-_SHOWN:]}'}: {fault}"


def check_obstacles(root: str, *, asleep: bool = False) -> None:
    """Refuses (worktree-obstructed) a tree in which git would wait, or is `asleep`; no link below is followed."""
    found = _obstacle(root)
    if found is not None:
        why = f"{found} is neither a file nor a directory, and git would read from it"
        raise Refusal("worktree-obstructed", f"git would hang in {root}", context=why, hint=joined(("rm", found)))
    if asleep:
        why = "it slept for seconds: a FIFO was where it reads (as .gitignore, say), or the disk is gone"
        raise Refusal("worktree-obstructed", f"git hangs in {root}", context=why, hint="end what works there first")


def is_git(path: str) -> bool:
    """Whether git takes an entry for its own by its name, on a disk of whatever kind."""
    return path.rpartition("/")[2].lower() == ".git"


def _unentered(path: str) -> bool:
    """Whether git enters no directory of that name."""
    return path.rpartition("/")[2] == ".git"


def _check_holes(git: JailedGit, environment: Mapping[str, str] | None) -> None:
    """Refuses (worktree-obstructed) files of the index with holes that git would read for minutes, or for days."""
    listed = frozenset(git.run("ls-files", "-z", environment=environment).out.split(b"\0"))
    found: list[tuple[str, os.stat_result]] = []
    for path, entry in walk.files(git.work_tree, _unentered):
        if os.fsencode(path) in listed:
            with contextlib.suppress(OSError):
                found.append((path, entry.stat(follow_symlinks=False)))
    refuse_holes(git.work_tree, found)


def refuse_holes(root: str, files: Iterable[tuple[str, os.stat_result]]) -> None:
    """Refuses (worktree-obstructed) files with holes that git would read for minutes, or for days.

    Args:
        root: of the worktree.
        files: that git is to read: paths in it, and what lstat(2) says of them.
    """
    holes = [(found.st_size - found.st_blocks * 512, path) for path, found in files if stat.S_ISREG(found.st_mode)]
    if sum(max(0, size) for size, _ in holes) > _MOST_HOLES:
        size, path = max(holes)
        path = f"{root}/{path}"
        why = f"{cited(path)} is {size} bytes larger than what it has on the disk, and git would read all"
        raise Refusal("worktree-obstructed", f"git would hang in {root}", context=why, hint=joined(("rm", path)))


def _obstacle(root: str) -> str | None:
    # What is closed to us is to git, too.
    found = walk.files(root, _unentered)
    opened = (f"{root}/{path}" for path, entry in found if entry.name in _OPENED)
    return next(filter(_waits, opened), None)


def _waits(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode  # git follows a link to `.gitmodules`
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
