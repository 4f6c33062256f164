"""The protocol's terminals, in the jail: commands that an agent asks its client to run.

The client would run them outside. So the bridge answers these requests itself, and runs the commands as `paddock exec`
does: held exactly as the agent is. Source: https://agentclientprotocol.com/protocol/terminals.

A client shows a terminal that an agent names in a tool call. It does not know these, so it gets their command and
output as text in that place, and again when the command has ended.
"""

import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.bridges.acp import rpc
from launcher.bridges.acp.jailed import Jailed
from launcher.bridges.acp.places import Rules
from launcher.bridges.acp.relay import Poll
from launcher.jail import request
from policy.errors import Refusal, printable
from policy.plan import beneath

if TYPE_CHECKING:
    from acp.schema import CreateTerminalRequest

MOST_TERMINALS = 64
"""That are not released, of one bridge."""

MOST_WAITING = 100
"""Requests that await the end of one terminal."""

MOST_OUTPUT = 4 << 20
_USUAL_OUTPUT = 1 << 20
"""Bytes that are kept of a terminal: at most, and without a limit of the agent's."""

_SHOWN_OUTPUT = 1 << 16
_MOST_SHOWN = 256
"""Bytes of output that a client is shown, and terminals whose text is kept for that after their release."""

_NAMES = ("terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release")


class Terminal:
    """One terminal: its session, how it is written, what runs in it, and who waits for its end."""

    def __init__(self, session: str, line: str) -> None:
        self.session = session
        self.line = line
        self.waiting: list[rpc.Id] = []
        self.run: Jailed | None = None

    @property
    def running(self) -> Jailed:
        """What runs, or has run, in it."""
        assert self.run is not None
        return self.run

    def exit(self) -> dict[str, Any] | None:
        """The protocol's `TerminalExitStatus`; None while the command runs."""
        ended = self.running.ended
        return None if ended is None else {"exitCode": ended.code, "signal": ended.signal}

    def text(self, most: int) -> str:
        """The last bytes of the output, from a character's beginning on."""
        data = bytes(self.running.output[-most:]) if most else b""
        if self.running.truncated or len(data) < len(self.running.output):
            start = 0
            while start < min(4, len(data)) and data[start] & 0xC0 == 0x80:
                start += 1
            data = data[start:]
        return data.decode("utf-8", "replace")

    def shown(self) -> str:
        """What people see of it."""
        status = self.exit()
        end = ""
        if status is not None and status["signal"]:
            end = f"\n[ended by {status['signal']}]"
        elif status is not None and status["exitCode"]:
            end = f"\n[exit status {status['exitCode']}]"
        return f"```console\n$ {self.line}\n{self.text(_SHOWN_OUTPUT).rstrip()}{end}\n```"


