"""How many paths the trees of new commits describe, counted from the trees themselves before any git walks the paths.

A tree may hold another one any number of times, and that one others: some dozen objects describe more paths than any
memory holds, and trees in each other by the ten thousand are deeper than git's stack. Here each tree is read once.

What counts for a tree is git's to say, not the writer's: git looks at a few bits of a mode, and `index-pack --strict`
lets the others pass. So modes that git itself never writes are refused here.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from launcher.vcs.git import Git
from launcher.vcs.harvest.crossing import PATIENCE, too_large
from launcher.vcs.harvest.jail import KEPT, Jailed, Reading
from launcher.vcs.harvest.parts import Limits, Part
from policy.errors import Refusal

MOST_DEPTH = 2048
"""Directories in each other: what git itself takes, since it has a limit (core.maxTreeDepth, git-config(1))."""

_BLOCK = 1 << 16
_MOST_NAME, _BESIDE = 4096, 100
"""Bytes of a name, and of what an entry has besides. Longer ones are errors for `git fsck`, too (largePathname)."""


@dataclass
class _Open:
    """A tree whose inner ones are being counted.

    Attributes:
        paths: entries of it, and of the inner ones that are known.
        depth: of the deepest of those.
        inner: object ids of the others, and how often each is there.
    """

    oid: bytes
    paths: int
    depth: int
    inner: list[tuple[bytes, int]]


def check(part: Part, git: Git, reading: Reading, trees: Iterable[str], limits: Limits) -> None:
    """Refuses (harvest-too-large) trees with more paths than `limits.objects`, or deeper than `MOST_DEPTH`.

    What they hold of the main repository counts, too: one of its trees may stand there a thousand times.

    Args:
        git: on the main repository.
        reading: of the quarantine.
        trees: those in it.

    Refusals: harvest-too-large, harvest-unreadable; harvest-malformed: a new tree has a mode that git never writes.
    """
    source, asking = os.pipe()
    with os.fdopen(asking, "wb", buffering=0) as asked:
        with os.fdopen(source, "rb") as given:
            jailed = Jailed(("cat-file", "--batch"), reading, stdin=given, patience=PATIENCE)
        with jailed:
            assert jailed.process.stdout is not None
            with os.fdopen(jailed.process.stdout.fileno(), "rb", closefd=False) as answers:
                counted = _Counted(part, jailed, asked, answers, limits)
                for oid in trees:
                    counted.count(bytes.fromhex(oid))
            asked.close()
            jailed.check(f"counting the paths of {part.label}")
    # Other tools have written such trees in histories of old, and an agent may take one from there.
    for one in git.objects(counted.odd):
        if one.kind == "missing":
            why = f"the tree {one.oid} has an entry with the mode {counted.odd[one.oid]}, which git never writes"
            raise Refusal("harvest-malformed", f"the commits of {part.label} are not harvested", context=why, hint=KEPT)


class _Counted:
    """Counts trees.

    Attributes:
        odd: trees with a mode that git never writes, and one such mode of each.
    """

    def __init__(self, part: Part, jailed: Jailed, asked: IO[bytes], answers: IO[bytes], limits: Limits) -> None:
        self._part = part
        self._jailed = jailed
        self._asked = asked
        self._answers = answers
        self._limits = limits
        self._known: dict[bytes, tuple[int, int]] = {}
        self.odd: dict[str, str] = {}
        # A tree's entry is a mode, a name and an object id in bytes. Of those that are no tree only the number counts.
        name, oid = rb" [^\0]{1,%d}\0" % _MOST_NAME, rb".{%d}" % (part.digits // 2)
        others = rb"1(?:00644|00755|20000|60000)"
        self._entries = re.compile(
            rb"40000%s(%s)|%s%s%s|([0-7]{1,60})%s(%s)" % (name, oid, others, name, oid, name, oid), re.DOTALL
        )

    def count(self, top: bytes) -> None:
        """Counts a tree and all that it holds."""
        if top in self._known:
            return
        pending = [self._opened(top)]
        # What is on the way to a tree is all in the first one, so it has at least as many paths: memory has a bound.
        held, deep = pending[0].paths, 1
        while pending:
            if max(held, len(self._known)) > self._limits.objects:
                raise too_large(self._part, f"a commit has more than {self._limits.objects} paths", "--max-objects")
            if deep > MOST_DEPTH:
                raise too_large(self._part, f"directories are in each other more than {MOST_DEPTH} deep", "")
            here = pending[-1]
            if not here.inner:
                pending.pop()
                held -= here.paths
                self._known[here.oid] = here.paths, here.depth
                continue
            oid, times = here.inner[-1]
            known = self._known.get(oid)
            if known is None:
                pending.append(self._opened(oid))
                added, deep = pending[-1].paths, len(pending)
            else:
                here.inner.pop()
                added, deep = times * known[0], len(pending) + known[1]
                here.paths += added
                here.depth = max(here.depth, 1 + known[1])
            held += added

    def _opened(self, oid: bytes) -> _Open:
        self._asked.write(oid.hex().encode() + b"\n")
        words = self._answers.readline().split()
        if len(words) != 3:  # what is missing is told by the check of connectivity
            if words[1:] != [b"missing"]:
                self._broken()
            return _Open(oid, 0, 1, [])
        size = int(words[2])
        if size > self._limits.blob:
            why = f"object {oid.hex()} has {size} bytes; the limit is {self._limits.blob}"
            raise too_large(self._part, why, "--max-blob")
        paths, inner, rest = 0, Counter[bytes](), b""
        while size:
            block = self._answers.read(min(size, _BLOCK))
            size -= len(block)
            if not block:
                self._broken()
            if words[1] != b"tree":
                continue
            rest += block
            at = 0
            while entry := self._entries.match(rest, at):
                paths += 1
                at = entry.end()
                if entry.lastindex == 1:
                    inner[entry[1]] += 1
                elif entry.lastindex is not None:
                    self.odd[oid.hex()] = entry[2][:20].decode()
                    if stat.S_ISDIR(int(entry[2][-6:], 8)):  # by which git tells (`canon_mode` in its cache.h)
                        inner[entry[3]] += 1
            rest = rest[at:]
            if paths > self._limits.objects:
                break  # which the caller refuses
            if len(rest) > _MOST_NAME + _BESIDE:
                why = f"a tree has a name of more than {_MOST_NAME} bytes, or is damaged"
                raise too_large(self._part, why, "")
        self._answers.read(1)
        return _Open(oid, paths, 1, list(inner.items()))

    def _broken(self) -> None:
        what = f"counting the paths of {self._part.label}"
        self._jailed.check(what)
        raise Refusal("harvest-unreadable", f"{what} broke off", hint=KEPT)
