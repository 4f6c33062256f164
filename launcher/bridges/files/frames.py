"""Messages between router and worker: a length and JSON, over pipes.

The worker works in a jail together with whatever the agent has left there, so the router takes its bytes for anybody's:
the length is bounded before a byte is read, and what comes is held against a model before it is believed.
"""

import os
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from launcher.bridges.files.answers import MOST_TEXT, Answer

MOST_REQUEST = 96 << 20
"""Bytes: two texts of 8 MiB whose characters JSON may each write as six."""

MOST_REPLY = 8 * MOST_TEXT
HEADER = 4


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
    data = message.model_dump_json().encode()
    return len(data).to_bytes(HEADER, "little") + data


def received(stream: BinaryIO) -> bytes | None:
    """The next message from the router; None at the end."""
    head = stream.read(HEADER)
    if len(head) < HEADER:
        return None
    size = int.from_bytes(head, "little")
    data = stream.read(size)
    return data if len(data) == size else None


def send(fd: int, data: bytes) -> None:
    """Writes all of `data`."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
