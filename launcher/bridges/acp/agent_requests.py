"""What an agent says to its client: requests that the client would carry out outside of the jail are refused or served.

The agent may be hostile, and the client acts on its own reading of a line. So a request for a file, a terminal or an
MCP server of the client's is refused, served in the jail, or goes on with only the protocol's own fields and the
canonical path. Everything else goes on as it was understood, written anew (`rpc.encode`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from launcher.bridges.acp import rpc
from launcher.bridges.acp.client_requests import Place, SessionDirectories
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.rulings import JAIL, READ, STRIP, WRITE, Rules
from launcher.session import messages
from policy.errors import printable
from policy.logins import Login
from policy.plan import Plan

if TYPE_CHECKING:
    from acp.schema import ReadTextFileRequest, WriteTextFileRequest
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

_OUTSIDE = ("fs/", "terminal/", "mcp/")
"""Methods of the client's that act outside of the jail: on its files, its processes, its MCP servers."""

_MOST_AWAITED = 1000
_MOST_NOISE = 20
"""Lines that are no messages and are shown on standard error."""

_ENDED = (
    "paddock: the agent exited without an answer; its output is in the editor's log, "
    "or in `paddock logs` if it runs in the service"
)

MOST_ITEMS = 10_000
"""Items of a list in parameters: pydantic makes a kilobyte of each that is wrong."""


