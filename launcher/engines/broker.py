"""Who talks to a cluster for one ticket run: hands its sessions' agents to nodes, and brings their work home.

A process of its own, started for a run by the service (`launcher.service.ticket_engine`), which it outlives as sessions
do. Each session of the run connects (`launcher.engines.relay`), and has a thread here. What a node tells is checked as
what it is, an agent's.
"""

import contextlib
import itertools
import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from typing import Any

from launcher import wire
from launcher.engines import relay, ticket
from launcher.engines.ray import Ray
from launcher.engines.row import OF_TICKETS, Job, Row
from launcher.jail import init
from launcher.ledger import ledgers
from launcher.service.packets import ENGINE_END as END
from launcher.vcs import checkout, worktree_words
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.private import copied_settings
from policy.errors import Refusal, printable

_LOOK = 0.3
_LOOK_AT_NODES = 2.0
_IDLE = 600.0
"""Seconds without a session after which it ends, if the service has not come back."""
_MOST_WANTED = 8 << 20
_MOST_DENIALS = 2_000
_MOST_LINE = 16 << 10
_TEXT = (str, type(None))
_OF_DENIALS: dict[str, tuple[type, ...]] = {
    "time": _TEXT, "layer": _TEXT, "operation": _TEXT, "path": _TEXT, "host": _TEXT, "port": (int, type(None)),
    "target": _TEXT, "rights": (list,), "process": (dict,), "count": (int,), "allow": (dict,), "risk": _TEXT,
}  # fmt: skip
"""What a line of a ledger has, as far as it is taken from a node."""


