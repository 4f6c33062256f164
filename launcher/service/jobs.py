"""Jobs: work with git that takes its time, each in a process of its own, as a function from plain data to plain data.

In a process because it would hold up the service's one thread; on a thread it could not be, because jails end with the
thread that started them (prctl(2), PR_SET_PDEATHSIG), and a harvest starts some. A job dies with the service; harvests
and merges have journals for that.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from launcher.service.job import main; main(sys.argv[2], sys.argv[3])"
)
MOST_ANSWER = 64 << 20


class Jobs:
    """Starts jobs and waits for them."""

    def __init__(self, most: int = 2) -> None:
        """Args: how many at the same time; others wait."""
        self._turns = asyncio.Semaphore(most)
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(
        self, name: str, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Runs one job to its end.

        Args:
            name: of a function in `launcher.service.job`.
            arguments: its keywords, as JSON knows them.
            environment: of its process; the service's own when None.

        Returns:
            What it gives back.

        Raises:
            Refusal: the job's own; job-lost when it ended without an answer.
        """
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", _BOOT, _ROOT, str(os.getpid()), name,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd="/", limit=MOST_ANSWER,
                env=None if environment is None else dict(environment), start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            try:
                answer, _ = await process.communicate(json.dumps(arguments).encode())
            except asyncio.CancelledError:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
                raise
            finally:
                self._running.discard(process)
        try:
            content = json.loads(answer)
        except ValueError:
            raise Refusal("job-lost", f"the work on {name} ended without an answer",
                          context=f"status {process.returncode}; the log may say more") from None  # fmt: skip
        if "refusal" in content:
            raise refusal_of(content["refusal"])
        result: dict[str, Any] = content["result"]
        return result

    async def close(self) -> None:
        """Ends those that run."""
        for process in tuple(self._running):
            if process.returncode is None:
                process.terminate()
        for process in tuple(self._running):
            await process.wait()


def refusal_of(data: Mapping[str, Any]) -> Refusal:
    """The Refusal that `Refusal.as_dict` was made from."""
    return Refusal(
        data["errorType"], data["message"], context=data["context"], hint=data["hint"], exit_code=data["exitCode"]
    )