class Jail(Protocol):
    """What answers requests in the client's place, in the jail. A reply b"" comes later."""

    def terminal(self, number: rpc.Id, method: str, params: dict[str, Any]) -> bytes:
        """Answers a `terminal/` request."""
        ...

    def file(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """Answers a request for the file at a canonical path."""
        ...

    def shown(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with text in the place of its terminals."""
        ...


class AgentRequests:
    """Judges the agent's lines."""

    def __init__(
        self, rules: Rules, directories: SessionDirectories, jail: Jail, on_session: Callable[[str, Place], None]
    ) -> None:
        """Takes what decides."""
        self._rules = rules
        self._directories = directories
        self._jail = jail
        self._on_session = on_session
        self._awaited: dict[rpc.Id, Place | None] = {}
        self._noise = 0

    def awaits(self, number: rpc.Id, place: Place | None) -> None:
        """The agent was asked for a new session in this place; without one, what it can do."""
        if len(self._awaited) < _MOST_AWAITED:
            self._awaited[number] = place

    def opened(self, session: str, place: Place) -> None:
        """A session of the protocol has begun, or is taken up again."""
        self._directories.remember(session, place)
        self._on_session(session, place)

    def __call__(self, line: bytes) -> Outcome:
        """Judges one line."""
        if not line.strip():
            return Outcome()
        try:
            message = rpc.parse(line)
        except rpc.Ambiguous as error:
            return self.unreadable(str(error)) if b"{" in line else self._dropped(line)
        method = message.get("method", "")
        if _bare(method).startswith(_OUTSIDE):
            return self._policed(method, message)
        self._look_for_session(message)
        message = self._jail.shown(advised(message, self._rules.plan))
        encoded = rpc.encode(message)
        if b"authmethod" not in encoded.lower():
            return Outcome(encoded)
        safe, stripped = _without_terminals(message)
        if stripped:
            why = "the client would run it outside of the jail"
            self._rules.decisions.refused("initialize", "offer a login in a terminal", target=why)
        return Outcome(rpc.encode(safe))

    def last_words(self) -> bytes:
        """Errors for what an agent that has ended has not answered. What the user was warned of may be the reason."""
        reasons = [f"paddock: warning: {warning}" for warning in self._rules.plan.warnings]
        text = "\n".join([_ENDED, *map(printable, reasons)])
        lines = [rpc.error(number, rpc.INTERNAL_ERROR, text) for number in self._awaited]
        self._awaited.clear()
        return b"".join(lines)

    def unreadable(self, why: str) -> Outcome:
        """The answer to a line that might ask for something, and cannot be read for certain."""
        self._rules.decisions.refused("", "send an ambiguous message", target=why)
        return Outcome(back=rpc.error(None, rpc.PARSE_ERROR, f"paddock does not pass this on: {why}"))

    def _dropped(self, line: bytes) -> Outcome:
        """Drops a line without an object, such as a log line. An answer might be logged, and answered, for ever."""
        self._noise += 1
        if self._noise <= _MOST_NOISE:
            text = printable(line[:500].decode(errors="backslashreplace"))
            messages.say(f"paddock: ignoring a line from the agent that is not a message: {text}")
        return Outcome()

    def _look_for_session(self, message: dict[str, Any]) -> None:
        number = rpc.usable_id(message)
        if "method" in message or number is None:
            return
        place = self._awaited.pop(number, None)
        result = message.get("result")
        if place is not None and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
            self.opened(result["sessionId"], place)

    def _policed(self, method: str, message: dict[str, Any]) -> Outcome:
        number, params = rpc.usable_id(message), message.get("params")
        if number is None:
            self._rules.decisions.refused(method, "send a request without a usable id", target=method)
            text = f"{method} needs an id that is a string or an integer below 2**53"
            return Outcome(back=rpc.error(None, rpc.INVALID_REQUEST, text))
        if not isinstance(params, dict):
            return Outcome(back=rpc.error(number, rpc.INVALID_PARAMS, f"{method} needs an object of parameters"))
        if method.startswith("terminal/") and self._rules.choices.terminals == JAIL:
            return Outcome(back=self._jail.terminal(number, method, params))
        if method in ("fs/read_text_file", "fs/write_text_file") and self._rules.choices.files != STRIP:
            return self._file(number, method, params)
        self._rules.decisions.refused(method, "call a method of the client", target=method)
        text = f"paddock does not pass {method} on: it would act outside the agent's jail"
        return Outcome(back=rpc.error(number, rpc.METHOD_NOT_FOUND, text, {"method": method}))

    def _file(self, number: rpc.Id, method: str, params: dict[str, Any]) -> Outcome:
        from acp.schema import ReadTextFileRequest, WriteTextFileRequest

        write = method == "fs/write_text_file"
        model: type[ReadTextFileRequest | WriteTextFileRequest] = WriteTextFileRequest if write else ReadTextFileRequest
        wanted = checked(model, number, method, params)
        if isinstance(wanted, bytes):
            return Outcome(back=wanted)
        ruling = self._rules.judge.file(wanted.path, WRITE if write else READ)
        if not ruling.allowed:
            self._rules.decisions.refused(method, "write" if write else "read", path=ruling.seen, hint=ruling.hint)
            return Outcome(back=rpc.error(number, rpc.DENIED, ruling.message, ruling.data))
        if self._rules.choices.files == JAIL:
            self._rules.decisions.allowed(method, ruling.path, "in the jail")
            return Outcome(back=self._jail.file(number, wanted, ruling.path))
        path = self._directories.spelled(wanted.session_id, ruling.path)
        self._rules.decisions.allowed(method, ruling.path, f"as {path}" if path != wanted.path else "")
        fields = wanted.model_dump(by_alias=True, exclude_none=True)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**fields, "path": path}}
        return Outcome(rpc.encode(request))


def _bare(method: str) -> str:
    """A method as the most forgiving dispatcher would take it: without case, white space and control characters."""
    return "".join(character for character in method if character.isprintable() and character != " ").casefold()


# Logins: which of them a client is offered, and what to do where there is none.
#
# Source: the protocol's authentication (https://agentclientprotocol.com/protocol/initialization). `terminal-auth` is
# the name under which clients and agents agreed on logins in a terminal before the protocol had them; Qwen Code says
# what the protocol has now (`type`, `args`, `env`) in a method's `_meta`.

_COMMAND = ("type", "command", "args", "env")


