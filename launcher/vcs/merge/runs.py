"""What was decided about refs of several repositories, on disk before anything moves, so that a crash ends nowhere.

One file per run below a directory that no jail can reach: a reader sees one state or the next, never half of one
(`walk.put`). One lock per directory keeps runs of the same repository apart; git processes inherit it, so that it
outlives a launcher that was killed until the last of them has ended.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from launcher.safefs import walk
from launcher.vcs.merge.descriptors import MergeAggregation, MergeDescriptor
from policy.errors import Refusal, unusable
from policy.sandbox_context import AbsolutePath, Name

_RUN = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_WAIT = 600.0
_PAUSE = 0.05


class State(StrEnum):
    """Where a run stands."""

    PREPARED = "prepared"  # nothing has been moved
    COMMITTING = "committing"  # everything is to be moved; some may be
    COMMITTED = "committed"  # all refs and files are moved; locks may be left
    DONE = "done"
    ABANDONED = "abandoned"  # nothing was moved, and nothing will be
    ROLLING_BACK = "rolling-back"  # everything is to be moved back; some may be
    ROLLED_BACK = "rolled-back"


UNFINISHED = frozenset({State.PREPARED, State.COMMITTING, State.COMMITTED, State.ROLLING_BACK})


class Move(BaseModel):
    """One repository's part of a run.

    Attributes:
        name: of the submodule; empty for the main repository.
        git_dir: of the worktree, or of the repository where no files are moved.
        work_tree: whose files are moved; None for refs alone.
        ref: full name, or ``HEAD`` where that is detached; empty where only objects are kept (a submodule that is not
            checked out at what its parent records).
        old: commit before the run.
        new: commit after it.
        jailed: an agent wrote the files, so git that touches them runs in a jail.
        agent: the private git directory of the agent whose worktree it is in; None where there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    git_dir: AbsolutePath
    work_tree: AbsolutePath | None = None
    ref: str
    old: str
    new: str
    jailed: bool = False
    agent: AbsolutePath | None = None


class Run(BaseModel):
    """One run of the merge engine.

    Attributes:
        run_id: its name; sorts by time.
        state: where it stands.
        target: the branch, as people call it.
        moves: submodules first, innermost before outer, the main repository last.
        outcome: of children merged into a trunk; what stopped it is in there, too.
        child_outcome: of a trunk merged into a child.
        note: what is to be known of submodules, a line each; or how it ended, when not as planned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: Name
    state: State
    target: Name
    moves: tuple[Move, ...] = ()
    outcome: MergeAggregation | None = None
    child_outcome: MergeDescriptor | None = None
    note: str = ""


class Journal:
    """The runs of one repository.

    Args:
        directory: where they are kept; made when missing (mode 0700).
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._active = f"{directory}/active"
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise unusable(directory, error) from None

    @contextmanager
    def lock(self, *, wait: float = _WAIT) -> Iterator[int]:
        """Keeps other runs of this repository out; yields the descriptor that git processes are to inherit.

        Args:
            wait: seconds until it is given up.

        Refusals: merge-running; checkout-failed: a file could not be read or written, here or while the lock was held.
        """
        try:
            with self._locked(wait) as descriptor:
                yield descriptor
        except BrokenPipeError:  # of whoever reads what is said meanwhile
            raise
        except OSError as error:
            raise Refusal(
                "checkout-failed",
                "the merge could not write, or read, all that it has to",
                context=str(error),
                hint="fix that (a disk may be full), and try again; paddock merge --resume ends what was begun",
            ) from error

    @contextmanager
    def _locked(self, wait: float) -> Iterator[int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(f"{self.directory}/lock", flags, 0o600)
        try:
            deadline = time.monotonic() + wait
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Refusal(
                            "merge-running",
                            "another merge into this repository is running",
                            context=f"it holds {self.directory}/lock",
                            hint="try again when it has finished",
                        ) from None
                    time.sleep(_PAUSE)
            for name in os.listdir(self.directory):
                if name.endswith(".tmp"):  # of a write that was killed
                    os.unlink(f"{self.directory}/{name}")
            yield descriptor
        finally:
            os.close(descriptor)

    def new_id(self) -> str:
        """A name for a new run."""
        now = time.time_ns()
        # In the order of time also within a second: runs are taken back from the last one.
        parts = now % 1_000_000_000 * 0xFFFFF // 1_000_000_000
        stamp = time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now // 1_000_000_000))
        return f"{stamp}{parts:05x}{secrets.randbelow(16):x}"

    def write(self, run: Run) -> Run:
        """Puts a run on disk, for good, and returns it."""
        if run.state in UNFINISHED:
            walk.replace(self._active, run.run_id.encode())
        walk.replace(self._path(run.run_id), run.model_dump_json().encode())
        if run.state not in UNFINISHED and self._read_active() == run.run_id:
            os.unlink(self._active)
        return run

    def advance(self, run: Run, state: State, note: str = "") -> Run:
        """Writes a run with its next state."""
        return self.write(run.model_copy(update={"state": state, "note": note or run.note}))

    def read(self, run_id: str) -> Run:
        """The run of that name.

        Refusals: merge-run-unknown, journal-damaged.
        """
        if not _RUN.fullmatch(run_id):
            raise self._unknown(run_id)
        try:
            with open(self._path(run_id), "rb") as stream:
                content = stream.read()
        except FileNotFoundError:
            raise self._unknown(run_id) from None
        try:
            return Run.model_validate_json(content)
        except ValidationError as error:
            raise Refusal(
                "journal-damaged",
                f"the journal of run {run_id} cannot be read",
                context=f"{self._path(run_id)}: {error.errors()[0]['msg']}",
                hint="see refs/paddock/merge in the repository for the commits of that run",
            ) from None

    def forget(self, run_id: str) -> None:
        """Removes a run that is finished. The lock is held."""
        os.unlink(self._path(run_id))

    def runs(self) -> list[str]:
        """Names of all runs, oldest first."""
        found = [name.removesuffix(".json") for name in os.listdir(self.directory) if name.endswith(".json")]
        return sorted(name for name in found if _RUN.fullmatch(name))

    def unfinished(self) -> Run | None:
        """The run that a crash has left, if there is one. There is never more than one: none begins beside it."""
        name = self._read_active()
        if name is None or name not in self.runs():
            return None
        run = self.read(name)
        return run if run.state in UNFINISHED else None

    def _read_active(self) -> str | None:
        try:
            with open(self._active, encoding="ascii", errors="replace") as stream:
                return stream.read(100)
        except FileNotFoundError:
            return None

    def _path(self, run_id: str) -> str:
        return f"{self.directory}/{run_id}.json"

    def _unknown(self, run_id: str) -> Refusal:
        known = self.runs()
        return Refusal(
            "merge-run-unknown",
            f"there is no run {run_id}",
            context=f"runs: {', '.join(known[-5:])}" if known else "nothing has been merged here yet",
            hint="paddock merge status",
        )
