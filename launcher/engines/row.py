"""One row of a batch: plain data in, plain data out, and the one function that performs it, wherever it runs."""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import select
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from launcher.safefs.guarded_files import Inside
from launcher.safefs.remove import remove_tree
from launcher.sandbox.box import Done, Sandbox
from launcher.sandbox.command import CANCELLED
from launcher.service import ticket_work
from launcher.service.schema import Frozen, Variable, Word
from launcher.service.ticket_schema import Amount, Cpus, Memory, ResourceName
from launcher.session import places
from launcher.vcs import jailed_git
from launcher.vcs.git import Git
from launcher.vcs.worktrees.models import Options, Removed, Worktree
from launcher.vcs.worktrees.worktree_service import WorktreeService
from policy.errors import Refusal

PREFIX = "batch-"
"""How the names of all rows' sessions and worktrees begin."""

OF_TICKETS = "tickets-"
"""The same for tickets on nodes."""

MOST_OUTPUT = 256 << 10
"""Bytes that are kept of each stream of a row's command: the beginning and the end."""

MOST_PATCH = 16 << 20
MOST_DENIALS = 200
MOST_BYTES = 32 << 20
"""Of a row's result as JSON; a longer one is none."""

_PATIENCE = 30.0
"""Seconds for sandboxes to end whose programme was killed."""


class Cause(StrEnum):
    """How a row ended."""

    EXITED = "exited"
    """Its command has exited, with whatever status."""
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """Paddock refused it: no such command, a policy that cannot be enforced, no space."""
    ENDED = "ended"
    """The whole sandbox ended under its command, by a limit for instance."""
    NODE = "node"
    """The node that it ran on was lost."""
    ENGINE = "engine"
    """The engine failed, or Paddock itself."""
    CANCELLED = "cancelled"
    """Somebody ended the batch: no result, the row is performed when the batch is continued."""


RESULTS = (Cause.EXITED, Cause.SIGNAL, Cause.TIMEOUT)
"""Ways of the command itself to end: what came of the row, and not that nothing did."""


