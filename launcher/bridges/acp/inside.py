"""What the bridge answers in the client's place: terminals and files, in the jail of the session."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.bridges.acp import rpc
from launcher.bridges.acp.jail_files import JailFiles
from launcher.bridges.acp.relay import Poll
from launcher.bridges.acp.rules import Rules
from launcher.bridges.acp.terminals import Terminals
from launcher.bridges.acp.tool_calls import ToolCalls

if TYPE_CHECKING:
    from acp.schema import ReadTextFileRequest, WriteTextFileRequest


class Inside:
    """A `to_client.Jail`."""

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
        """See `to_client.Jail`."""
        return self._terminals(number, method, params)

    def file(self, number: rpc.Id, wanted: "ReadTextFileRequest | WriteTextFileRequest", path: str) -> bytes:
        """See `to_client.Jail`."""
        return self._files(number, wanted, path)

    def shown(self, message: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """See `to_client.Jail`."""
        return self._calls.rewritten(message)

    def _ended(self, terminal: str) -> None:
        self._calls.ended(terminal)
