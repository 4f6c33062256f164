"""One ticket on a node: its agent in a copy of a worktree there, and its work as frames on their way home.

A frame is a letter, of those below, and what it carries. Nothing is harvested here: what the agent has committed, and
what it has not, is packed by git in its jail, and taken in by git in the jail of the ticket's worktree at home, which
is then harvested like that of every other session.
"""

import contextlib
import json
import os
import platform
import queue
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from launcher.engines import row
from launcher.engines.row import Job
from launcher.sandbox.box import Done, Sandbox
from launcher.session import private_git
from launcher.vcs import jailed_git
from policy.errors import Refusal

BEGUN = b"S"
"""The agent is about to start; JSON: `node`, `backend`."""
OUTPUT = b"O"
"""What it wrote."""
DENIALS = b"D"
"""What it was refused; JSON: lines of a ledger."""
PART = b"P"
"""Work in the worktree, or in a submodule, follows; JSON: a `Part`."""
PACK = b"B"
"""The next piece of the part's pack."""
NOTE = b"N"
"""What the node's launcher has to tell people at the end."""
ENDED = b"X"
"""JSON: `status`; nothing comes after it."""
REFUSED = b"E"
"""JSON: a Refusal as a dictionary; nothing comes after it."""

MOST_FRAME = 1 << 20
MOST_PACK = 2 << 30
"""Bytes of all packs of a ticket together."""
MOST_REFS = 1_000
MOST_PARTS = 200
MOST_STASHES = 100
_MOST_TOLD = 200
_MOST_NOTE = 16 << 10

TERM_SECONDS = 10.0
"""Between SIGTERM and the end of an agent that is to stop."""

