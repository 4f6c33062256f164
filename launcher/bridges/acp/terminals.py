"""What the bridge answers in the client's place: terminals and files, in the jail of the session."""

import collections
import io
import itertools
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher import wire
from launcher.bridges.acp import rpc
from launcher.bridges.acp.agent_requests import checked
from launcher.bridges.acp.lines import Poll
from launcher.bridges.acp.rulings import Rules
from launcher.jail import minder, reports
from policy.errors import Refusal, printable
from policy.plan import Plan, beneath

if TYPE_CHECKING:
    from acp.schema import CreateTerminalRequest, ReadTextFileRequest, WriteTextFileRequest


# A command that runs in the session's jail for the bridge, as `paddock exec` runs one, without any waiting for it.

_CHUNK = 1 << 16
_PATIENCE = 10.0
"""Seconds for the jail's init to take a request. It has nothing else to do."""

_LAST_READS = 64
"""Times that the pipe is read when the command has ended: more than it holds, and an end to what never ends."""


class Ended:
    """How a command ended: with an exit status, or by a signal's name. One of the two is None."""

    __slots__ = ("code", "signal")

    def __init__(self, code: int | None, signal_name: str | None) -> None:
        self.code = code
        self.signal = signal_name


class Jailed:
    """One running command. Its descriptors are registered with the poll object of the bridge's loop.

    Attributes:
        output: the last bytes that it wrote, as many as are kept.
        truncated: earlier ones were dropped.
        ended: None as long as it runs, or its output may still come.
    """

    def __init__(
        self,
        poll: Poll,
        connection: socket.socket,
        command: minder.Command,
        *,
        most: int,
        stdin: bytes = b"",
        on_end: Callable[["Jailed"], None],
    ) -> None:
        """Starts a command; standard output and error go to the same place.

        Args:
            poll: of the loop that hands events over.
            connection: to the session's control socket, owned from now on.
            command: what to run.
            most: bytes of output that are kept.
            stdin: what it reads.
            on_end: told when it has ended.

        Raises:
            Refusal: the request is not well formed, or too long.
            OSError: the session does not take it.
        """
        self._poll = poll
        self._connection = connection
        self._most = most
        self._input = bytearray(stdin)
        self._on_end = on_end
        self._decoder = wire.Decoder()
        self._exit: Ended | None = None
        self.output = bytearray()
        self.truncated = False
        self.ended: Ended | None = None
        inside: list[int] = []
        self._pipe = self._feed = -1
        try:
            data = wire.frame(minder.COMMAND, command.encode())
            self._pipe, writer = os.pipe()
            inside = [self._reader(), writer, os.dup(writer)]
            connection.setblocking(False)
            wire.send(connection.fileno(), data, tuple(inside), time.monotonic() + _PATIENCE)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in inside:
                os.close(fd)
        os.set_blocking(self._pipe, False)
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._pipe, select.POLLIN)
        if self._feed != -1:
            poll.register(self._feed, select.POLLOUT)

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        own = self._connection.fileno()
        return frozenset(fd for fd in (own, self._pipe, self._feed) if fd != -1)

    @property
    def unread(self) -> int:
        """Bytes that it has still to read."""
        return len(self._input)

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        if fd == self._pipe:
            self._read()
        elif fd == self._feed:
            self._write()
        elif fd == self._connection.fileno():
            self._listen()

    def kill(self) -> None:
        """Ends it, and everything below it."""
        self._exit = self._exit or Ended(None, "SIGKILL")
        self._finish()

    def close(self) -> None:
        """Lets go of it: what runs is ended. Safe to call twice."""
        for fd in (self._pipe, self._feed):
            self._drop(fd)
        self._pipe = self._feed = -1
        if self._connection.fileno() != -1:
            self._unregister(self._connection.fileno())
            self._connection.close()

    def _reader(self) -> int:
        if not self._input:
            return os.open(os.devnull, os.O_RDONLY)
        reader, self._feed = os.pipe()
        os.set_blocking(self._feed, False)
        return reader

    def _read(self) -> bool:
        """Takes output; False when there is none now, or none any more."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._drop(self._pipe)
            self._pipe = -1
            return False
        self.output += data
        if len(self.output) > self._most:
            del self.output[: len(self.output) - self._most]
            self.truncated = True
        return True

    def _write(self) -> None:
        try:
            count = os.write(self._feed, self._input[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            count = len(self._input)
        del self._input[:count]
        if not self._input:
            self._drop(self._feed)
            self._feed = -1

    def _listen(self) -> None:
        try:
            data = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for kind, payload in self._decoder.feed(data):
            if kind == reports.REFUSED:
                self._refused(reports.refusal(payload))
            elif kind == reports.EXITED:
                self._exit = self._exit or _ended(int.from_bytes(payload, "little"))
        if not data:
            self._exit = self._exit or Ended(None, "SIGKILL")  # the jail has ended, and all in it
        if self._exit is not None:
            self._finish()

    def _refused(self, refusal: Refusal) -> None:
        """It could not be started: what a shell would say, and the status that it would give."""
        self.output += f"paddock: {printable(refusal.message)}\n".encode()
        self._exit = Ended(refusal.exit_code, None)

    def _finish(self) -> None:
        """It has ended. What it has written is in the pipe; what it left in the background may write on, unheard."""
        for _ in range(_LAST_READS):
            if self._pipe == -1 or not self._read():
                break
        self.close()
        if self.ended is None:
            self.ended = self._exit
            self._on_end(self)

    def _drop(self, fd: int) -> None:
        if fd != -1:
            self._unregister(fd)
            os.close(fd)

    def _unregister(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            return  # it was not yet


def _ended(wait_status: int) -> Ended:
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return Ended(code, None)
    known = {number.value: number.name for number in signal.Signals}
    return Ended(None, known.get(-code, f"SIG{-code}"))


# The protocol's terminals, in the jail: commands that an agent asks its client to run.
#
# The client would run them outside. So the bridge answers these requests itself, and runs the commands as `paddock
# exec` does: held exactly as the agent is. Source: https://agentclientprotocol.com/protocol/terminals.
#
# A client shows a terminal that an agent names in a tool call. It does not know these, so it gets their command and
# output as text in that place, and again when the command has ended.


MOST_TERMINALS = 64
"""That are not released, of one bridge."""

MOST_WAITING = 100
"""Requests that await the end of one terminal."""

MOST_OUTPUT = 1 << 20
"""Bytes that are kept of a terminal."""

_SHOWN_OUTPUT = 1 << 16
_MOST_SHOWN = 64
"""Bytes of output that a client is shown, and terminals whose text is kept for that after their release."""

_MOST_LINE = 1000
"""Characters of a command that are shown."""

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
        """Prepares; nothing is started."""
        self._poll = poll
        self._connect = connect
        self._reply = reply
        self._on_end = on_end
        self._plan = rules.plan
        self._judge = rules.judge
        self._decisions = rules.decisions
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
            return rpc.error(number, rpc.INVALID_PARAMS, "there is no such terminal in this session")
        if method == "terminal/output":
            most = len(found.running.output)
            value = {"output": found.text(most), "truncated": found.running.truncated}
            return rpc.result(number, {**value, "exitStatus": found.exit()})
        if method == "terminal/wait_for_exit":
            status = found.exit()
            if status is None and len(found.waiting) >= MOST_WAITING:
                return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_WAITING} requests are already waiting for its end")
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

        wanted = checked(CreateTerminalRequest, number, "terminal/create", params)
        if isinstance(wanted, bytes):
            return wanted
        if len(self._open) >= MOST_TERMINALS:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_TERMINALS} terminals are open; release one first")
        cwd = self._plan.cwd
        if wanted.cwd is not None:
            ruling = self._judge.directory(wanted.cwd)
            if not ruling.allowed or not beneath(ruling.path, self._plan.worktree):
                message = ruling.message or f"{wanted.cwd} is not inside the worktree {self._plan.worktree}"
                self._decisions.refused("terminal/create", "start in", target=ruling.seen, hint=_INSIDE)
                return rpc.error(number, rpc.DENIED, message, ruling.data or None)
            cwd = ruling.path
        line = printable(" ".join([wanted.command, *(wanted.args or ())])[:_MOST_LINE])[:_MOST_LINE]
        terminal = Terminal(wanted.session_id, line)
        name = f"paddock-{secrets.token_hex(8)}"
        try:
            terminal.run = self._started(wanted, cwd, name, terminal)
        except Refusal as refusal:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: {refusal.message}", refusal.as_dict())
        except (OSError, ValueError) as error:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: the command could not be started: {error}")
        self._open[name] = terminal
        self._decisions.allowed("terminal/create", line, "in the jail")
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
            minder.Command(words, pairs, cwd=cwd, insists=True),
            most=MOST_OUTPUT if most is None else min(most, MOST_OUTPUT),
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


# Terminals of the jail in an agent's tool calls: their text stands in for what the client cannot show.


MOST_TEXT = 1 << 18
"""Characters of terminals in one message; the last one may pass it. An agent may name one any number of times."""

MOST_CALLS = 1 << 20
"""Bytes of tool calls that are remembered until their terminals end: their content comes from the agent as well."""

_UNSHOWN = {"type": "content", "content": {"type": "text", "text": "[more terminals than one message shows]"}}


class _Call(NamedTuple):
    session: str
    call: str
    content: bytes

    @property
    def size(self) -> int:
        return len(self.session) + len(self.call) + len(self.content)


class ToolCalls:
    """Puts text in the place of terminals, and brings it up to date."""

    def __init__(self, shown: Callable[[str], str | None], send: Callable[[bytes], None]) -> None:
        """Takes what knows the terminals."""
        self._shown = shown
        self._send = send
        self._calls: dict[str, _Call] = {}

    def rewritten(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of the agent's with text in the place of terminals."""
        params = message.get("params")
        if not isinstance(params, dict):
            return message
        changed = False
        for name in ("update", "toolCall"):
            call = params.get(name)
            content = call.get("content") if isinstance(call, dict) else None
            if not isinstance(call, dict) or not isinstance(content, list):
                continue
            items, known = self._text(content)
            if not known:
                continue
            session, number = params.get("sessionId"), call.get("toolCallId")
            if isinstance(session, str) and isinstance(number, str):
                self._remember(known, _Call(session, number, rpc.encode({"content": content})))
            params = {**params, name: {**call, "content": items}}
            changed = True
        return {**message, "params": params} if changed else message

    def ended(self, terminal: str) -> None:
        """A terminal's command has ended: the client gets its whole text."""
        call = self._calls.pop(terminal, None)
        if call is None:
            return
        items, _ = self._text(rpc.parse(call.content)["content"])
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call.call, "content": items}
        params = {"sessionId": call.session, "update": update}
        self._send(rpc.encode({"jsonrpc": "2.0", "method": "session/update", "params": params}))

    def _text(self, content: list[Any]) -> tuple[list[Any], set[str]]:
        """Content blocks with text for terminals, and which terminals these were."""
        items: list[Any] = []
        known: set[str] = set()
        room = MOST_TEXT
        for item in content:
            name = item.get("terminalId") if isinstance(item, dict) and item.get("type") == "terminal" else None
            if isinstance(name, str) and room <= 0:
                items.append(_UNSHOWN)
                continue
            text = self._shown(name) if isinstance(name, str) else None
            if text is None or not isinstance(name, str):
                items.append(item)
            else:
                room -= len(text)
                known.add(name)
                items.append({"type": "content", "content": {"type": "text", "text": text}})
        return items, known

    def _remember(self, terminals: set[str], call: _Call) -> None:
        for name in terminals:
            self._calls.pop(name, None)
            self._calls[name] = call
        held = sum(each.size for each in self._calls.values())
        while held > MOST_CALLS:
            held -= self._calls.pop(next(iter(self._calls))).size