class _Strict(Frozen):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Row(_Strict):
    """A row of a batch file.

    Attributes:
        id: what its owner calls it.
        repository: a directory in the git repository; of the current one by default.
        commit: what the clean copy is made of.
        command: its words, or a text for ``sh -c``.
        policy: options of `paddock run`.
        timeout: seconds until the command is ended.
        env: variables of the command.
        input: for its standard input.
        cpus: processors that a cluster's node sets aside for it.
        memory: bytes that it sets aside; what the command may use is ``--limit memory=`` in `policy`.
        resources: further resources of a node that it needs, by name.
    """

    id: Annotated[str, StringConstraints(max_length=200)] = ""
    repository: Annotated[Word, Field(min_length=1)] = "."
    commit: Annotated[Word, Field(min_length=1, max_length=1000)] = "HEAD"
    command: Annotated[tuple[Word, ...], Field(min_length=1)] | Annotated[Word, Field(min_length=1)]
    policy: tuple[Word, ...] = ()
    timeout: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None
    env: Annotated[dict[Variable, Word], Field(default_factory=dict)]
    input: str = ""
    cpus: Cpus = 1
    memory: Memory = 0
    resources: Annotated[dict[ResourceName, Amount], Field(default_factory=dict)]

    def key(self) -> str:
        """The hash of its content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class Job(_Strict):
    """A row on its way to whoever performs it.

    Attributes:
        row: with an absolute repository and the object id of its commit.
        key: of the row in its batch.
        number: of the row in its file, from 1.
        attempt: from 1.
        session: of its sandbox, the same name for its worktree.
    """

    row: Row
    key: str
    number: int
    attempt: int
    session: str


class Times(_Strict):
    """When a row was begun (seconds since the epoch), and what it took: in seconds, the command, and all of it."""

    begun: float
    command: float = 0.0
    whole: float = 0.0


class Outcome(_Strict):
    """What came of a row: one line of a file of results.

    Attributes:
        key, number, attempt: as in `Job`.
        id: as in `Row`.
        session: its sandbox's, for `paddock denials`; "" for none.
        commit: object id of what the copy was made of.
        cause: how it ended.
        status: exit status of the command, 128+N for signal N, 124 at its timeout; None when it did not run to its end.
        patch: what it changed, committed or not, for ``git apply``.
        patch_base64: in place of `patch`, where that is no UTF-8.
        stdout, stderr: of the command, at most 256 KiB each, the beginning and the end.
        dropped: bytes of them in between.
        denials: what the jail refused, as far as that is told.
        times: see there.
        refusal: why it could not be performed, or its patch not be taken.
        node: the name of the machine.
    """

    key: str
    number: int
    id: str = ""
    attempt: int
    session: str = ""
    commit: str
    cause: Cause
    status: int | None = None
    patch: str = ""
    patch_base64: str = ""
    stdout: str = ""
    stderr: str = ""
    dropped: int = 0
    denials: tuple[dict[str, Any], ...] = ()
    times: Times
    refusal: dict[str, str | int | bool] | None = None
    node: str = ""


def read_outcome(line: bytes) -> Outcome:
    """A result of JSON (ValueError)."""
    if len(line) > MOST_BYTES:
        raise ValueError(f"a result has more than {MOST_BYTES >> 20} MiB")
    try:
        return Outcome.model_validate_json(line)
    except ValidationError as error:
        said = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise ValueError("; ".join(said)) from None


def failed(job: Job, cause: Cause, error: Exception, begun: float) -> Outcome:
    """The outcome of a row that could not be performed, and why."""
    if not isinstance(error, Refusal):
        error = Refusal("row-failed", f"paddock failed at row {job.number}", context=f"{type(error).__name__}: {error}")
    return Outcome(
        key=job.key, number=job.number, id=job.row.id, attempt=job.attempt, session=job.session, commit=job.row.commit,
        cause=cause, times=Times(begun=begun, whole=time.time() - begun), refusal=error.as_dict(), node=platform.node(),
    )  # fmt: skip


def written(outcome: Outcome) -> bytes:
    """An outcome as JSON without line breaks. File names in it may be no UTF-8: such bytes become question marks."""
    return json.dumps(outcome.model_dump(mode="json"), ensure_ascii=False).encode("utf-8", "replace")


def perform(job: bytes, cancel: int = -1) -> bytes:
    """Performs a row: makes a clean copy of its commit and a jail, runs the command in it, takes the patch.

    Args:
        job: a `Job` as JSON.
        cancel: a descriptor; when it can be read, the command is ended.

    Returns:
        an `Outcome` as JSON.
    """
    asked = Job.model_validate_json(job)
    begun = time.time()
    try:
        outcome = _performed(asked, begun, cancel)
    except Refusal as refusal:
        ended = refusal.reference in ("sandbox-ended", "session-unstartable")
        outcome = failed(asked, Cause.ENDED if ended else Cause.REFUSED, refusal, begun)
    except Exception as error:  # whatever it is: a row that fails is no reason for others to fail
        outcome = failed(asked, Cause.ENGINE, error, begun)
    if _readable(cancel) and outcome.cause not in RESULTS:
        outcome = failed(asked, Cause.CANCELLED, Refusal("row-cancelled", "the batch was ended"), begun)
    answer = written(outcome)
    if len(answer) > MOST_BYTES:
        large = Refusal("row-too-large", f"the result of row {asked.number} has {len(answer):,} bytes",
                        context=f"the limit is {MOST_BYTES:,}")  # fmt: skip
        answer = written(failed(asked, Cause.REFUSED, large, begun))
    return answer


def _performed(job: Job, begun: float, cancel: int) -> Outcome:
    row = job.row
    with jailed_git.many(), sandbox(job) as box:
        command = row.command if isinstance(row.command, str) else list(row.command)
        done = box.exec(command, timeout=row.timeout, env=row.env, input=row.input, limit=MOST_OUTPUT, cancel=cancel)
        if done.status == CANCELLED and not done.timed_out and _readable(cancel):
            return failed(job, Cause.CANCELLED, Refusal("row-cancelled", "the batch was ended"), begun)
        patch, refusal = _patch(box)
        denials = tuple(box.denials()[:MOST_DENIALS])
    text, encoded = _as_text(patch)
    return Outcome(
        key=job.key, number=job.number, id=row.id, attempt=job.attempt, session=job.session, commit=row.commit,
        cause=_cause(done), status=done.status, patch=text, patch_base64=encoded, stdout=done.text,
        stderr=done.stderr.decode("utf-8", "replace"), dropped=done.dropped, denials=denials,
        times=Times(begun=begun, command=done.seconds, whole=time.time() - begun),
        refusal=refusal.as_dict() if refusal is not None else None, node=platform.node(),
    )  # fmt: skip


class _Owned:
    """Files with the names of worktrees, locked as long as the process lives that made them: whoever comes next can
    tell what a killed one has left.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Before the worktree is made."""
        path = f"{self._place()}/{name}"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    break
            os.close(descriptor)  # somebody took it for abandoned before it was locked
        self._held[name] = descriptor

    def remove(self, name: str) -> None:
        """Once the worktree is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._place()}/{name}")
        if (descriptor := self._held.pop(name, -1)) != -1:
            os.close(descriptor)

    def abandoned(self) -> list[str]:
        """Names whose process has gone."""
        found = []
        for name in os.listdir(self._place()):
            with contextlib.suppress(OSError):
                descriptor = os.open(f"{self._place()}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.append(name)
                finally:
                    os.close(descriptor)
        return found

    @staticmethod
    def _place() -> str:
        return places.made(f"{places.places(os.environ).state}/rows")


_owned = _Owned()


class _Trees:
    """Worktrees that rows see copies of, so that none is ever written, and the next row of its commit has it, too.

    A launch in one that has been used takes a tenth of the first one's time.
    """

    _MOST_IDLE = 32

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, tuple[tuple[str, str], Worktree]] = {}

    @contextlib.contextmanager
    def one(self, job: Job) -> Iterator[str]:
        """The root of one at a row's commit, which nobody else has meanwhile."""
        asked = (job.row.repository, job.row.commit)
        with self._lock:
            idle = next((name for name, (kind, _) in self._idle.items() if kind == asked), None)
            tree = self._idle.pop(idle)[1] if idle is not None else None
        if tree is None:
            _owned.add(name := f"{job.session}-tree")
            tree = _service().add(asked[0], name, Options(start=asked[1]))
        try:
            yield tree.path
        finally:
            left = _emptied(f"{places.places(os.environ).state}/worktrees/{tree.worktree_id}/home")
            with self._lock:
                self._idle[tree.worktree_id] = ((asked[0], "" if left else asked[1]), tree)
                spare = [self._idle.pop(next(iter(self._idle)))[1]] if len(self._idle) > self._MOST_IDLE else []
            for each in spare:
                _service().remove(each, force=True)
                _owned.remove(each.ticket)

    def remove(self) -> list[str]:
        """Removes them all; returns a line for each that could not be."""
        with self._lock:
            idle, self._idle = [tree for _, tree in self._idle.values()], {}
        return give_up(idle)


