"""What an agent made beside its own branch, and under which names the user gets it: branches, tags, stashes.

A name that an agent chooses must never mean something else than what the user has under it, now or after his next
fetch or ticket (gitrevisions(7) has the order in which a name is looked up, gitcli(7) says when a path is one). Where
it would, the worktree's name comes before it.
"""

import os
from collections.abc import Collection, Mapping
from functools import cached_property

from launcher.vcs import git_config
from launcher.vcs.git import LIKE_A_COMMIT, Git
from launcher.vcs.harvest import agent_refs
from launcher.vcs.harvest.agent_refs import HEADS, TAGS, plausible
from launcher.vcs.private import record, ref_files
from launcher.vcs.private.contents import given_oids, given_place
from launcher.vcs.refs import AGENTS, Taken, unreadable
from policy.errors import unseen
from policy.pasted import quoted

MOST = 100
"""New branches and tags of one repository that a harvest takes over by itself."""

MADE, DISMISSED = "made-refs", "dismissed-refs"
"""What is noted beside the private git directory."""

_MOST_NAME, _MOST_PART = 400, 150
"""Bytes of a name and of what is between two slashes: lock files and reflogs need more than the name itself."""
_OF_GIT = frozenset(
    {"refs", "heads", "tags", "remotes", "bisect", "notes", "stash", "worktree", "worktrees", "main-worktree",
     "paddock", "@", "AUTO_MERGE", "BISECT_EXPECTED_REV", "NOTES_MERGE_PARTIAL", "NOTES_MERGE_REF", "MERGE_AUTOSTASH"}
)  # fmt: skip
"""What git reads as something else, a later ref of the user's perhaps (gitglossary(7), pseudoref; gitrevisions(7)),
beside names of capitals that end in HEAD."""
_USUAL_REMOTES = ("origin", "upstream")
"""What remotes are called that the user, or a tool of his, adds one day: git-clone(1), and for what a fork is of."""


def made(directory: str) -> dict[str, str]:
    """Refs that harvests of this worktree have made, with the commits that they left there."""
    return _read(directory, MADE)


def note_made(directory: str, refs: Mapping[str, str]) -> None:
    """Adds to what `made` tells (OSError)."""
    _add(directory, MADE, refs)


def dismissed(directory: str) -> dict[str, str]:
    """Branches that the user does not want, with the commits that they were at when he said so."""
    return _read(directory, DISMISSED)


def dismiss(directory: str, refs: Mapping[str, str]) -> None:
    """Adds to what `dismissed` tells (OSError)."""
    _add(directory, DISMISSED, refs)


def _read(directory: str, name: str) -> dict[str, str]:
    lines = os.fsdecode(record.noted(directory, name) or b"").split("\n")
    return {ref: oid for oid, _, ref in (line.partition(" ") for line in lines) if ref}


def _add(directory: str, name: str, refs: Mapping[str, str]) -> None:
    lines = (f"{oid} {ref}\n" for ref, oid in (_read(directory, name) | dict(refs)).items())
    record.note(directory, name, os.fsencode("".join(lines)))