# The agent's requests for files, carried out in the jail in place of the client (`--fs jail`).
#
# The kernel judges the path in the moment it is opened, so no link that is put there meanwhile leads anywhere. What
# the client has in an editor and has not saved is not seen; what is written it finds on the disk.


MOST_READ = 8 << 20
"""Bytes of a file that can be read, and of files that several requests are writing."""

MOST_AT_ONCE = 8

_NOT_FOUND = -32002  # the protocol's "resource not found"
_READ = ("/bin/cat", "--")
_WRITE = ("/bin/sh", "-c", 'cat >"$1"', "sh")


class JailFiles:
    """Reads and writes of one bridge that are under way."""

    def __init__(
        self, poll: Poll, connect: Callable[[], socket.socket], reply: Callable[[bytes], None], plan: Plan
    ) -> None:
        """Prepares; nothing is started."""
        self._poll = poll
        self._connect = connect
        self._reply = reply
        self._plan = plan
        self._running: list[Jailed] = []

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        return frozenset(fd for each in self._running for fd in each.descriptors)

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        for each in self._running:
            if fd in each.descriptors:
                each.serve(fd)
                return

    def close(self) -> None:
        """Ends what is under way."""
        for each in self._running:
            each.close()
        self._running.clear()

    def __call__(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """Begins a request for a file: the reply if it failed at once, else b""."""
        content = getattr(wanted, "content", None)
        words = [*(_READ if content is None else _WRITE), path]
        first, count = getattr(wanted, "line", None), getattr(wanted, "limit", None)
        if len(self._running) >= MOST_AT_ONCE:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_AT_ONCE} files are already being read or written")

        writes = content is not None

        def on_end(run: Jailed) -> None:
            self._running.remove(run)
            if writes:
                self._reply(_written(number, run))
            else:
                self._reply(_read(number, run, path, first, count))

        try:
            stdin = (content or "").encode()
            if self._running and sum(each.unread for each in self._running) + len(stdin) > MOST_READ:
                return rpc.error(number, rpc.INTERNAL_ERROR, f"{MOST_READ} bytes are already being written")
            run = Jailed(
                self._poll,
                self._connect(),
                minder.Command(words, cwd=self._plan.worktree, insists=True),
                most=MOST_READ,
                stdin=stdin,
                on_end=on_end,
            )
        except Refusal as refusal:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: {refusal.message}", refusal.as_dict())
        except (OSError, ValueError) as error:
            return rpc.error(number, rpc.INTERNAL_ERROR, f"paddock: the file could not be opened: {error}")
        self._running.append(run)
        return b""