def _emptied(home: str) -> list[str]:
    """Empties a private home, which is what a row can leave to the next one; returns what could not be removed.

    The home itself stays: without it, the next launch would be planned anew, which takes five times as long.
    """
    try:
        with Inside(os.path.realpath(home)) as inside:
            failures: list[str] = []
            for name in inside.names():
                if inside.is_directory(name):
                    failures += inside.remove_tree(name)
                else:
                    inside.remove(name)
            return failures
    except FileNotFoundError:
        return []  # no session came so far
    except OSError as error:
        return [f"{home}: {error.strerror}"]


trees = _Trees()
"""Those of this process."""

_without_copies: set[tuple[str, ...]] = set()
"""Policies whose backend has none."""


@contextlib.contextmanager
def sandbox(job: Job) -> Iterator[Sandbox]:
    """A sandbox on a copy; where there can be none, on a worktree of the row's own, of which nothing is kept."""
    row = job.row
    if row.policy not in _without_copies:
        with contextlib.ExitStack() as stack:
            try:
                root = stack.enter_context(trees.one(job))
                yield stack.enter_context(Sandbox(root, row.policy, cow=True, name=job.session))
                return
            except Refusal as refusal:
                if refusal.reference != "cow-unavailable":
                    raise
        _without_copies.add(row.policy)
    _owned.add(job.session)
    tree = _service().add(row.repository, job.session, Options(start=row.commit))
    try:
        with Sandbox(tree.path, (*row.policy, "--branch-policy", "keep"), name=job.session) as box:
            yield box
    finally:
        _drop(_service().remove(tree, force=True))
        _owned.remove(job.session)


