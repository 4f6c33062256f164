"""Jobs: slow work with git, each in a process of its own, as a function from plain data to plain data.

In a process because it would hold up the service's one thread; on a thread it could not be, because jails end with the
thread that started them (prctl(2), PR_SET_PDEATHSIG), and a harvest starts some. A job dies with the service; harvests
and merges have journals for that.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from policy.errors import Refusal

log = logging.getLogger("paddock.service")

_HELPER = str(Path(__file__).resolve().parents[1] / "helper.py")
MOST_ANSWER = 64 << 20


class Jobs:
    """Starts jobs and waits for them."""

    def __init__(self, most: int = 2) -> None:
        """Args: how many at the same time; others wait."""
        self._turns = asyncio.Semaphore(most)
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        step: Callable[[dict[str, Any]], None] = lambda step: None,
    ) -> dict[str, Any]:
        """Runs one job to its end.

        Args:
            name: of a function in `launcher.service.job`.
            arguments: its keywords, as JSON knows them.
            step: told each step of which the job tells.

        Returns:
            What it gives back.

        Refusals: the job's own; job-lost when it ended without an answer.
        """
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", _HELPER, "job", str(os.getpid()), name,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd="/", limit=MOST_ANSWER,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            try:
                answer = await _answer(process, json.dumps(arguments).encode(), step)
            except BaseException:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
                raise
            finally:
                self._running.discard(process)
        if answer is None:
            raise Refusal("job-lost", f"the job for {name} ended without an answer",
                          context=f"status {process.returncode}; the log may say more")  # fmt: skip
        if "refusal" in answer:
            raise Refusal.of(answer["refusal"])
        result: dict[str, Any] = answer["result"]
        return result

    async def close(self) -> None:
        """Ends those that run."""
        for process in tuple(self._running):
            if process.returncode is None:
                process.terminate()
        for process in tuple(self._running):
            await process.wait()


async def _answer(
    process: asyncio.subprocess.Process, arguments: bytes, step: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    """The last line of a job that has ended; None when it is no answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    answer: dict[str, Any] | None = None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(arguments)
        await process.stdin.drain()
    process.stdin.close()
    async for line in process.stdout:
        if not line.endswith(b"\n"):
            break  # it was killed
        content: dict[str, Any] = json.loads(line)
        if "step" in content:
            step(content["step"])
        else:
            answer = content
    await process.wait()
    return answer