def _failed(number: rpc.Id, run: Jailed) -> bytes | None:
    if run.ended is not None and run.ended.code == 0:
        return None
    said = run.output[-1000:].decode("utf-8", "replace").strip()
    return rpc.error(number, _NOT_FOUND, said or "the file could not be opened in the jail")


def _written(number: rpc.Id, run: Jailed) -> bytes:
    return _failed(number, run) or rpc.result(number, {})


def _read(number: rpc.Id, run: Jailed, path: str, first: int | None, count: int | None) -> bytes:
    failed = _failed(number, run)
    if failed is not None and os.path.lexists(path):
        return failed
    if failed is not None:
        # As editors have it: a file that is not there yet is an empty buffer. Agents ask before they make one, and
        # Gemini CLI takes an error of any kind for a file that it must not touch.
        return rpc.result(number, {"content": ""})
    if run.truncated:
        return rpc.error(number, rpc.INTERNAL_ERROR, f"the file has more than {MOST_READ} bytes")
    text = run.output.decode("utf-8", "replace")
    if first is not None or count is not None:
        # Not a list of all lines: each takes some fifty bytes more than the file has of it.
        lines, most = io.StringIO(text, newline="\n"), len(text)
        collections.deque(itertools.islice(lines, min(max((first or 1) - 1, 0), most)), 0)
        start = lines.tell()
        collections.deque(itertools.islice(lines, most if count is None else min(max(count, 0), most)), 0)
        text = text[start : lines.tell()]
    return rpc.result(number, {"content": text})