def _drop(removed: Removed) -> None:
    """Deletes what is kept of a worktree's work: of a row's, its patch is the result."""
    branches = [(where, f"refs/heads/{branch}") for where, branch in removed.branches_kept]
    for where, ref in (*removed.backups, *removed.refs_kept, *removed.stashes, *branches):
        Git(where).run("update-ref", "-d", ref)
    if removed.set_aside:
        remove_tree(removed.set_aside)


def _patch(box: Sandbox) -> tuple[bytes, Refusal | None]:
    try:
        patch = box.diff(commit=True)
    except Refusal as refusal:
        return b"", refusal
    if len(patch) > MOST_PATCH:
        return b"", Refusal("patch-too-large", f"the patch has {len(patch):,} bytes",
                            context=f"the limit is {MOST_PATCH:,}")  # fmt: skip
    return patch, None


def _as_text(patch: bytes) -> tuple[str, str]:
    try:
        return patch.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(patch).decode("ascii")


def _cause(done: Done) -> Cause:
    if done.timed_out:
        return Cause.TIMEOUT
    return Cause.SIGNAL if 128 < done.status <= 128 + 64 else Cause.EXITED


def _readable(descriptor: int) -> bool:
    return descriptor != -1 and bool(select.select([descriptor], [], [], 0)[0])


def sweep(prefix: str | None) -> list[str]:
    """Removes what rows have left whose process has gone; returns a line for each that could not be removed.

    Args:
        prefix: of the names of sessions whose worktrees are removed, too, if a process owns them: a batch has ended.
    """
    service = _service()
    abandoned = set(_owned.abandoned())

    def left() -> list[Worktree]:
        known = service.store.all()
        return [each for each in known if each.ticket in abandoned or (prefix and each.ticket.startswith(f"{prefix}-"))]

    for common_dir in {each.main.common_dir for each in left()}:
        service.settle(os.fspath(common_dir))
    failures = give_up(left())
    for name in abandoned - {each.ticket for each in left()}:
        _owned.remove(name)
    return failures


def give_up(worktrees: list[Worktree]) -> list[str]:
    """Removes worktrees of rows, and what is kept of their work; returns a line for each that could not be removed."""
    failures: list[str] = []
    deadline = time.monotonic() + _PATIENCE
    for worktree in worktrees:
        while True:
            try:
                _drop(_service().remove(worktree, force=True))
                _owned.remove(worktree.ticket)
            except Refusal as refusal:
                if refusal.reference in ("session-running", "worktree-busy") and time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
                failures.append(f"{worktree.path}: {refusal.message} [{refusal.reference}]")
            break
    return failures


def _service() -> WorktreeService:
    return ticket_work.service(places.places(os.environ))
