"""Terminals of the jail in an agent's tool calls: their text stands in for what the client cannot show."""

from collections.abc import Callable
from typing import Any, NamedTuple

from launcher.bridges.acp import strict

_MOST = 256
"""Tool calls that are remembered until their terminal ends."""


class _Call(NamedTuple):
    session: str
    call: str
    content: list[Any]


class ToolCalls:
    """Puts text in the place of terminals, and brings it up to date."""

    def __init__(self, shown: Callable[[str], str | None], send: Callable[[bytes], None]) -> None:
        """Takes what knows the terminals.

        Args:
            shown: the text for a terminal; None for one of somebody else's.
            send: sends the client a line.
        """
        self._shown = shown
        self._send = send
        self._calls: dict[str, _Call] = {}

    def rewritten(self, message: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A message of the agent's with text for terminals, and whether it is another one."""
        params = message.get("params")
        if not isinstance(params, dict):
            return message, False
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
                self._remember(known, _Call(session, number, content))
            params = {**params, name: {**call, "content": items}}
            changed = True
        return ({**message, "params": params}, True) if changed else (message, False)

    def ended(self, terminal: str) -> None:
        """A terminal's command has ended: the client gets its whole text."""
        call = self._calls.pop(terminal, None)
        if call is None:
            return
        items, _ = self._text(call.content)
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call.call, "content": items}
        params = {"sessionId": call.session, "update": update}
        self._send(strict.encode({"jsonrpc": "2.0", "method": "session/update", "params": params}))

    def _text(self, content: list[Any]) -> tuple[list[Any], list[str]]:
        """Content blocks with text for terminals, and which terminals these were."""
        items: list[Any] = []
        known: list[str] = []
        for item in content:
            name = item.get("terminalId") if isinstance(item, dict) and item.get("type") == "terminal" else None
            text = self._shown(name) if isinstance(name, str) else None
            if text is None or not isinstance(name, str):
                items.append(item)
            else:
                known.append(name)
                items.append({"type": "content", "content": {"type": "text", "text": text}})
        return items, known

    def _remember(self, terminals: list[str], call: _Call) -> None:
        for name in terminals:
            self._calls[name] = call
        while len(self._calls) > _MOST:
            del self._calls[next(iter(self._calls))]
