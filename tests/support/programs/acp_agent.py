"""An agent that does what the test tells it, byte for byte. Runs in the jail: standard library only.

Each line that comes in is told back as a notification `_got`, but for orders: `_say` (write these bytes), `_exit`
(end with this status), `_fill` (write so many lines of an update), `_run` (run a command, tell its output).
Arguments: `deaf` ignores the end of its input, of its reader, and SIGTERM.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time


def tell(message: object) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def obey(line: bytes) -> None:
    try:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params")
    except (ValueError, AttributeError):
        method, params = None, None
    if method == "_say":
        sys.stdout.buffer.write(base64.b64decode(params["data"]))
        sys.stdout.buffer.flush()
    elif method == "_exit":
        os._exit(params["status"])
    elif method == "_fill":
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * params["size"]}}
        text = json.dumps(
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
        )
        for _ in range(params["count"]):
            sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
        tell({"jsonrpc": "2.0", "method": "_filled", "params": {}})
    elif method == "_run":
        ended = subprocess.run(params["argv"], capture_output=True, text=True, check=False)
        tell({"jsonrpc": "2.0", "id": message.get("id"), "result": {"status": ended.returncode, "said": ended.stdout}})
    else:
        tell({"jsonrpc": "2.0", "method": "_got", "params": {"line": base64.b64encode(line).decode()}})


def main() -> None:
    deaf = "deaf" in sys.argv
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while line := sys.stdin.buffer.readline():
        obey(line)
    try:
        tell({"jsonrpc": "2.0", "method": "_ended", "params": {}})
    except BrokenPipeError:
        if not deaf:
            raise
    while deaf:
        time.sleep(1)


main()