class Names:
    """The names of a trusted repository, and those that are free in it."""

    def __init__(self, git: Git) -> None:
        """Asks git for nothing until something is asked: most harvests bring one branch, which is known."""
        self._git = git
        self.paths: set[str] = set()
        """Names that are no longer free, as they are paths."""

    @cached_property
    def refs(self) -> dict[str, str]:
        """Full name of each ref -> what it holds."""
        return self._git.refs()

    @cached_property
    def _remotes(self) -> set[str]:
        return git_config.remotes(self._git.common_dir) | {
            ref.split("/")[2] for ref in self.refs if ref.startswith("refs/remotes/")
        }

    @cached_property
    def _guessed(self) -> set[str]:
        """Names by which the user gets a remote's branch that he has no branch of yet (git-switch(1), --guess)."""
        begun = tuple(f"refs/remotes/{remote}/" for remote in self._remotes)
        return {ref.removeprefix(each) for ref in self.refs for each in begun if ref.startswith(each)}

    def _as_a_remotes(self, name: str) -> bool:
        """Whether a name would stand for a branch that the user has, as soon as he gives a remote what is before it."""
        parts = name.split("/")
        ends = {"/".join(parts[at:]) for at in range(1, len(parts))}
        return not ends.isdisjoint(self._guessed) or any(HEADS + end in self.refs for end in ends)

    @cached_property
    def _folded(self) -> set[str]:
        kept = (ref.split("/", 2)[2] for ref in self.refs if ref.startswith((HEADS, TAGS, "refs/remotes/")))
        return set(map(_folded, (*kept, *self._guessed)))

    @cached_property
    def _taken(self) -> Taken:
        """Made once: an agent may have hundreds of thousands of names to compare with."""
        return Taken((*self.refs, *(kind + short for short in self._guessed for kind in (HEADS, TAGS))))

    def place(self, ref: str, prefix: str) -> str:
        """The name that a new branch or tag gets, which is taken from then on; "" where it can get none.

        Args:
            ref: its full name inside.
            prefix: the worktree's name, for what cannot have its own.
        """
        for place in (ref, prefixed(ref, prefix)):
            kind, name = parted(place)
            if self._free(kind, name) and not (place == ref and (self._as_a_remotes(name) or self._looks_known(name))):
                self._taken.add(place)
                return place
        return ""

    def _looks_known(self, name: str) -> bool:
        """Whether a name is read as another that the user has, or may be: with letters that look like Latin ones."""
        return _folded(name) in self._folded or _mixes_scripts(name)

    def _free(self, kind: str, name: str) -> bool:
        if not plausible(HEADS + name) or unseen(name) or not _fits(name) or name in self.paths:
            return False
        parts = name.split("/")
        first = parts[0]
        if (
            first in (AGENTS, *_USUAL_REMOTES)
            or any("/".join(parts[:length]) in self._remotes for length in range(1, len(parts) + 1))
            or not _OF_GIT.isdisjoint((first, first.lower()))
            or (first.isupper() and first.endswith("HEAD"))
        ):
            return False
        if LIKE_A_COMMIT.fullmatch(name):
            return False
        meant = (f"refs/{name}", f"refs/tags/{name}", f"refs/heads/{name}", f"refs/remotes/{name}")
        named = (*meant, f"refs/remotes/{name}/HEAD")
        return self._taken.names.isdisjoint(named) and not self._taken.bars(kind + name)


def _folded(name: str) -> str:
    """The form that names have in common which differ in case, or in how Unicode has the same letters."""
    if name.isascii():
        return name.lower()
    import unicodedata  # most harvests bring no such name

    return unicodedata.normalize("NFKC", name).casefold()


def _mixes_scripts(name: str) -> bool:
    """Whether there are Cyrillic or Greek letters among Latin ones; a name that is all in one script says so."""
    if name.isascii():
        return False
    import unicodedata

    letters = filter(str.isalpha, unicodedata.normalize("NFKC", name))
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in letters}
    return "LATIN" in scripts and not scripts.isdisjoint(("CYRILLIC", "GREEK"))


def _fits(name: str) -> bool:
    size = os.fsencode(name)
    return len(size) <= _MOST_NAME and all(len(part) <= _MOST_PART for part in size.split(b"/"))


def prefix_of(worktree: str) -> str:
    """What comes before names that are not free: the name of the worktree's directory, as a branch may have it."""
    name = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "-" for char in
                   os.path.basename(worktree))  # fmt: skip
    return name.strip("-")[:60] or "worktree"


def parted(ref: str) -> tuple[str, str]:
    """What makes a full name a branch's or a tag's, and the name itself."""
    kind = TAGS if ref.startswith(TAGS) else HEADS
    return kind, ref.removeprefix(kind)


