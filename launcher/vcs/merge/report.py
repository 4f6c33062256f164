"""Reading what `git merge-tree --write-tree -z --messages` prints. Pure.

Format: git-merge-tree(1), OUTPUT. With ``--stdin`` each result has ``1`` (clean) or ``0`` in front and one more NUL
behind. After a submodule conflict git 2.39 prints advice for people right behind the messages, without any mark; so
records end at the first count that is no number, and the field that begins there is passed over. Names of files are the
agent's, so none of it is searched for: one record is read after the other.
"""

import os
import re
from typing import NamedTuple

from launcher.vcs.merge.descriptors import ConflictKind, ConflictStage, MergeConflict

_STAGE = re.compile(rb"([0-7]{6}) ([0-9a-f]{40,64}) ([123])\t(.+)", re.DOTALL)
_COUNT = re.compile(rb"[1-9][0-9]{0,8}")
_KINDS = {kind.value: kind for kind in ConflictKind}


class Stage(NamedTuple):
    """A line of the section "Conflicted file info", path as bytes."""

    mode: str
    object_id: str
    stage: int
    path: bytes


class Message(NamedTuple):
    """One message: the paths it is about, its stable type, and the text."""

    paths: tuple[bytes, ...]
    type: str
    text: str


class Merged(NamedTuple):
    """One merge as git tells it.

    Attributes:
        clean: nothing is left to decide.
        tree: id of the resulting tree, with conflict markers inside when not clean.
        stages: sides of the files in conflict.
        messages: all messages, informational ones too.
    """

    clean: bool
    tree: str
    stages: tuple[Stage, ...]
    messages: tuple[Message, ...]


def parse(output: bytes, *, clean: bool) -> Merged:
    """One merge's output.

    Args:
        output: standard output of ``merge-tree --write-tree -z --messages OURS THEIRS``.
        clean: its exit status was 0 (1: there are conflicts).

    Raises:
        ValueError: this is not that format.
    """
    return _result(output.split(b"\0"), 0, clean=clean)[0]


def parse_many(output: bytes) -> list[Merged]:
    """The output of ``merge-tree --write-tree -z --messages --stdin``, one result per line of its input."""
    fields = output.split(b"\0")
    found: list[Merged] = []
    at = 0
    while at < len(fields) - 1:
        if fields[at] not in (b"0", b"1"):
            raise ValueError(f"git merge-tree --stdin did not print a status first: {fields[at][:80]!r}")
        merged, at = _result(fields, at + 1, clean=fields[at] == b"1")
        at += 1  # nothing, or advice
        found.append(merged)
    if fields[-1]:
        raise ValueError(f"git merge-tree --stdin did not print whole results: {fields[-1][:80]!r}")
    return found


def _result(fields: list[bytes], at: int, *, clean: bool) -> tuple[Merged, int]:
    """The result that begins at a field, and the number of the field behind its messages."""
    tree = fields[at].decode("ascii", "replace")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", tree):
        raise ValueError(f"git merge-tree did not print a tree first: {fields[at][:80]!r}")
    at += 1
    stages: list[Stage] = []
    while not clean and at < len(fields) and fields[at]:
        found = _STAGE.fullmatch(fields[at])
        if found is None:
            raise ValueError(f"git merge-tree printed no stage: {fields[at][:80]!r}")
        mode, oid, stage, path = found.groups()
        stages.append(Stage(mode.decode(), oid.decode(), int(stage), path))
        at += 1
    messages, at = _messages(fields, at + 1)
    return Merged(clean, tree, tuple(stages), messages), at


def conflicts(merged: Merged, *, prefix: str = "", submodule: str | None = None) -> tuple[MergeConflict, ...]:
    """The conflicts of one merge, in git's order.

    Args:
        prefix: put before each path: where the repository lies in the main worktree, with a slash, or nothing.
        submodule: name of the submodule that was merged.
    """
    if merged.clean:
        return ()
    left = {stage.path for stage in merged.stages}
    told: dict[tuple[tuple[bytes, ...], ConflictKind], list[str]] = {}
    for message in merged.messages:
        kind = kind_of(message)
        if kind is not None:
            told.setdefault((message.paths, kind), []).append(message.text.rstrip("\n"))
    found = []
    for (paths, kind), texts in told.items():
        left.difference_update(paths)
        # After it has said that a file is binary, git says that its contents clash.
        if kind is ConflictKind.CONTENTS and (paths, ConflictKind.BINARY) in told:
            continue
        stages = [stage for stage in merged.stages if stage.path in paths]
        found.append(_conflict(paths, kind, stages, "\n".join(texts), prefix, submodule))
    for path in dict.fromkeys(stage.path for stage in merged.stages if stage.path in left):
        stages = [stage for stage in merged.stages if stage.path == path]
        found.append(_conflict((path,), ConflictKind.OTHER, stages, "", prefix, submodule))
    return tuple(found)


def kind_of(message: Message) -> ConflictKind | None:
    """The kind of conflict that a message tells of; None when it tells of none."""
    if not message.type.startswith("CONFLICT"):
        return None
    name = message.type.removeprefix("CONFLICT").strip().removeprefix("(").removesuffix(")")
    if name == "contents" and message.text.startswith("CONFLICT (add/add)"):
        return ConflictKind.ADD_ADD  # git files it under contents, and submodules too
    if name.startswith("submodule") or message.text.startswith("CONFLICT (submodule)"):
        return ConflictKind.SUBMODULE
    return _KINDS.get(name, ConflictKind.OTHER)


def _messages(fields: list[bytes], at: int) -> tuple[tuple[Message, ...], int]:
    """The messages from a field on, and the number of the field behind them."""
    found = []
    while at < len(fields) and _COUNT.fullmatch(fields[at]):
        count = int(fields[at])
        if at + count + 2 >= len(fields):
            break  # advice that happens to be a number
        paths = tuple(fields[at + 1 : at + 1 + count])
        kind, text = fields[at + 1 + count : at + 3 + count]
        found.append(Message(paths, kind.decode(errors="replace"), os.fsdecode(text)))
        at += count + 3
    return tuple(found), at


def _conflict(
    paths: tuple[bytes, ...], kind: ConflictKind, stages: list[Stage], text: str, prefix: str, submodule: str | None
) -> MergeConflict:
    names = [prefix + os.fsdecode(path) for path in paths]
    return MergeConflict(
        path=names[0],
        kind=kind,
        stages=tuple(
            ConflictStage.model_validate(
                {"stage": s.stage, "mode": s.mode, "object_id": s.object_id, "path": prefix + os.fsdecode(s.path)}
            )
            for s in stages
        ),
        message=text,
        other_paths=tuple(names[1:]),
        submodule=submodule,
    )