class Inside:
    """A `agent_requests.Jail`."""

    def __init__(
        self,
        poll: Poll,
        connect: Callable[[], socket.socket],
        rules: Rules,
        to_agent: Callable[[bytes], None],
        to_client: Callable[[bytes], None],
    ) -> None:
        """Prepares; nothing is started.

        Args:
            poll: of the loop that hands events over.
            connect: makes a connection to the session's control socket (`exec_client.connect`).
            rules: of the bridge.
            to_agent: sends the agent a line.
            to_client: sends the client a line.
        """
        self._terminals = Terminals(poll, connect, to_agent, self._ended, rules)
        self._files = JailFiles(poll, connect, to_agent, rules.plan)
        self._calls = ToolCalls(self._terminals.shown, to_client)

    @property
    def descriptors(self) -> frozenset[int]:
        """Those that are registered now."""
        return self._terminals.descriptors | self._files.descriptors

    def serve(self, fd: int) -> None:
        """Handles an event of one of `descriptors`."""
        self._terminals.serve(fd)
        self._files.serve(fd)

    def close(self) -> None:
        """Ends everything that runs."""
        self._terminals.close()
        self._files.close()

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        """See `agent_requests.Jail`."""
        return self._terminals(number, method, params)

    def file(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """See `agent_requests.Jail`."""
        return self._files(number, wanted, path)

    def shown(self, message: dict[str, Any]) -> dict[str, Any]:
        """See `agent_requests.Jail`."""
        return self._calls.rewritten(message)

    def _ended(self, terminal: str) -> None:
        self._calls.ended(terminal)