def main(place: str, run: str) -> int:
    """Serves the sessions of a run until it is told that the run is over, or nobody has come for `_IDLE`.

    Standard input is JSON: ``address`` (see `Ray`) and ``environment``, variables of Ray's as who asked for the run has
    them. Standard output is one line of it: ``refusal``, None once sessions may come.

    Args:
        place: of the socket, in a directory of the service's own.
        run: its name; nodes know its sessions by that.
    """
    asked = json.load(sys.stdin)
    os.environ.update(asked["environment"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    # Of this process alone: one before it may still be removing what it had on the nodes.
    prefix = f"{OF_TICKETS}{run[:30]}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
        listener.bind(place)
        listener.listen(256)  # from now on: a run may be over before the cluster has answered
        refusal: Refusal | None = None
        try:
            engine = Ray(asked["address"], None)
            left = engine.prepare([], prefix)
        except Exception as error:
            refusal = error if isinstance(error, Refusal) else init.failure("the cluster could not be joined", error)
        with answers:
            answers.write(json.dumps({"refusal": None if refusal is None else refusal.as_dict()}))
        if refusal is None:
            _accept(listener, engine, prefix)
        os.unlink(place)
    if refusal is not None:
        return 1
    for line in dict.fromkeys((*left, *engine.close(prefix))):
        sys.stderr.write(f"paddock: ticket run {run}: not removed: {printable(line)}\n")
    return 0


def _accept(listener: socket.socket, engine: Ray, prefix: str) -> None:
    over = threading.Event()
    listener.settimeout(_LOOK)
    numbers = itertools.count(1)
    last = time.monotonic()
    threads: list[threading.Thread] = []
    looked = last
    while threads or not (over.is_set() or time.monotonic() - last > _IDLE):
        if time.monotonic() - looked > _LOOK_AT_NODES:
            looked = time.monotonic()
            for note in engine.look():
                sys.stderr.write(f"paddock: {printable(note)}\n")
        threads = [each for each in threads if each.is_alive()]
        last = time.monotonic() if threads else last
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.setblocking(True)
        name = f"{prefix}-{next(numbers)}"
        threads.append(threading.Thread(target=_serve, args=(connection, engine, name, over), name=name, daemon=True))
        threads[-1].start()


def _serve(connection: socket.socket, engine: Ray, name: str, over: threading.Event) -> None:
    descriptors: list[int] = []
    with connection:
        try:
            deadline = time.monotonic() + 60
            kind, payload = wire.receive(connection.fileno(), descriptors, deadline=deadline, most=_MOST_WANTED)
            if kind == END:
                over.set()
            if kind != relay.WANTED or len(descriptors) != 2:
                return
            output, stream = descriptors
            with open(output, "wb", buffering=0) as log, socket.socket(fileno=stream) as there:
                descriptors.clear()
                answer = Home(json.loads(payload), log, there).follow(engine, name)
            with contextlib.suppress(OSError):
                wire.send(connection.fileno(), wire.frame(relay.OVER, json.dumps(answer).encode()))
        finally:
            for each in descriptors:
                os.close(each)


class Home:
    """A session here whose agent works elsewhere."""

    def __init__(self, asked: dict[str, Any], output: FileIO, stream: socket.socket) -> None:
        """Args: see `relay.launch`; the session's output; the other end of its input. Both stay the caller's."""
        self._asked = asked
        self._output = output
        self._stream = stream
        self._denials = 0
        self._room = ticket.MOST_PACK
        self._facts: dict[str, object] = {}

    def follow(self, engine: Ray, name: str) -> dict[str, Any]:
        """Has the agent's work done, and hands it in; returns what `relay.OVER` says."""
        refusal: Refusal | None = None
        status: int | None = None
        lost = ""
        try:
            job, names = self._job(name)
            for frame in self._frames(engine, job, names):
                if (status := self._take(frame[:1], frame[1:])) is not None:
                    self._send(f"end {status}\n")
                    break
            else:
                lost = "the node ended without an answer"
        except _Gone:
            pass
        except Refusal as error:
            refusal, lost = error, "" if error.reference != "node-lost" else error.message
        except (ValueError, KeyError, TypeError) as error:
            refusal = Refusal("ticket-unreadable", "a node has answered what no ticket's work is", context=str(error))
        except Exception as error:  # its session is to hear of it, and no other's to suffer
            refusal = init.failure("the ticket could not be handed to the cluster", error)
        if refusal is not None:
            self._say(str(refusal))
        return {"lost": lost, "status": status, "denials": self._denials,
                "refusal": refusal.as_dict() if refusal is not None and not lost else None}  # fmt: skip

    def _job(self, name: str) -> tuple[Job, list[str]]:
        asked = self._asked
        place = worktree_words.directory(asked["repository"], "/")
        trunk = checkout.find(place, Present(), exact=False).root  # one mirror for all of its tickets
        git = Git.open(asked["worktree"])
        commit = git.run("rev-parse", "--verify", "--end-of-options", "HEAD^{commit}").out.decode("ascii").strip()
        head = git.run("symbolic-ref", "-q", "HEAD", ok=(0, 1)).out.decode("utf-8", "replace").strip()
        told = {
            "id": asked["session"], "repository": trunk, "commit": commit, "command": tuple(asked["command"]),
            "policy": tuple(asked["options"]), "timeout": asked["timeout"], "env": asked["environment"],
            "cpus": asked["cpus"], "memory": asked["memory"], "resources": asked["resources"],
        }  # fmt: skip
        row = Row.model_validate(told)
        settings = copied_settings.effective(git.git_dir, asked["worktree"])
        user = [settings.last(key) or "" for key in ("user.name", "user.email")]
        job = Job(row=row, key=row.key(), number=1, attempt=1, session=name)
        return job, [head.removeprefix("refs/heads/"), *user]

    def _frames(self, engine: Ray, job: Job, names: list[str]) -> Iterator[bytes]:
        """The frames of the node; while there are none, what the session says is heard."""
        performing = engine.ticket(job, names)
        asked = False
        try:
            for frame in performing.frames(_LOOK):
                if frame:
                    yield frame
                if not select.select([self._stream], [], [], 0)[0]:
                    continue
                if not self._stream.recv(64):
                    raise _Gone
                if not asked:
                    asked = True
                    performing.stop()
        finally:
            performing.end()

    def _take(self, kind: bytes, content: bytes) -> int | None:
        """Takes one frame; the agent's exit status with the last one."""
        if kind == ticket.OUTPUT:
            self._write(content)
        elif kind == ticket.BEGUN:
            told = json.loads(content)
            self._facts = {"session": self._asked["session"], "worktree": self._asked["worktree"],
                           "command": " ".join(self._asked["command"]), "backend": str(told["backend"])[:100],
                           "net": "", "pid": os.getpid()}  # fmt: skip
            self._say(f"on node {str(told['node'])[:200]}")
        elif kind == ticket.DENIALS:
            for line in json.loads(content):
                self._deny(line)
        elif kind == ticket.PART:
            part = ticket.part_of(content)
            lines = [f"part {part.path}", f"head {part.head or 'none'}", f"branch {part.branch or 'none'}",
                     f"tree {part.tree or 'none'}"]  # fmt: skip
            lines += [f"ref {oid} {name}" for name, oid in part.refs.items()]
            lines += [f"stash {oid}" for oid in reversed(part.stashes)]  # the newest is stored last
            self._send("".join(f"{line}\n" for line in lines))
        elif kind == ticket.PACK:
            self._room -= len(content)
            if self._room < 0:
                raise ValueError(f"more than {ticket.MOST_PACK >> 30} GiB of packs")
            self._send(f"pack {len(content)}\n", content)
        elif kind == ticket.NOTE:
            self._say(content.decode("utf-8", "replace"))
        elif kind == ticket.REFUSED:
            told = json.loads(content)
            texts = [printable(str(told[name])[:4_000]) for name in ("errorType", "message", "context", "hint")]
            if not re.fullmatch(r"[a-z-]{1,60}", texts[0]):
                raise ValueError("a refusal without a name")
            raise Refusal(texts[0], texts[1], context=texts[2], hint=texts[3])
        elif kind == ticket.ENDED:
            status = json.loads(content)["status"]
            if not isinstance(status, int) or not 0 <= status <= 255:
                raise ValueError("its exit status is out of range")
            return status
        else:
            raise ValueError(f"a frame of the kind {kind!r}")
        return None

    def _deny(self, line: object) -> None:
        if not isinstance(line, dict) or self._denials >= _MOST_DENIALS:
            return
        kept = {"kind": "denial", **{name: line[name] for name in _OF_DENIALS if name in line}}
        if all(isinstance(kept[name], _OF_DENIALS[name]) for name in kept if name != "kind") and (
            len(json.dumps(kept)) <= _MOST_LINE
        ):
            self._denials += 1
            with contextlib.suppress(OSError):
                ledgers.note(self._asked["ledger"], self._facts, kept)

    def _say(self, text: str) -> None:
        for line in text.strip().splitlines():
            self._write(f"paddock: {printable(line.removeprefix('paddock: '))}\n".encode("utf-8", "replace"))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            wire.write(self._output.fileno(), data)

    def _send(self, text: str, data: bytes = b"") -> None:
        try:
            self._stream.sendall(text.encode() + data)
        except OSError:
            raise _Gone from None


class _Gone(Exception):
    """The session has ended."""