class Terminals:
    """All terminals of one bridge."""

    def __init__(
        self,
        poll: Poll,
        connect: Callable[[], socket.socket],
        reply: Callable[[bytes], None],
        on_end: Callable[[str], None],
        rules: Rules,
    ) -> None:
        """Prepares; nothing is started.

        Args:
            poll: of the loop that hands events over.
            connect: makes a connection to the session's control socket; a Refusal of it is told the agent.
            reply: sends the agent a line.
            on_end: told the id of a terminal whose command has ended.
            rules: of the bridge.
        """
        self._poll = poll
        self._connect = connect
        self._reply = reply
        self._on_end = on_end
        self._plan = rules.plan
        self._judge = rules.judge
        self._audit = rules.audit
        self._open: dict[str, Terminal] = {}
        self._shown: dict[str, str] = {}

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        return frozenset(fd for each in self._open.values() for fd in each.running.descriptors)

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        for each in list(self._open.values()):
            if fd in each.running.descriptors:
                each.running.serve(fd)
                return

    def shown(self, terminal: str) -> str | None:
        """What a client is shown of a terminal; None when it is none of these."""
        found = self._open.get(terminal)
        return found.shown() if found is not None else self._shown.get(terminal)

    def close(self) -> None:
        """Ends everything that runs."""
        for each in self._open.values():
            each.running.close()
        self._open.clear()

    def __call__(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        """Answers a `terminal/` request: the reply, or b"" when it comes later."""
        if method == "terminal/create":
            return self._create(number, params)
        if method not in _NAMES:
            return rpc.error(number, rpc.METHOD_NOT_FOUND, f"there is no method {method}", {"method": method})
        name = params.get("terminalId")
        found = self._open.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or found is None or found.session != params.get("sessionId"):
            return rpc.error(number, rpc.INVALID_PARAMS, f"there is no terminal {name!r} in this session")
        if method == "terminal/output":
            most = len(found.running.output)
            value = {"output": found.text(most), "truncated": found.running.truncated}
            return rpc.result(number, {**value, "exitStatus": found.exit()})
        if method == "terminal/wait_for_exit":
            status = found.exit()
            if status is None and len(found.waiting) >= MOST_WAITING:
                return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_WAITING} requests await its end already")
            if status is None:
                found.waiting.append(number)
                return b""
            return rpc.result(number, status)
        if found.running.ended is None:
            found.running.kill()
        if method == "terminal/release":
            self._release(name, found)
        return rpc.result(number, {})

    def _create(self, number: rpc.Id, params: dict[str, Any]) -> bytes:
        from acp.schema import CreateTerminalRequest
        from pydantic import ValidationError

        try:
            wanted = CreateTerminalRequest.model_validate(params)
        except ValidationError as error:
            why = [{"field": ".".join(map(str, each["loc"])), "why": each["msg"]} for each in error.errors()]
            return rpc.error(number, rpc.INVALID_PARAMS, "terminal/create: parameters are not valid", why)
        if len(self._open) >= MOST_TERMINALS:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_TERMINALS} terminals are open; release one first")
        cwd = self._plan.cwd
        if wanted.cwd is not None:
            ruling = self._judge.directory(wanted.cwd)
            if not ruling.allowed or not beneath(ruling.path, self._plan.worktree):
                message = ruling.message or f"{wanted.cwd} is not inside the worktree {self._plan.worktree}"
                self._audit.refused("terminal/create", "start in", target=ruling.seen, hint=_INSIDE)
                return rpc.error(number, rpc.DENIED, message, ruling.data or None)
            cwd = ruling.path
        line = printable(" ".join([wanted.command, *(wanted.args or ())]))
        terminal = Terminal(wanted.session_id, line[:1000])
        name = f"paddock-{secrets.token_hex(8)}"
        try:
            terminal.run = self._started(wanted, cwd, name, terminal)
        except Refusal as refusal:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: {refusal.message}", refusal.as_dict())
        except (OSError, ValueError) as error:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: the command could not be started: {error}")
        self._open[name] = terminal
        self._audit.allowed("terminal/create", line[:1000], "in the jail")
        return rpc.result(number, {"terminalId": name})

    def _started(self, wanted: "CreateTerminalRequest", cwd: str, name: str, terminal: Terminal) -> Jailed:
        words = [wanted.command, *wanted.args] if wanted.args else ["/bin/sh", "-c", wanted.command]
        pairs = tuple((each.name, each.value) for each in wanted.env or ())
        if any(not key or "=" in key for key, _ in pairs):
            raise Refusal("environment-invalid", "a variable has no name, or one with an equals sign")
        most = wanted.output_byte_limit
        return Jailed(
            self._poll,
            self._connect(),
            request.Command(words, pairs, cwd=cwd, insists=True),
            most=_USUAL_OUTPUT if most is None else min(most, MOST_OUTPUT),
            on_end=lambda _: self._ended(name, terminal),
        )

    def _ended(self, name: str, terminal: Terminal) -> None:
        status = terminal.exit()
        for number in terminal.waiting:
            self._reply(rpc.result(number, status))
        terminal.waiting.clear()
        self._on_end(name)

    def _release(self, name: str, terminal: Terminal) -> None:
        self._shown[name] = terminal.shown()
        while len(self._shown) > _MOST_SHOWN:
            del self._shown[next(iter(self._shown))]
        terminal.running.close()
        del self._open[name]


_INSIDE = "name a directory inside the worktree"
