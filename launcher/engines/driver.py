"""A batch: which rows are still to be performed, by which engine, and the file that their results are written to.

The file of results is the log that a batch continues from. A line is written when its row has ended, and synced; beside
it, ``RESULTS.begun`` has a line for each attempt that began, so that rows which a killed driver left are told of.
"""

import fcntl
import hashlib
import os
import signal
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, Self

from launcher.engines import row
from launcher.engines.row import RESULTS, Cause, Job, Outcome, Row
from launcher.safefs import walk
from launcher.vcs import worktree_words
from policy.errors import Refusal

_LOOK = 0.5
"""Seconds between two looks at what an engine has done."""


class Engine(Protocol):
    """What performs rows.

    Attributes:
        name: for people.
        room: rows that it takes at the same time.
        notes: lines on what became of it meanwhile; whoever shows them takes them away.
    """

    name: str
    room: int
    notes: list[str]

    def prepare(self, jobs: list[Job], prefix: str) -> list[str]:
        """Makes ready for these, and removes what a killed driver has left; returns a line for each that stayed."""

    def submit(self, job: Job) -> None:
        """Takes a row."""

    def next(self, seconds: float) -> Outcome | None:
        """A row that has ended; None if none did so long."""

    def cancel(self) -> None:
        """Ends all rows that run."""

    def close(self, prefix: str) -> list[str]:
        """Ends all that is the engine's, when no row runs any more; returns a line for each thing that stayed."""


class Progress(NamedTuple):
    """How far a batch is.

    Attributes:
        rows: in all.
        done: those that have a result.
        running: those that run.
        retried: further attempts so far.
        causes: how many ended in which way.
        notes: lines on what became of the engine since the last time.
    """

    rows: int
    done: int
    running: int
    retried: int
    causes: Mapping[Cause, int]
    notes: tuple[str, ...] = ()


def jobs_of(rows: list[tuple[int, Row]], prefix: str) -> list[Job]:
    """Rows, each behind its line, by what they are: equal ones are counted, so that each has a key of its own, wherever
    in the file it stands.
    """
    seen: Counter[str] = Counter()
    found = []
    for number, each in rows:
        key = each.key()
        seen[key] += 1
        name = f"{key}.{seen[key]}"
        found.append(Job(row=each, key=name, number=number, attempt=1, session=f"{prefix}-{number}"))
    return found


