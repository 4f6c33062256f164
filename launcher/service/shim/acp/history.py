"""What has happened in one session of the protocol, so that an editor that comes back can be shown it again.

The protocol's own way to show it is `session/load`: the agent streams the conversation as `session/update`
notifications, then answers (https://agentclientprotocol.com/protocol/session-setup). An agent that is alive need not be
asked for what it has said: it was heard.
"""

from collections import deque
from typing import Any

MOST_BYTES = 8 << 20
"""Of one session's notifications; the oldest are forgotten first."""


class History:
    """One session.

    Attributes:
        opened: the result of the request that began it, with its modes and models as they are now; None before.
        missing: notifications that were forgotten.
        turns: requests of `session/prompt` that are being worked on.
    """

    def __init__(self, opened: dict[str, Any] | None = None, most: int = MOST_BYTES) -> None:
        """Empty."""
        self.opened = opened
        self.missing = 0
        self.turns = 0
        self._most = most
        self._lines: deque[bytes] = deque()
        self._bytes = 0

    def add(self, line: bytes) -> None:
        """Takes a notification, as a line."""
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > self._most and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft())
            self.missing += 1

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The notifications that are kept, in order."""
        return tuple(self._lines)

    def loaded(self) -> dict[str, Any]:
        """The result of a `session/load` that is answered from here."""
        result = {name: value for name, value in (self.opened or {}).items() if name != "sessionId"}
        meta = result.get("_meta")
        own = {"missing": self.missing, "running": self.turns > 0}
        return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), "paddock": own}}

    def changed(self, method: str, params: dict[str, Any], result: object) -> None:
        """A client's request has changed the session: `opened` follows, as agents need not announce it.

        Args:
            method: of the request that was answered well.
            params: its.
            result: its.
        """
        if self.opened is None:
            return
        for wanted, group, current, name in (
            ("session/set_mode", "modes", "currentModeId", "modeId"),
            ("session/set_model", "models", "currentModelId", "modelId"),
        ):
            known = self.opened.get(group)
            if method == wanted and isinstance(known, dict):
                self.opened = {**self.opened, group: {**known, current: params.get(name)}}
        if method == "session/set_config_option" and isinstance(result, dict) and "configOptions" in result:
            self.opened = {**self.opened, "configOptions": result["configOptions"]}
