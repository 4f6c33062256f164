"""Messages between router and worker: JSON in frames (`launcher.wire`), over pipes.

The worker works in a jail together with whatever the agent has left there, so the router takes its bytes for anybody's:
the length is bounded before a byte is read, and what comes is held against a model before it is believed.
"""

import os
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from launcher import wire
from launcher.bridges.files.answers import MOST_TEXT, Answer

MOST_REQUEST = 96 << 20
"""Bytes: two texts of 8 MiB whose characters JSON may each write as six."""

MOST_REPLY = 8 * MOST_TEXT
_JSON = b"J"
_BLOCK = 1 << 16


class Hello(BaseModel):
    """The worker's first words."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ready: bool
    pid: int


class Request(BaseModel):
    """One call for the worker. `sweep`: only remove what an earlier worker left behind at this call's place."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    tool: str
    arguments: dict[str, object]
    sweep: bool = False


class Reply(BaseModel):
    """What the worker says to a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    number: int
    text: str = Field(max_length=MOST_REPLY)
    note: str = Field(max_length=2000)
    failed: bool

    @property
    def answer(self) -> Answer:
        """The answer that it holds."""
        return Answer(self.text, self.note, self.failed)


def packed(message: BaseModel) -> bytes:
    """The bytes of one message."""
    return wire.frame(_JSON, message.model_dump_json().encode())


def received(fd: int) -> Iterator[bytes]:
    """What the router sends, message by message, until it closes the pipe."""
    decoder = wire.Decoder(MOST_REQUEST)
    while data := os.read(fd, _BLOCK):
        for _, payload in decoder.feed(data):
            yield payload