def prefixed(ref: str, prefix: str) -> str:
    """The full name that a branch or tag gets which cannot have its own."""
    kind, name = parted(ref)
    return f"{kind}{prefix}/{name}"


def tracked(git: Git, tree: str, names: Collection[str], environment: Mapping[str, str]) -> set[str]:
    """Those of `names` that are paths in the index or in `tree`, as seen from any directory there."""
    listed = git.run("ls-files", "-z", f"--with-tree={tree}", environment=environment).out
    paths = b"/" + listed.replace(b"\0", b"//")
    return {name for name in names if os.fsencode(f"/{name}/") in paths}


def plausible_new(ref: str) -> bool:
    """Whether the name of a branch or tag may be one, of both by the rules of branches."""
    return plausible(HEADS + ref.removeprefix(TAGS) if ref.startswith(TAGS) else ref)


# What an agent has stashed: every entry of `git stash list` crosses with a harvest, each into a ref of its own.
#
# A stash is a commit that no branch has, and all but the last are in a reflog alone (git-stash(1)), which no repository
# gives to another. `git stash apply REF` takes such a commit by any name.

TAKEN = "stashed"
"""File beside the record: which entries have been taken over. The refs are the user's, who may have removed them."""

_MOST_TAKEN = 10_000


def stash_place(worktree_id: str) -> str:
    """What the names of refs with a worktree's stashes begin with; a number follows, the newest has the largest."""
    return f"refs/paddock/stash/{worktree_id}"


def stash_command(ref: str, path: str = "") -> str:
    """The command that applies such a stash.

    Args:
        path: root of the checkout; empty for the one that the user is in.
    """
    git = f"git -C {quoted(path)}" if path else "git"
    return f"{git} stash apply {ref}"


def waiting_stashes(directory: str, repository: record.Repository) -> tuple[str, ...]:
    """Entries that no harvest has taken over yet, the oldest first.

    Refusals: harvest-git-replaced, harvest-ref-unreadable, harvest-refs-too-large.
    """
    with agent_refs.opened(directory, repository) as refs:
        entries = refs.stash()
    if not entries:
        return ()
    known = given_oids(given_place(directory, repository.private))
    if not unreadable(repository.common_dir, _stashes(directory)):  # else nobody knows which are there
        known |= {*taken_stashes(directory)}
    known |= set(Git(repository.common_dir).text("for-each-ref", "--format=%(objectname)", _stashes(directory)).split())
    return tuple(oid for oid in entries if oid not in known)


def stash_refs(git: Git, directory: str, oids: tuple[str, ...]) -> dict[str, str]:
    """The refs that entries get: full name -> entry.

    Args:
        oids: the oldest first.
    """
    if not oids:
        return {}
    first = next_number(git, _stashes(directory))
    return {f"{_stashes(directory)}{number}": oid for number, oid in enumerate(oids, first)}


def next_number(git: Git, prefix: str) -> int:
    """The number behind the largest that a ref directly below `prefix`, which ends in a slash, has for a name."""
    names = (name.rpartition("/")[2] for name in (*git.refs(prefix), *ref_files.there(git.common_dir, [prefix])))
    numbers = [int(name) for name in names if name.isdigit()]
    return max(numbers, default=0) + 1


def taken_stashes(directory: str) -> list[str]:
    """Entries that harvests have taken over."""
    return (record.noted(directory, TAKEN) or b"").decode("ascii").split()


def note_stashes(directory: str, oids: tuple[str, ...]) -> None:
    """Notes that entries have been taken over (OSError)."""
    newest = list(dict.fromkeys((*taken_stashes(directory), *oids)))[-_MOST_TAKEN:]
    record.note(directory, TAKEN, "".join(f"{oid}\n" for oid in newest).encode("ascii"))


def _stashes(directory: str) -> str:
    return f"{stash_place(os.path.basename(os.path.realpath(directory)))}/"
