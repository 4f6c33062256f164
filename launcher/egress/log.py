"""One line of JSON per decision, in the session's directory."""

import json
import os
import time

from launcher.egress.witness import NOBODY
from launcher.ledger.denial import Process
from policy.egress import Verdict

FILE = "egress.jsonl"
LAYER = "proxy"


class Log:
    """The log of one session's proxy; owns its descriptor."""

    def __init__(self, path: str, most_bytes: int) -> None:
        """Opens the file, which only its owner can read.

        Args:
            path: of the file; made when it is missing.
            most_bytes: beyond it, decisions are counted only, and the number is told by `close`.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._left = most_bytes
        self._lost = 0

    def decision(self, operation: str, host: str, port: int, verdict: Verdict, asked: Process = NOBODY) -> None:
        """Writes one decision.

        Args:
            operation: ``connect``, ``socks``, or an HTTP method.
            host: canonical, or as sent when it is no host.
            port: 0 when there is none.
            verdict: what was decided, by which rule, why, and what would allow it.
            asked: who asked, as far as that is known.
        """
        who = {"process": asked._asdict()} if asked.pid else {}
        self._write(
            {
                "time": round(time.time(), 3),
                "operation": operation,
                "host": host[:300],
                "port": port,
                "decision": "allow" if verdict.allowed else "deny",
                "rule": verdict.rule,
                "reason": verdict.reason,
                "layer": LAYER,
                "suggestion": verdict.suggestion,
                **who,
            }
        )

    def fault(self, text: str) -> None:
        """Writes what went wrong in the proxy itself."""
        self._write({"time": round(time.time(), 3), "operation": "fault", "layer": LAYER, "reason": text})

    def close(self) -> None:
        """Tells how many decisions found no room, and closes the file."""
        if self._lost:
            self._left = 1024
            self._write({"time": round(time.time(), 3), "operation": "lost", "layer": LAYER, "count": self._lost})
        os.close(self._fd)

    def _write(self, record: dict[str, object]) -> None:
        line = json.dumps(record).encode() + b"\n"
        if len(line) > self._left:
            self._lost += 1
            return
        self._left -= len(line)
        try:
            os.write(self._fd, line)
        except OSError:  # the disk is full: the decision stands all the same
            self._lost += 1