_LOOK = 0.5
_PATIENCE = 1800.0
"""Seconds for each of git's steps over what the agent has made."""
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/(?:heads|tags)/[^\x00-\x20\x7f~^:?*\[\\]{1,200}")

_GIT = "git -c core.fsmonitor= -c core.hooksPath=/dev/null -c gc.auto=0"
_START = 'echo $$ >"${TMPDIR:-/tmp}/.agent" && exec "$@"'
_TERM = 'kill -TERM "$(cat "${TMPDIR:-/tmp}/.agent")"'
_AS_AT_HOME = f"""
if test -n "$1"; then {_GIT} branch -q -m "$1"; fi
if test -n "$2"; then git config user.name "$2"; fi
if test -n "$3"; then git config user.email "$3"; fi
"""
_PATHS = f"""
{_GIT} submodule foreach --quiet --recursive 'printf "%s\\n" "$displaypath"' 2>/dev/null || :
"""
_ONE_REF = "%(if)%(symref)%(then)%(else)%(objectname) %(refname)%(end)"
_REFS = f"{_GIT} for-each-ref --format='{_ONE_REF}' refs/heads refs/tags"
_BEFORE = f"""
{_GIT} rev-parse -q --verify 'HEAD^{{commit}}' || echo none
{_REFS}
"""
_STATE = f"""
{_GIT} rev-parse -q --verify 'HEAD^{{commit}}' || echo none
{_GIT} symbolic-ref -q HEAD || echo none
index=$(mktemp) && cat -- "$(git rev-parse --git-path index)" >"$index" 2>/dev/null || : >"$index"
test -s "$index" || rm -f -- "$index"
GIT_INDEX_FILE=$index; export GIT_INDEX_FILE
tree=$({_GIT} add -A >&2 && {_GIT} write-tree) || {{ status=$?; tree=none; }}
rm -f -- "$index"
unset GIT_INDEX_FILE
if test "$tree" = "$({_GIT} rev-parse -q --verify 'HEAD^{{tree}}')"; then echo none; else echo "$tree"; fi
{_REFS}
exit "${{status:-0}}"
"""
_STASHES = f"{_GIT} log -g --format=%H refs/stash -- 2>/dev/null || :"
_THERE = f"{_GIT} cat-file --batch-check='%(objectname)'"
_COUNT = f"{_GIT} rev-list --objects --stdin --quiet"
_PACK = f"{_GIT} pack-objects --revs --thin --stdout --delta-base-offset -q"


class Part(NamedTuple):
    """Work in the worktree or in one submodule.

    Attributes:
        path: of its root, relative to the worktree's; "." for the worktree.
        head: object id of the commit that is checked out; "" for none.
        branch: that is checked out, as ``refs/heads/NAME``; "" for a detached HEAD.
        tree: of files that differ from `head`, ignored ones left out; "" if none do.
        refs: object ids of branches and tags that were made or moved, by name.
        stashes: object ids, the newest first.
    """

    path: str
    head: str
    branch: str
    tree: str
    refs: dict[str, str]
    stashes: list[str]


def part_of(data: bytes) -> Part:
    """A part as a node has told it (ValueError): what an agent's git has said, so each word is checked."""
    told = json.loads(data)
    if (
        not isinstance(told, dict)
        or told.keys() != set(Part._fields)
        or not isinstance(told["refs"], dict)
        or not isinstance(told["stashes"], list)
    ):
        raise ValueError("other fields than a part of a ticket's work has")
    texts = {name: told[name] for name in ("path", "head", "branch", "tree")}
    if (
        not all(isinstance(text, str) for text in texts.values())
        or max(len(told["refs"]) - MOST_REFS, len(told["stashes"]) - MOST_STASHES) > 0
    ):
        raise ValueError("a part of a ticket's work has other fields than it should")
    path = texts["path"]
    if not is_path(path):
        raise ValueError(f"{path!r} resolves outside of the worktree")
    oids = [texts["head"], texts["tree"], *told["refs"].values(), *told["stashes"]]
    names = [texts["branch"], *told["refs"]]
    if not all(isinstance(oid, str) and (not oid or _OID.fullmatch(oid)) for oid in oids):
        raise ValueError(f"{path}: an object id is not one")
    if not all(not name or is_ref(name) for name in names):
        raise ValueError(f"{path}: the name of a ref is not one")
    return Part(texts["path"], texts["head"], texts["branch"], texts["tree"], told["refs"], told["stashes"])


def is_path(path: str) -> bool:
    """Whether a path leads to the root of a worktree (".") or below it, and is a line of text."""
    steps = path.split("/")
    return path == "." or (0 < len(path) < 4_000 and path.isprintable() and not {"", ".", "..", ".git"} & set(steps))


def is_ref(name: str) -> bool:
    """Whether it is the full name of a branch or a tag that git could have made, and a line of text."""
    bad = ("..", "@{", "//", "/.", ".lock/")
    return bool(_REF.fullmatch(name)) and name.isprintable() and not any(each in name for each in bad) and (
        not name.endswith((".lock", "/", "."))
    )  # fmt: skip


def performed(job: Job, names: list[str], asked: Callable[[], bool]) -> Iterator[bytes]:
    """Performs a ticket on this machine; frames as they come, the last one `ENDED` or `REFUSED`.

    Args:
        job: as for `row.perform`; its repository is here.
        names: of the ticket's branch at home, and git's user.name and user.email there: the agent sees the same ones.
        asked: whether the agent has been asked to stop; called in a thread of its own, and may wait a while.
    """
    try:
        with jailed_git.many():
            yield from _performed(job, names, asked)
    except Refusal as refusal:
        if refusal.reference == "sandbox-ended":
            refusal.message += ", and what the agent had made with it"
            refusal.hint = "paddock tickets resume RUN starts the ticket again; paddock logs SESSION has its output"
        yield REFUSED + json.dumps(refusal.as_dict()).encode()


def _performed(job: Job, names: list[str], asked: Callable[[], bool]) -> Iterator[bytes]:
    with row.sandbox(job) as box:
        yield BEGUN + json.dumps({"node": platform.node(), "backend": box.backend}).encode()
        before = {}
        for path in (".", *_paths(box)):
            box.exec(["sh", "-c", _AS_AT_HOME, "sh", *names], cwd=path)
            before[path] = _lines(box, _BEFORE, path)
        status = yield from _agent(box, job, asked)
        yield from _work(box, before)
    dropped = f"paddock: {private_git.DROPPED.format('--cow')}"  # they are on their way home
    if said := [line for line in box.messages.splitlines() if line != dropped]:
        yield NOTE + "\n".join(said).encode("utf-8", "replace")[-_MOST_NOTE:]
    yield ENDED + json.dumps({"status": status}).encode()


class _Followed:
    """A command in the sandbox that runs in a thread of its own, and what it writes."""

    def __init__(self, box: Sandbox, words: list[str], **options: Any) -> None:  # noqa: ANN401  # of `Sandbox.exec`
        self._pieces: queue.Queue[bytes] = queue.Queue(64)
        self._cancel, self._cancelled = os.pipe()
        self._result: Done | Refusal | None = None
        self.over = threading.Event()

        def run() -> None:
            try:
                self._result = box.exec(words, cancel=self._cancel, output=self._pieces.put, **options)
            except Refusal as refusal:
                self._result = refusal
            finally:
                self.over.set()
                self._pieces.put(b"")

        self._thread = threading.Thread(target=run, name="command")
        self._thread.start()

    def pieces(self) -> Iterator[bytes]:
        """What it writes, put together as far as it comes fast; an empty piece now and then."""
        ending = False
        while not ending:
            pieces: list[bytes] = []
            with contextlib.suppress(queue.Empty):
                pieces.append(self._pieces.get(timeout=_LOOK))
                while sum(map(len, pieces)) < MOST_FRAME // 2:
                    pieces.append(self._pieces.get_nowait())
            ending = b"" in pieces
            yield b"".join(pieces)

    def end(self) -> None:
        """Ends it with all that it has started, if it runs."""
        os.write(self._cancelled, b"x")

    def result(self) -> Done:
        """What came of it, once it is over; see `Sandbox.exec`."""
        self._close()
        if isinstance(self._result, Refusal):
            raise self._result
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Ends it, and waits for that."""
        self.end()
        while not self.over.is_set() or not self._pieces.empty():
            with contextlib.suppress(queue.Empty):
                self._pieces.get(timeout=_LOOK)
        self._close()

    def _close(self) -> None:
        self._thread.join()
        os.close(self._cancel)
        os.close(self._cancelled)


def _agent(box: Sandbox, job: Job, asked: Callable[[], bool]) -> Generator[bytes, None, int]:
    """Runs the agent, with what it writes and is refused as frames; returns its exit status."""
    asking = job.row
    words = ["sh", "-c", asking.command] if isinstance(asking.command, str) else list(asking.command)
    agent = _Followed(
        box, ["sh", "-c", _START, "sh", *words], timeout=asking.timeout, env=asking.env, input=asking.input, merge=True
    )

    def stop() -> None:
        while not agent.over.is_set():
            if asked():
                with contextlib.suppress(Refusal):
                    box.exec(["sh", "-c", _TERM])
                if not agent.over.wait(TERM_SECONDS):
                    agent.end()
                return

    threading.Thread(target=stop, name="stop", daemon=True).start()
    told, looked = 0, time.monotonic()
    try:
        for piece in agent.pieces():
            if piece:
                yield OUTPUT + piece
            if agent.over.is_set() or time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                new = box.denials()[told:_MOST_TOLD]
                told += len(new)
                if new:
                    yield DENIALS + json.dumps(new).encode()
    except BaseException:
        agent.close()
        raise
    return agent.result().status


def _work(box: Sandbox, before: dict[str, list[str]]) -> Iterator[bytes]:
    """What the agent has made: of the worktree, then of each submodule, however deep.

    One odd thing among it keeps nothing else from coming: it is left out, and that is said.
    """
    room = MOST_PACK
    for path in (".", *_paths(box)):
        start, *known = before.get(path, ["none"])
        said = box.exec(["sh", "-c", _STATE], cwd=path, timeout=_PATIENCE)
        lines = said.stdout.decode("utf-8", "replace").splitlines()
        if len(lines) < 3:
            raise _unreadable(path, said.stderr)
        if said.status:
            yield _left_out(path, "files that were not committed", said.stderr)
        head, branch, tree, *refs = ("" if line == "none" else line for line in lines)
        moved = [line.split(" ", 1) for line in refs[:MOST_REFS] if line not in known and " " in line]
        stashes = _lines(box, _STASHES, path)[:MOST_STASHES]
        there = _existing(box, path, [*(oid for oid, _ in moved), *stashes])
        whole = Part(
            path, head, branch if is_ref(branch) else "", tree,
            {name: oid for oid, name in moved if oid in there and is_ref(name)},
            [oid for oid in stashes if oid in there],
        )  # fmt: skip
        for part in (whole, Part(path, head, whole.branch, tree, {}, []), Part(path, head, whole.branch, "", {}, [])):
            wanted = {part.head, part.tree, *part.refs.values(), *part.stashes} - {""}
            revisions = "".join(f"{oid}\n" for oid in sorted(wanted))
            # What home has for certain: other refs here may be those of other tickets.
            revisions += f"^{start}\n" if start != "none" else ""
            count = box.exec(["sh", "-c", _COUNT], cwd=path, input=revisions, timeout=_PATIENCE)
            if not count.status:
                break
            yield _left_out(path, "some of its refs, stashes and files", count.stderr)
        part_of(data := json.dumps(part._asdict()).encode())
        yield PART + data
        packing = _Followed(box, ["sh", "-c", _PACK], cwd=path, input=revisions, timeout=_PATIENCE)
        try:
            for piece in packing.pieces():
                room -= len(piece)
                if room < 0:
                    raise Refusal("ticket-too-large", "the ticket's work is too large to be brought home",
                                  context=f"the limit is {MOST_PACK >> 30} GiB")  # fmt: skip
                if piece:
                    yield PACK + piece
        except BaseException:
            packing.close()
            raise
        done = packing.result()
        if done.status:
            raise _unreadable(path, done.stderr)


def _existing(box: Sandbox, path: str, oids: list[str]) -> set[str]:
    """Those object ids whose objects are there."""
    asked = "".join(f"{oid}\n" for oid in oids if _OID.fullmatch(oid))
    done = box.exec(["sh", "-c", _THERE], cwd=path, input=asked, timeout=_PATIENCE)
    return set(done.stdout.decode("utf-8", "replace").splitlines())


def _left_out(path: str, what: str, said: bytes) -> bytes:
    where = "the worktree" if path == "." else path
    lines = [f"not brought home of {where}: {what}", *said.decode("utf-8", "replace").splitlines()[-3:]]
    return NOTE + "\n".join(lines).encode("utf-8", "replace")[:_MOST_NOTE]


def _paths(box: Sandbox) -> list[str]:
    return [path for path in _lines(box, _PATHS, ".") if path != "." and is_path(path)][:MOST_PARTS]


def _lines(box: Sandbox, script: str, path: str) -> list[str]:
    done = box.exec(["sh", "-c", script], cwd=path, timeout=_PATIENCE)
    if done.status:
        raise _unreadable(path, done.stderr)
    return done.stdout.decode("utf-8", "replace").splitlines()


def _unreadable(path: str, said: bytes) -> Refusal:
    return Refusal("ticket-unreadable", f"git cannot tell what the agent has made in {path}",
                   context=said.decode("utf-8", "replace").strip()[-2_000:])  # fmt: skip