class Results:
    """The file of results, and the one beside it. Opened, it belongs to one driver.

    Attributes:
        prefix: names that the sessions of this file's rows begin with.
        last: the last result of each row, by its key.
        begun: how often each row was begun.
        torn: whether the last line was half written, and is dropped.
    """

    def __init__(self, path: str) -> None:
        """Opens it, and reads what is there.

        Raises:
            Refusal: results-unusable, results-invalid, batch-running, worktree-behind-link.
        """
        directory, name = os.path.split(path)
        self.path = os.path.join(worktree_words.directory(directory or ".", os.getcwd()), name)
        self.prefix = f"{row.PREFIX}{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:10]}"
        self.last: dict[str, Outcome] = {}
        self.begun: Counter[str] = Counter()
        self._files: list[int] = []
        self._log = -1
        try:
            # Sessions may write the directory: no link that appears there leads the way.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._directory = walk.open_canonical(os.path.dirname(self.path), flags)
            self._files.append(self._directory)
            self._file = self._opened("")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refusal("batch-running", f"another process writes results to {self.path}",
                              hint="wait for it, or name other --results") from None  # fmt: skip
            self.torn = self._read()
            self._log = self._opened(".begun")
            with open(os.dup(self._log), encoding="ascii", errors="replace") as file:
                self.begun.update(line.strip() for line in file if line.endswith("\n"))
        except OSError as error:
            self.close()
            raise Refusal(
                "results-unusable", f"results cannot be written to {self.path}", context=error.strerror or str(error),
                hint="name another file: --results FILE",
            ) from None  # fmt: skip
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, job: Job) -> None:
        """Notes that a row is being performed."""
        self.begun[job.key] += 1
        self._append(self._log, job.key.encode())

    def add(self, outcome: Outcome) -> None:
        """Writes a result. Refusals: results-unusable."""
        self.last[outcome.key] = outcome
        self._append(self._file, row.written(outcome))

    def finish(self) -> None:
        """Every row has its result: what was begun need not be known any more."""
        os.ftruncate(self._log, 0)

    def close(self) -> None:
        """Lets go of the files; removes the one beside when nothing is in it."""
        if self._log != -1 and not os.fstat(self._log).st_size:
            with suppress(OSError):
                os.unlink(f"{os.path.basename(self.path)}.begun", dir_fd=self._directory)
        self._log = -1
        while self._files:
            os.close(self._files.pop())

    def _opened(self, ending: str) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(self.path) + ending, flags, 0o600, dir_fd=self._directory)
        self._files.append(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refusal(
                "results-unusable",
                f"{self.path}{ending} is not a regular file",
                hint="name another file: --results FILE",
            )
        return descriptor

    def _read(self) -> bool:
        whole = 0
        with open(os.dup(self._file), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, whole)
                    return True
                whole += len(line)
                try:
                    outcome = row.read_outcome(line)
                except ValueError as error:
                    raise Refusal(
                        "results-invalid", f"{self.path}: line {number} is not a result of a batch", context=str(error),
                        hint="name another file: --results FILE",
                    ) from None  # fmt: skip
                self.last[outcome.key] = outcome
        return False

    def _append(self, descriptor: int, line: bytes) -> None:
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError as error:
            raise Refusal("results-unusable", f"results cannot be written to {self.path}",
                          context=error.strerror or str(error),
                          hint="free some space, then run the same command again: it continues") from None  # fmt: skip


class Ended(NamedTuple):
    """How a batch ended: 0, or the number of the signal that ended it; and lines on what could not be removed."""

    signal: int
    left: list[str]


class Batch:
    """Performs the rows of a file that have no result yet.

    Rows that could not be performed, which says nothing of their command, are performed again.

    Attributes:
        todo: those rows.
        skipped: rows that have a result.
        failures: rows of `todo` that could not be performed before.
        unfinished: further rows of `todo` that were begun before.
        strange: results of rows that are not in the file.
    """

    def __init__(self, jobs: list[Job], results: Results, retries: Mapping[Cause, int]) -> None:
        self._jobs = jobs
        self._results = results
        self._retries = retries
        self._retried = 0
        last = results.last
        self.todo = [job for job in jobs if job.key not in last or last[job.key].cause not in RESULTS]
        self.skipped = len(jobs) - len(self.todo)
        self.failures = sum(job.key in last for job in self.todo)
        self.unfinished = sum(job.key not in last and results.begun[job.key] > 0 for job in self.todo)
        self.strange = len(last.keys() - {job.key for job in jobs})

    def run(self, engine: Engine, show: Callable[[Progress], None]) -> Ended:
        """Performs them. A first SIGINT or SIGTERM ends the rows that run, a second one this process.

        Raises:
            Refusal: results-unusable, and what the engine refuses.
        """
        waiting = self.todo[::-1]
        running: dict[str, Job] = {}
        tried: Counter[tuple[str, Cause]] = Counter()
        with _signals(engine.cancel) as came:
            left: list[str] = []
            try:
                left += engine.prepare(self.todo, self._results.prefix)
                while running or (waiting and not came):
                    while waiting and len(running) < engine.room and not came:
                        job = self._next_attempt(waiting.pop())
                        self._results.begin(job)
                        running[job.key] = job
                        engine.submit(job)
                    show(self._progress(len(running), engine))
                    outcome = engine.next(_LOOK)
                    if outcome is None:
                        continue
                    job = running.pop(outcome.key)
                    if outcome.cause is Cause.CANCELLED:
                        continue
                    tried[job.key, outcome.cause] += 1
                    most = 0 if outcome.status == 0 else self._retries.get(outcome.cause, 0)
                    if tried[job.key, outcome.cause] <= most and not came:
                        self._retried += 1
                        waiting.append(job)
                    else:
                        self._results.add(outcome)
            except BaseException:
                engine.cancel()
                raise
            finally:
                left += engine.close(self._results.prefix)
            show(self._progress(0, engine))
        if not waiting and not came:
            self._results.finish()
        return Ended(came[0] if came else 0, list(dict.fromkeys(left)))

    def _next_attempt(self, job: Job) -> Job:
        last = self._results.last.get(job.key)
        attempt = max(self._results.begun[job.key], last.attempt if last is not None else 0) + 1
        return job.model_copy(update={"attempt": attempt, "session": f"{self._results.prefix}-{job.number}-{attempt}"})

    def _progress(self, running: int, engine: Engine) -> Progress:
        causes = self.causes()
        notes, engine.notes = tuple(engine.notes), []
        return Progress(len(self._jobs), sum(causes.values()), running, self._retried, causes, notes)

    def causes(self) -> Counter[Cause]:
        """How many rows of the file ended in which way, so far; those that are performed again do not count."""
        found = (self._results.last.get(job.key) for job in self._jobs)
        return Counter(each.cause for each in found if each is not None)

    def outcomes(self) -> Iterator[Outcome]:
        """The result of each row of the file that has one, in the file's order."""
        for job in self._jobs:
            if job.key in self._results.last:
                yield self._results.last[job.key]


@contextmanager
def _signals(first: Callable[[], None]) -> Iterator[list[int]]:
    """The numbers of signals that ask for the end, as they come: the first one calls `first`."""
    came: list[int] = []

    def ask(number: int, _: object) -> None:
        came.append(number)
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        first()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
