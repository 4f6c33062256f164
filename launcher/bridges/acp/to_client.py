"""From the agent to the client: requests that the client would carry out outside of the jail.

The agent may be hostile, and the client acts on its own reading of a line. So what is policed must be unmistakable, and
goes on in the bridge's own words: only the protocol's own fields, with the canonical path.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from launcher.bridges.acp import logins, rpc, way
from launcher.bridges.acp.judge import READ, WRITE
from launcher.bridges.acp.places import JAIL, STRIP, Place, Rules
from launcher.bridges.acp.rpc import Outcome
from policy.errors import printable

if TYPE_CHECKING:
    from acp.schema import ReadTextFileRequest, WriteTextFileRequest

_ROOMS = ("fs/", "terminal/", "mcp/")
"""Methods of the client's that act outside of the jail: on its files, its processes, its MCP servers."""

_MOST_AWAITED = 1000

_ENDED = (
    "paddock: the agent has ended without an answer; what it said is in the editor's log, "
    "or in `paddock logs` where the agent lives in the service"
)


class Jail(Protocol):
    """What answers requests in the client's place, in the jail. A reply b"" comes later."""

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        """Answers a `terminal/` request."""
        ...

    def file(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """Answers a request for the file at a canonical path."""
        ...

    def shown(self, message: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A message with text for its terminals, and whether it is another one."""
        ...


class ToClient:
    """The agent's lines that are not passed unread."""

    def __init__(self, rules: Rules, look: way.ToClient, jail: Jail, found: Callable[[str, Place], None]) -> None:
        """Takes what decides.

        Args:
            rules: of the bridge.
            look: chooses the lines that come here; told when a reply is awaited.
            jail: serves what the rules have done there.
            found: told of each new session, and where it works.
        """
        self._rules = rules
        self._look = look
        self._jail = jail
        self._found = found
        self._awaited: dict[rpc.Id, Place | None] = {}

    def awaits(self, number: rpc.Id, place: Place | None) -> None:
        """The agent was asked for a new session in this place; without one, what it can do."""
        if len(self._awaited) < _MOST_AWAITED:
            self._awaited[number] = place
            self._look.awaited = True

    def opened(self, session: str, place: Place) -> None:
        """A session of the protocol has begun, or is taken up again."""
        self._rules.places.remember(session, place)
        self._found(session, place)

    def __call__(self, line: bytes) -> Outcome:
        """Judges one line."""
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            return self.unreadable(str(error))
        if not isinstance(message, dict):
            return self.unreadable("a batch, which the protocol does not have")
        if not rpc.is_plain(message):
            return self.unreadable("a member that could be taken for another one")
        method = message.get("method", "")
        if not isinstance(method, str):
            return self.unreadable("a method that is no string")
        if _bare(method).startswith(_ROOMS):
            return self._policed(method, message)
        self._look_for_session(message)
        other, changed = self._jail.shown(message)
        if changed:
            return Outcome(rpc.encode(other))
        advised, changed = logins.advised(message, self._rules.plan)
        safe, stripped = logins.without_terminals(advised)
        if stripped:
            why = "the client would run it outside of the jail"
            self._rules.audit.refused("initialize", "offer a login in a terminal", target=why)
        return Outcome(rpc.encode(safe) if changed or stripped else rpc.unmistakable(line))

    def last_words(self) -> bytes:
        """The agent has ended: errors for what it has not answered. What the user was warned of may be the reason."""
        reasons = [f"paddock: warning: {warning}" for warning in self._rules.plan.warnings]
        text = "\n".join([_ENDED, *map(printable, reasons)])
        lines = [rpc.error(number, rpc.INTERNAL_ERROR, text) for number in self._awaited]
        self._awaited.clear()
        return b"".join(lines)

    def unreadable(self, why: str) -> Outcome:
        """The answer to a line that might ask for something, and cannot be read for certain."""
        self._rules.audit.refused("", "send an ambiguous message", target=why)
        return Outcome(back=rpc.error(None, rpc.PARSE_ERROR, f"paddock does not pass this on: {why}"))

    def _look_for_session(self, message: dict[str, Any]) -> None:
        number = rpc.usable_id(message)
        if "method" in message or number is None:
            return
        place = self._awaited.pop(number, None)
        self._look.awaited = bool(self._awaited)
        result = message.get("result")
        if place is not None and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
            self.opened(result["sessionId"], place)

    def _policed(self, method: str, message: dict[str, Any]) -> Outcome:
        number, params = rpc.usable_id(message), message.get("params")
        if number is None:
            self._rules.audit.refused(method, "send a request without a usable id", target=method)
            text = f"{method} needs an id that is a string or an integer below 2**53"
            return Outcome(back=rpc.error(None, rpc.INVALID_REQUEST, text))
        if not isinstance(params, dict):
            return Outcome(back=rpc.error(number, rpc.INVALID_PARAMS, f"{method} needs an object of parameters"))
        if method.startswith("terminal/") and self._rules.choices.terminals == JAIL:
            return Outcome(back=self._jail.terminal(number, method, params))
        if method in ("fs/read_text_file", "fs/write_text_file") and self._rules.choices.files != STRIP:
            return self._file(number, method, params)
        self._rules.audit.refused(method, "call a method of the client", target=method)
        text = f"paddock does not pass {method} on: it would act outside of the agent's jail"
        return Outcome(back=rpc.error(number, rpc.METHOD_NOT_FOUND, text, {"method": method}))

    def _file(self, number: rpc.Id, method: str, params: dict[str, Any]) -> Outcome:
        from acp.schema import ReadTextFileRequest, WriteTextFileRequest
        from pydantic import ValidationError

        write = method == "fs/write_text_file"
        model: type[ReadTextFileRequest | WriteTextFileRequest] = WriteTextFileRequest if write else ReadTextFileRequest
        try:
            wanted = model.model_validate(params)
        except ValidationError as error:
            why = [{"field": ".".join(map(str, each["loc"])), "why": each["msg"]} for each in error.errors()]
            return Outcome(back=rpc.error(number, rpc.INVALID_PARAMS, f"{method}: parameters are not valid", why))
        ruling = self._rules.judge.file(wanted.path, WRITE if write else READ)
        if not ruling.allowed:
            self._rules.audit.refused(method, "write" if write else "read", path=ruling.seen, hint=ruling.hint)
            return Outcome(back=rpc.error(number, rpc.DENIED, ruling.message, ruling.data))
        if self._rules.choices.files == JAIL:
            self._rules.audit.allowed(method, ruling.path, "in the jail")
            return Outcome(back=self._jail.file(number, wanted, ruling.path))
        path = self._rules.places.spelled(wanted.session_id, ruling.path)
        self._rules.audit.allowed(method, ruling.path, f"as {path}" if path != wanted.path else "")
        fields = wanted.model_dump(by_alias=True, exclude_none=True)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**fields, "path": path}}
        return Outcome(rpc.encode(request))


def _bare(method: str) -> str:
    """A method as the most forgiving dispatcher would take it: without case, white space and control characters."""
    return "".join(character for character in method if character.isprintable() and character != " ").casefold()
