"""`paddock logs`: what a session has written, as its terminal showed it, line by line, or as it was kept."""

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from launcher.service import screen
from launcher.service.client import session_path
from launcher.service.log_files import Redactor, secrets
from launcher.session import messages
from launcher.verbs.table import client
from policy.errors import Refusal, printable

_MOST = 1 << 20
"""Bytes of a line that the renderer may print."""
_MOST_TAIL = 1_000_000


def logs(
    session: str, *, follow: bool, tail: int | None, stream: list[str], times: bool, raw: bool, as_json: bool
) -> int:
    """Exit status 0."""
    if raw and (times or as_json):
        raise Refusal("usage", f"--raw and {'--times' if times else '--json'} exclude each other",
                      hint="--raw prints bytes, and nothing else")  # fmt: skip
    if tail is not None and not 0 <= tail <= _MOST_TAIL:
        raise Refusal("usage", f"--tail {tail} is not a number of lines from 0 to {_MOST_TAIL:,}",
                      hint="leave it out for all of them")  # fmt: skip
    service = client()
    at_terminal = not raw and not as_json and service.call("GET", session_path(session))["stdin"] == "terminal"
    rendered = at_terminal and (not stream or "stdout" in stream)
    query = {
        "follow": "true" if follow else None,
        "tail": None if rendered else tail,
        "stream": [*stream, "terminal"] if rendered and stream else stream or [],
    }
    lines = service.lines(session_path(session, "logs"), query)
    if rendered:
        _render(lines, follow=follow, tail=tail, times=times)
        return 0
    for line in lines:
        if as_json:
            _write(json.dumps(line).encode() + b"\n")
        elif raw and line["stream"] in ("stdout", "stderr"):
            _write(line["text"].encode(errors="surrogateescape") + (b"" if line.get("more") else b"\n"))
        elif not raw:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(line["time"])) if times else ""
            text = f"paddock: {line['text']}" if line["stream"] == "paddock" else screen.marked(line["text"])
            _write(_safe(f"{stamp}{text}\n"))
    return 0


def _safe(line: str) -> bytes:
    """Without anything that could drive a terminal."""
    return "\t".join(printable(part, len(part)) for part in line.removesuffix("\n").split("\t")).encode() + b"\n"


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise messages.unwritable(error) from None


def _render(lines: Iterator[dict[str, Any]], *, follow: bool, tail: int | None, times: bool) -> None:
    """Prints what a terminal showed; what an agent wrote there is read in a confined process (`service.screen`)."""
    theirs, records = os.pipe()
    rendered, printed = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(theirs, 0)
        os.dup2(printed, 1)
        messages.drop(2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        screen.serve(follow=follow, tail=tail, times=times)
    os.close(theirs)
    os.close(printed)
    failed: list[Exception] = []
    feeder = threading.Thread(target=_feed, args=(lines, records, follow, failed), daemon=True)
    feeder.start()
    # Once more: what colours, NULs or moves of the cursor kept apart in the log has come together. The service keeps no
    # secret to compare with, the caller's environment has most.
    redact = Redactor(secrets(os.environ, ()))
    with os.fdopen(rendered, "rb") as file:
        while line := file.readline(_MOST):
            _write(_safe(redact(line).decode(errors="replace")))
    status = os.waitpid(child, 0)[1]
    if status:
        raise Refusal("log-unreadable", "what the session wrote could not be rendered",
                      hint="--raw prints the bytes, --json the lines as they are kept")  # fmt: skip
    feeder.join()
    if failed:
        raise failed[0]


def _feed(lines: Iterator[dict[str, Any]], records: int, follow: bool, failed: list[Exception]) -> None:
    """Sends the renderer records, and an empty line before the first that is newer than this process's question."""
    begun = time.time()
    past = True
    try:
        with os.fdopen(records, "wb") as file:
            for line in lines:
                if past and line["time"] > begun:
                    past = False
                    file.write(b"\n")
                file.write(json.dumps(line).encode() + b"\n")
                if follow:
                    file.flush()
    except BrokenPipeError:
        return  # the renderer has ended: its status says why
    except Exception as error:
        failed.append(error)