def advised(message: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A message, with what the user can do when it is an agent's answer that it needs a login.

    Most ways to log in need a browser or a terminal outside of the jail, so there may be none among those on offer.
    """
    error = message.get("error")
    if not isinstance(error, dict) or error.get("code") != rpc.AUTH_REQUIRED:
        return message
    text = str(error.get("message", "")) or "Authentication required"
    return {**message, "error": {**error, "message": f"{text.rstrip('.')}. {_advice(plan)}"}}


def _advice(plan: Plan) -> str:
    if not plan.provider:
        return "Paddock does not know this agent, so none of your logins is in its jail: --provider NAME names it"
    fields: Any = plan.logins
    if any(login.host and not login.kept_out for login in (Login(*data) for data in fields)):
        return "In a jail: log in once without Paddock, then start the agent again, and the login is passed on"
    return (
        "In a jail: your login is not passed on; "
        f"the keys that are passed on if you export them: paddock providers {plan.provider}"
    )


def _without_terminals(value: object) -> tuple[object, bool]:
    """A message of the agent's without what would let it choose a command that the client runs outside of the jail.

    A login "in a terminal" is one: arguments, environment and (`terminal-auth`) even the command come from the agent.
    They stand in `authMethods`, of the reply to `initialize` and of errors that ask for a login. Under another spelling
    of a name (`_spelled`) none passes.
    """
    if isinstance(value, list):
        items = [_without_terminals(item) for item in value]
        changed = any(other for _, other in items)
        return ([item for item, _ in items], True) if changed else (value, False)
    if not isinstance(value, dict):
        return value, False
    changed = False
    result: dict[str, object] = {}
    for name, item in _spelled(value, ("authMethods",)).items():
        found, other = _logins(item) if name == "authMethods" else _without_terminals(item)
        result[name] = found
        changed = changed or other
    return (result, True) if changed or len(result) < len(value) else (value, False)


def _spelled(members: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Without members that a parser that forgives case or white space would take for one of `names`."""
    folded = {name.casefold() for name in names}
    return {name: item for name, item in members.items() if name in names or name.strip().casefold() not in folded}


def _logins(methods: object) -> tuple[object, bool]:
    if not isinstance(methods, list):
        return [], True
    kept: list[object] = []
    changed = False
    for offered in methods:
        method = _spelled(offered, ("type", "_meta")) if isinstance(offered, dict) else {"type": "terminal"}
        if method.get("type", "agent") not in ("agent", "env_var"):
            changed = True
            continue
        if isinstance(meta := method.get("_meta"), dict):
            own = _spelled(meta, ("type",))
            own = {name: item for name, item in own.items() if name.strip().casefold() != rpc.TERMINAL_LOGIN}
            if own.get("type") == "terminal":
                own = {name: item for name, item in own.items() if name.strip().casefold() not in _COMMAND}
            method = {**method, "_meta": own}
        changed = changed or method != offered
        kept.append(method)
    return kept, changed


def checked(model: "type[Model]", number: rpc.Id, method: str, params: dict[str, Any]) -> "Model | bytes":
    """Parameters of a request, or the error that answers it."""
    from pydantic import ValidationError

    session = params.get("sessionId")
    if isinstance(session, str) and len(session) > rpc.MOST_NAME:
        return rpc.error(number, rpc.INVALID_PARAMS, f"{method}: a session of more than {rpc.MOST_NAME} characters")
    if any(isinstance(value, list) and len(value) > MOST_ITEMS for value in params.values()):
        return rpc.error(number, rpc.INVALID_PARAMS, f"{method}: a list of more than {MOST_ITEMS} items")
    try:
        return model.model_validate(params)
    except ValidationError as refused:
        found = refused.errors(include_url=False, include_context=False, include_input=False)
        why = [{"field": ".".join(map(str, each["loc"])), "why": each["msg"]} for each in found]
        return rpc.error(number, rpc.INVALID_PARAMS, f"{method}: parameters are not valid", why)
