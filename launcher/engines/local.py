"""This machine performs rows: a thread for each that runs, whose jail ends when this process does."""

import os
import queue
from concurrent.futures import ThreadPoolExecutor

from launcher.engines import row
from launcher.engines.row import Cause, Job, Outcome


class Local:
    """The engine `local`; see `launcher.engines.driver.Engine`."""

    name = "local"

    def __init__(self, parallel: int) -> None:
        """Args: rows that run at the same time."""
        self.room = parallel
        self.notes: list[str] = []
        self._threads = ThreadPoolExecutor(parallel, "row")
        self._done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._cancel, self._cancelled = os.pipe()

    def prepare(self, jobs: list[Job], prefix: str) -> list[str]:
        """See `Engine`."""
        del jobs
        return row.sweep(prefix)

    def submit(self, job: Job) -> None:
        """See `Engine`."""
        self._threads.submit(self._perform, job)

    def next(self, seconds: float) -> Outcome | None:
        """See `Engine`."""
        try:
            return self._done.get(timeout=seconds)
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """See `Engine`."""
        os.write(self._cancelled, b"x")

    def close(self, prefix: str) -> list[str]:
        """See `Engine`."""
        del prefix
        self._threads.shutdown()
        os.close(self._cancel)
        os.close(self._cancelled)
        return row.trees.remove()

    def _perform(self, job: Job) -> None:
        try:
            outcome = row.read_outcome(row.perform(job.model_dump_json().encode(), self._cancel))
        except Exception as error:
            outcome = row.failed(job, Cause.ENGINE, error, 0.0)
        self._done.put(outcome)
