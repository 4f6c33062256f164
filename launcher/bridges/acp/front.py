"""The bridge without any process: two byte streams, the rules between them, and what is answered in the jail.

`launcher.bridges.acp.bridge` starts the provider itself; whoever has got the descriptors in another way uses this.
"""

import socket
from collections.abc import Callable

from launcher.bridges.acp import rpc, way
from launcher.bridges.acp.inside import Inside
from launcher.bridges.acp.places import STRIP, Place, Rules
from launcher.bridges.acp.relay import Poll, Relay
from launcher.bridges.acp.rpc import Outcome
from launcher.bridges.acp.to_agent import ToAgent
from launcher.bridges.acp.to_client import ToClient
from launcher.bridges.acp.way import Kept, Way
from launcher.session import messages
from policy.errors import printable


class Front:
    """Carries and judges what a client and an agent say to each other.

    Attributes:
        relay: says who has ended.
    """

    def __init__(
        self,
        poll: Poll,
        client: tuple[int, int],
        agent: tuple[int, int],
        rules: Rules,
        connect: Callable[[], socket.socket],
        found: Callable[[str, Place], None],
        directory: str,
    ) -> None:
        """Begins to carry.

        Args:
            poll: of the loop that hands events over.
            client: descriptors to read what it says and to write to it: owned from now on, different numbers.
            agent: the same of the agent, not blocking.
            rules: what is judged, and how.
            connect: makes a connection to the session's control socket (`exec_client.connect`).
            found: told the id of each new session of the protocol, and where it works.
            directory: for the agent's lines that are too long for memory, out of its reach.
        """
        look = way.ToClient(terminals=rules.choices.terminals != STRIP)
        self._inside = Inside(poll, connect, rules, self._tell_agent, self._tell_client)
        up = ToClient(rules, look, self._inside, found)
        down = ToAgent(rules, up.awaits, up.opened)
        to_agent = Way(way.ToAgent(), _guarded(down), None)
        to_client = Way(look, _guarded(up), up.unreadable, keep=lambda: Kept(directory), last_words=up.last_words)
        self.relay = Relay(poll, client, agent, to_agent, to_client)

    def serve(self, fd: int, events: int) -> bool:
        """Handles what poll said of a descriptor; False when it is none of this object's."""
        if self.relay.owns(fd):
            self.relay.serve(fd, events)
        elif fd in self._inside.descriptors:
            self._inside.serve(fd)
        else:
            return False
        return True

    def close(self) -> None:
        """Closes all descriptors, and ends what runs for the bridge in the jail."""
        self._inside.close()
        self.relay.close()

    def _tell_agent(self, line: bytes) -> None:
        self.relay.reply_to_agent(line)

    def _tell_client(self, line: bytes) -> None:
        self.relay.reply_to_client(line)


def _guarded(judge: Callable[[bytes], Outcome]) -> Callable[[bytes], Outcome]:
    """`judge`, which refuses what it fails at: one line must not end what both sides have built up."""

    def judged(line: bytes) -> Outcome:
        try:
            return judge(line)
        except Exception as error:
            messages.say(f"paddock: a message could not be judged, so it is refused: {printable(repr(error)[:1000])}")
            return Outcome(back=rpc.error(None, rpc.INTERNAL_ERROR, "paddock could not judge this message"))

    return judged
