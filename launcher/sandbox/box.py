"""Sandboxes for programmes: one live jail, and many commands in it, each a little dearer than a plain process.

What an agent wrote is read by commands in the jail, or by one in a jail of its own.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import secrets
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar

from launcher.jail import confined, init
from launcher.ledger import ledgers
from launcher.sandbox.command import Handed, Into, Kept, Running, Whole
from launcher.sandbox.live import Live
from launcher.session import places
from launcher.vcs import jailed_git
from policy.errors import EXIT_REFUSED, Refusal

if TYPE_CHECKING:
    from launcher.vcs.worktrees.models import Worktree
    from launcher.vcs.worktrees.worktree_service import WorktreeService

MOST_OUTPUT = 16 << 20
"""Bytes that are kept of each stream of a command, by default."""

_MOST_PATCH = 256 << 20
_MOST_COMMITS = 64 << 20
_GIT_SECONDS = 300.0
"""For git in the sandbox, by default: commands can have it run what they like, for ever too."""

_GIT = "git -c core.fsmonitor= -c core.hooksPath=/dev/null"
_DIFF = f"""
index=$(mktemp) && cat -- "$(git rev-parse --git-path index)" >"$index" 2>/dev/null || : >"$index"
test -s "$index" || rm -f -- "$index"
GIT_INDEX_FILE=$index; export GIT_INDEX_FILE
{_GIT} add -A && {_GIT} diff --cached --binary --no-color --no-ext-diff --no-textconv "$1"; status=$?
rm -f -- "$index"; exit $status
"""
_INTO_OWN = f"""
GIT_DIR=$(mktemp -d) GIT_WORK_TREE=$PWD; export GIT_DIR GIT_WORK_TREE
{_GIT} init -q && {_GIT} -c core.autocrlf=false add -A "$@" &&"""
_SNAPSHOT = f"""{_INTO_OWN}
commit=$({_GIT} -c user.name=- -c user.email=- commit-tree -m - "$({_GIT} write-tree)") &&
{_GIT} update-ref refs/heads/before "$commit" && {_GIT} bundle create -q - before; status=$?
rm -rf -- "$GIT_DIR"; exit $status
"""
_DIFF_OF_BUNDLE = f"""{_INTO_OWN}
cat >"$GIT_DIR/bundle" && {_GIT} fetch -q "$GIT_DIR/bundle" before &&
{_GIT} diff --cached --binary --no-color --no-ext-diff --no-textconv FETCH_HEAD; status=$?
rm -rf -- "$GIT_DIR"; exit $status
"""
_CHANGED = f"{_GIT} status --porcelain"
_COMMITS = f'{_GIT} log -z --reverse --no-color --format=%H%x00%an%x00%ae%x00%at%x00%B "$1..HEAD"'
_HEAD = f"{_GIT} rev-parse -q --verify HEAD || {_GIT} hash-object -t tree /dev/null"
_READ = 'test -f "$1" || { ls -d -- "$1" >&2; exit 1; }; exec head -c "$2" "$1"'
_IN = 'mkdir -p -- "$1" && tar -C "$1" --no-same-owner -x'
_OUT = """
if [ -d "$1" ]; then cd -- "$1" && set -- .; else cd -- "$(dirname -- "$1")" && set -- "$(basename -- "$1")"; fi &&
tar -c -S -- "$1"
"""

_T = TypeVar("_T")
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Done:
    """A command that has ended.

    Attributes:
        status: its exit status; 128+N for signal N, 124 at its timeout.
        stdout, stderr: what it wrote, at most as much as was asked for: of more, the beginning and the end.
        timed_out: it was ended at its timeout, with all that it had started.
        dropped: bytes between the beginnings and the ends.
        seconds: how long it took.
        denials: what the jail refused meanwhile for the first time, as far as that is told (``paddock doctor``), as in
            the ledger.
    """

    status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    dropped: int
    seconds: float
    denials: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode("utf-8", "replace")


class Commit(NamedTuple):
    """A commit of the sandbox, as its git says: object id, author, when (seconds since the epoch), message."""

    oid: str
    author: str
    email: str
    time: float
    message: str


class Sandbox:
    """One live jail, in which commands run until it is closed. May be used by several threads at once.

    Attributes:
        name: of its session, for ``paddock exec``, ``ps`` and ``denials``.
        root: where its commands start: the root of the worktree, or the directory.
        backend: "landlock+namespaces", "landlock+guard" or "bubblewrap".
        messages: what the launcher has said, warnings for instance; once it is closed, also how it ended.
        harvest: once it is closed, the report of what was taken over from a worktree.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        options: Sequence[str] = (),
        *,
        commit: str | None = None,
        cow: bool = False,
        root: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        """Makes the jail.

        Args:
            place: a worktree, or a directory that lies in none.
            options: further ones of ``paddock run``: ``["--net", "none", "--limit", "memory=2G"]``.
            commit: a new worktree beside `place` starts from this commit, and is removed at the end; its branch stays
                if something was committed, and all of it if something was not.
            cow: commands see a copy: nothing of what they write reaches the disk, nothing is harvested (``--cow``), and
                `reset` is possible. What somebody else changes in `place` meanwhile may show or not.
            root: directory of an unpacked image, of which commands see a copy in place of the machine's files
                (``--root``). The methods need its sh, head, mkdir, cat, dirname, tar and git.
            name: for the session; a random one by default.

        Raises:
            Refusal: usage; as ``paddock run`` and ``paddock worktree add`` say it.
        """
        if isinstance(options, str):
            raise Refusal(
                "usage", f"the options of a sandbox are a list of words, not {options!r}", hint='["--net", "none"]'
            )
        if not os.path.isdir(place):
            raise Refusal("worktree-missing", f"{os.fspath(place)} is not a directory that exists")
        self._owner = os.getpid()
        self.name = name or f"box-{secrets.token_hex(6)}"
        self._made: Worktree | None = None
        if commit is not None:
            from launcher.vcs.worktrees.models import Options

            self._made = _worktrees().add(os.fspath(place), self.name, Options(start=commit))
            place = self._made.path
        self._place = os.path.abspath(place)
        self._repository = _in_a_repository(self._place)
        where = ["--worktree", self._place, *([] if self._repository else ["--directory"]), *(["--cow"] if cow else [])]
        self._cow = cow
        self._gitless = ""
        self._given = (*(("--root", os.path.abspath(root)) if root is not None else ()), *options)
        self._options = (*where, *self._given)
        self._places = places.places(os.environ)
        self._generation = 0
        self._resetting = threading.Lock()
        self._closed = False
        self._spare: Future[Live] | None = None
        try:
            self._jail = Live(self._places, self.name, self._place, self._options)
        except BaseException:
            self._remove(discard=False)
            raise
        self._denials = ledgers.Coming(self._places.state, self._jail.name)
        _open.add(self)
        try:
            self._start = self._git(_HEAD).decode().strip() if self._repository else ""
        except Refusal as refusal:  # an image may have no git
            if refusal.reference != "diff-unavailable":
                self.close()
                raise
            self._start, self._gitless = "", refusal.context or refusal.message
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> str:
        """See the class."""
        return self._jail.root

    @property
    def backend(self) -> str:
        """See the class."""
        return self._jail.backend

    @property
    def messages(self) -> str:
        """See the class."""
        return self._jail.messages

    @property
    def harvest(self) -> dict[str, Any] | None:
        """See the class."""
        return self._jail.harvest

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        input: bytes | str = b"",
        limit: int = MOST_OUTPUT,
        merge: bool = False,
        cancel: int = -1,
        output: Callable[[bytes], None] | None = None,
    ) -> Done:
        """Runs a command to its end.

        What it leaves in the background goes on until the sandbox is closed, and what that writes then is not read.

        Args:
            command: its words, or a text for ``sh -c``.
            timeout: seconds until it is ended with everything that it has started. The sandbox lives on.
            env: variables on top of the session's.
            cwd: where it starts, relative to `root`.
            input: for its standard input.
            limit: bytes of output to keep, of each stream.
            merge: standard error goes where standard output goes.
            cancel: a descriptor; when it can be read, the command is ended as at a timeout, with status 130.
            output: called with each piece of standard output (with `merge`, of both) as it comes; nothing is kept then.

        Raises:
            Refusal: it could not be started; sandbox-closed, sandbox-ended.
        """
        data = input.encode() if isinstance(input, str) else input
        into = Handed(output) if output is not None else None
        return self._exec(command, timeout, env or {}, cwd, data, limit, merge=merge, cancel=cancel, into=into)

    def _exec(
        self,
        command: str | Sequence[str],
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        data: bytes = b"",
        limit: int = MOST_OUTPUT,
        *,
        merge: bool = False,
        cancel: int = -1,
        source: int = -1,
        into: Kept | None = None,
    ) -> Done:
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        for name in env or {}:
            if not name or "=" in name:
                raise Refusal("environment-invalid", f"{name!r} does not name a variable")
        kept = (into or Kept(limit), *([] if merge else [Kept(min(limit, MOST_OUTPUT))]))
        begun = time.monotonic()
        place = os.path.normpath(os.path.join(self.root, cwd)) if cwd else ""
        running = Running(self._jail, words, env=env or {}, cwd=place, data=data, kept=kept, source=source)
        status = running.follow(None if timeout is None else begun + timeout, cancel)
        return Done(
            status=status,
            stdout=kept[0].content,
            stderr=b"" if merge else kept[1].content,
            timed_out=running.timed_out,
            dropped=sum(each.dropped for each in kept),
            seconds=time.monotonic() - begun,
            denials=tuple(self._denials.new()),
        )

    def read(self, path: str, limit: int = 64 << 20, *, timeout: float | None = None) -> bytes:
        """The content of a regular file, by its path as commands see it.

        Refusals: file-unreadable, file-too-large; here and below sandbox-timeout, after `timeout` seconds.
        """
        name = path if path.startswith("/") else f"./{path}"
        done = self._exec(["sh", "-c", _READ, "sh", name, str(limit + 1)], timeout, limit=limit + 2)
        if done.status:
            raise _failed("file-unreadable", f"cannot read {path} in the sandbox", done)
        if len(done.stdout) > limit:
            raise Refusal("file-too-large", f"{path} has more than {limit} bytes", hint="read with a larger limit")
        return done.stdout

    def write(self, path: str, content: bytes | str, *, timeout: float | None = None) -> None:
        """Writes a file, and makes the directories above it. Refusal: file-unwritable."""
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
        done = self.exec(["sh", "-c", script, "sh", path], input=content, timeout=timeout)
        if done.status:
            raise _failed("file-unwritable", f"cannot write {path} in the sandbox", done)

    def upload(self, source: str | os.PathLike[str], target: str = ".", *, timeout: float | None = None) -> None:
        """Copies a file or a directory of this machine into the sandbox, with modes and times; links stay links.

        Args:
            source: what to copy. It is believed: it is read here.
            target: a directory, by its path as commands see it, made where it is missing. What a directory holds, or
                the file, comes to lie in it.
            timeout: seconds.

        Raises:
            Refusal: file-unreadable, file-unwritable, sandbox-timeout.
        """
        path = os.path.abspath(source)
        parent, name = (path, ".") if os.path.isdir(path) else os.path.split(path)
        words = ["/bin/tar", "-C", parent, "-c", "--", f"./{name}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
            assert tar.stdout is not None
            assert tar.stderr is not None
            try:
                done = self._exec(["sh", "-c", _IN, "sh", target], timeout, source=tar.stdout.fileno())
            finally:
                tar.stdout.close()  # or it waits for a reader, if there is none any more
            said = tar.stderr.read().decode("utf-8", "replace").strip()
        if tar.returncode and not done.status:
            raise Refusal("file-unreadable", f"cannot read {path}", context=said)
        if done.status:
            raise _failed("file-unwritable", f"cannot write {target} in the sandbox", done)

    def download(
        self, source: str, target: str | os.PathLike[str], limit: int = 1 << 30, *, timeout: float | None = None
    ) -> None:
        """Copies a file or a directory out of the sandbox into a directory of this machine.

        What comes is what commands made: names, links and modes too, but no set-id bits, owners and times. It is
        unpacked in a jail that can write `target` alone.

        Args:
            source: by its path as commands see it; what a directory holds, or the file, comes to lie in `target`.
            target: a directory, made where it is missing, and behind no symbolic link.
            limit: bytes of all files together (of a sparse one, those that it has), of their names, and of each file.
            timeout: seconds.

        Raises:
            Refusal: file-unreadable, file-unwritable, file-too-large, sandbox-timeout. What came before stays.
        """
        path = os.path.abspath(target)
        there = path
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if os.path.realpath(there) != there:
            raise Refusal(
                "file-unwritable",
                f"{path} is behind a symbolic link",
                context="a command may have made it",
                hint=f"name the directory itself: {os.path.realpath(path)}",
            )
        os.makedirs(path, exist_ok=True)
        words = ("/bin/tar", "--no-same-owner", "--no-same-permissions", "--touch", "-x")
        reader, writer = os.pipe()
        try:
            try:
                unpacked = jailed_git.start(
                    (path, words, ((), (path,), ()), (("LC_ALL", "C.UTF-8"),), (("file_size", limit),)),
                    stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                )  # fmt: skip
            finally:
                os.close(reader)
            done = self._exec(["sh", "-c", _OUT, "sh", source], timeout, into=Into(writer, limit))
        finally:
            os.close(writer)
            said = unpacked.communicate()[1].decode("utf-8", "replace")
        if done.status:
            raise _failed("file-unreadable", f"cannot read {source} in the sandbox", done)
        if unpacked.returncode:
            refusal = confined.refusal_in(said) if unpacked.returncode == EXIT_REFUSED else None
            raise refusal or Refusal(
                "file-unwritable",
                f"cannot write {path}",
                context=said.strip() or f"tar ended with {unpacked.returncode}: a file is larger than {limit:,} bytes",
            )

    def diff(self, *, commit: bool = False, timeout: float | None = _GIT_SECONDS) -> bytes:
        """What was changed since the sandbox was made (or `reset`), committed or not, as a patch for ``git apply``.

        Of a worktree, without what git ignores; of one that is no copy, since the commit that was checked out then. Git
        runs in the jail, on what commands made: believe it as much.

        Args:
            commit: of a copy of a worktree, too, since the commit: where nothing else was changed, that is quicker.
            timeout: seconds, for each of at most three steps.

        Raises:
            Refusal: diff-unavailable: git fails there, or it is a plain directory and no copy; file-too-large: it has
                more than 256 MiB; sandbox-timeout.
        """
        if not self._cow and not self._repository:
            raise Refusal(
                "diff-unavailable",
                f"what {self.root} was before is not known",
                context="commands write the directory itself, and no git tells what it was",
                hint="Sandbox(..., cow=True)",
            )
        self._check_git()
        if self._cow and not (commit and self._repository):
            with Sandbox(self._place, self._given, cow=True) as before:  # another copy, as it was
                if not self._repository:
                    snapshot = before._git(_SNAPSHOT, "-f", timeout=timeout)
                    return self._git(_DIFF_OF_BUNDLE, "-f", data=snapshot, timeout=timeout)
                if before._git(_CHANGED, timeout=timeout):
                    return self._git(_DIFF_OF_BUNDLE, data=before._git(_SNAPSHOT, timeout=timeout), timeout=timeout)
        return self._git(_DIFF, self._start, timeout=timeout)

    def commits(self, *, timeout: float | None = _GIT_SECONDS) -> list[Commit]:
        """What was committed on a worktree's HEAD since the sandbox was made, the oldest first; see `diff`."""
        if not self._repository:
            return []
        self._check_git()
        said = self._git(_COMMITS, self._start, timeout=timeout, most=_MOST_COMMITS)
        fields = said.decode("utf-8", "replace").split("\0")
        rows = [fields[at : at + 5] for at in range(0, len(fields) - 4, 5)]
        return [Commit(oid, author, email, float(when or 0), message) for oid, author, email, when, message in rows]

    def _check_git(self) -> None:
        if self._gitless:
            raise Refusal(
                "diff-unavailable",
                "git does not work in the sandbox",
                context=self._gitless,
                hint="an image (root=) needs a git of its own for commits() and diff()",
            )

    def reset(self) -> None:
        """The tree, /tmp and processes as in the beginning: a new jail takes this one's place. Of a copy only.

        Commands that still run are ended. The private home, which is the worktree's, stays as it is. The first time
        takes as long as making a jail; from then on the next one is made ahead, and waits, another session beside it.

        Raises:
            Refusal: reset-unavailable, and what `Sandbox` raises.
        """
        if not self._cow:
            raise Refusal(
                "reset-unavailable", f"what was written in {self.root} is there to stay", hint="Sandbox(..., cow=True)"
            )
        with self._resetting:
            if self._closed:
                raise Refusal("sandbox-closed", f"the sandbox {self.name} is closed")
            spare, self._spare = self._spare, None
            ready = spare.result() if spare is not None else None
            if ready is not None and not ready.alive:  # somebody has ended that session
                ready.close()
                ready = None
            before, self._jail = self._jail, ready or self._another()
            self._denials = ledgers.Coming(self._places.state, self._jail.name)
            threading.Thread(target=before.close, name=f"close {before.name}").start()
            self._spare = spare = Future()
            threading.Thread(target=_fulfil, args=(spare, self._another), name=f"make {self.name}").start()

    def _another(self) -> Live:
        self._generation += 1
        return Live(self._places, f"{self.name}-{self._generation}", self._place, self._options)

    def denials(self) -> list[dict[str, Any]]:
        """All that the jail has refused, as far as that is told; what repeats is counted, by the end at the latest."""
        state, name = self._places.state, self._jail.name
        contents = ledgers.so_far(state, name) if os.path.isdir(f"{state}/sessions/{name}") else None
        if contents is None and (path := ledgers.path_of(state, name)) is not None:
            contents = ledgers.read(path)
        return contents.denials if contents is not None else []

    def close(self, *, discard: bool = False) -> None:
        """Ends everything in the jail; of a worktree, what was committed is harvested. A second call does nothing.

        Args:
            discard: a worktree that was made for the sandbox goes, whatever is in it; backups of that are kept as
                ``paddock worktree remove --force`` keeps them.
        """
        if self._owner != os.getpid():  # a forked process has a copy, which is not its to end
            return
        with self._resetting:
            self._closed = True
            spare, self._spare = self._spare, None
        self._jail.close()
        if spare is not None and spare.exception() is None:
            spare.result().close()
        self._remove(discard=discard)
        _open.discard(self)

    def _remove(self, *, discard: bool) -> None:
        made, self._made = self._made, None
        if made is None:
            return
        try:
            _worktrees().remove(made, force=discard)
        except Refusal as refusal:
            if discard:
                raise
            self._jail.messages += f"{refusal}\n"

    def _git(
        self, script: str, *words: str, data: bytes = b"", timeout: float | None = _GIT_SECONDS, most: int = _MOST_PATCH
    ) -> bytes:
        done = self._exec(["sh", "-c", script, "sh", *words], timeout, data=data, into=Whole(most))
        if done.status:
            raise _failed("diff-unavailable", "git failed in the sandbox", done)
        return done.stdout


class AsyncSandbox:
    """`Sandbox` for asyncio: the same methods, awaited. Cancelling an `exec` ends its command first.

    ``async with AsyncSandbox(place) as box`` makes and closes it; or `open` and `close`.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        options: Sequence[str] = (),
        *,
        commit: str | None = None,
        cow: bool = False,
        root: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        """Args: as for `Sandbox`; the jail is made by `open`."""
        self._make = functools.partial(Sandbox, place, options, commit=commit, cow=cow, root=root, name=name)
        self._box: Sandbox | None = None
        self._threads = ThreadPoolExecutor(init.MOST_OTHERS, "sandbox")

    def _later(self, call: Callable[_P, _T], *words: _P.args, **further: _P.kwargs) -> "asyncio.Future[_T]":
        bound = functools.partial(call, *words, **further)
        return asyncio.get_running_loop().run_in_executor(self._threads, bound)

    async def open(self) -> Self:
        """Makes the jail."""
        making = self._later(self._make)
        try:
            self._box = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_made)
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> Sandbox:
        """The sandbox itself."""
        if self._box is None:
            raise Refusal("sandbox-closed", "the sandbox is not open", hint="async with AsyncSandbox(...) as box")
        return self._box

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,  # ends the command and all that it has started, not the wait
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        input: bytes | str = b"",
        limit: int = MOST_OUTPUT,
        merge: bool = False,
    ) -> Done:
        """As `Sandbox.exec`."""
        reader, writer = os.pipe()
        running = self._later(
            self.sync.exec, command, timeout=timeout, env=env, cwd=cwd, input=input, limit=limit, merge=merge,
            cancel=reader,
        )  # fmt: skip
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            os.write(writer, b"x")
            while not running.done():
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await asyncio.shield(running)
            raise
        finally:
            running.add_done_callback(functools.partial(_close_ends, reader, writer))

    async def read(self, path: str, limit: int = 64 << 20, *, timeout: float | None = None) -> bytes:
        """As `Sandbox.read`."""
        return await self._later(self.sync.read, path, limit, timeout=timeout)

    async def write(self, path: str, content: bytes | str, *, timeout: float | None = None) -> None:
        """As `Sandbox.write`."""
        await self._later(self.sync.write, path, content, timeout=timeout)

    async def upload(self, source: str | os.PathLike[str], target: str = ".", *, timeout: float | None = None) -> None:
        """As `Sandbox.upload`."""
        await self._later(self.sync.upload, source, target, timeout=timeout)

    async def download(
        self, source: str, target: str | os.PathLike[str], limit: int = 1 << 30, *, timeout: float | None = None
    ) -> None:
        """As `Sandbox.download`."""
        await self._later(self.sync.download, source, target, limit, timeout=timeout)

    async def diff(self, *, commit: bool = False, timeout: float | None = _GIT_SECONDS) -> bytes:
        """As `Sandbox.diff`."""
        return await self._later(self.sync.diff, commit=commit, timeout=timeout)

    async def commits(self, *, timeout: float | None = _GIT_SECONDS) -> list[Commit]:
        """As `Sandbox.commits`."""
        return await self._later(self.sync.commits, timeout=timeout)

    async def reset(self) -> None:
        """As `Sandbox.reset`."""
        await self._later(self.sync.reset)

    async def close(self, *, discard: bool = False) -> None:
        """As `Sandbox.close`; goes on when it is cancelled."""
        if self._box is not None:
            await asyncio.shield(self._later(self._box.close, discard=discard))
            self._threads.shutdown(wait=False)


def _fulfil(promise: "Future[Live]", make: Callable[[], Live]) -> None:
    try:
        promise.set_result(make())
    except BaseException as error:  # it is raised where the result is wanted
        promise.set_exception(error)


def _close_ends(reader: int, writer: int, running: "asyncio.Future[Done]") -> None:
    del running
    os.close(reader)
    os.close(writer)


def _close_made(making: "asyncio.Future[Sandbox]") -> None:
    if not making.cancelled() and making.exception() is None:
        threading.Thread(target=making.result().close).start()


_open: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for box in list(_open):
        box.close()


def _worktrees() -> "WorktreeService":
    from launcher.service import ticket_work

    return ticket_work.service(places.places(os.environ))


def _failed(reference: str, message: str, done: Done) -> Refusal:
    if done.timed_out:
        return Refusal("sandbox-timeout", f"{message}: not done after {done.seconds:.1f} s")
    return Refusal(reference, message, context=done.stderr.decode("utf-8", "replace").strip())


def _in_a_repository(path: str) -> bool:
    """Whether a `.git` lies in a directory or above it; whoever launches looks closer."""
    here = os.path.realpath(path)
    while not os.path.lexists(f"{here}/.git"):
        if here == "/":
            return False
        here = os.path.dirname(here)
    return True
