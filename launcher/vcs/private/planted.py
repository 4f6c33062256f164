"""Places of submodules that a session's jail does not close: a `.git` that its command makes there is put aside.

The places are noted in the session's directory before the command starts. A killed session puts nothing aside; its lock
is free then, and whoever finds the note does it. Nothing else distinguishes such a `.git` from one of the user's.

Launch path of sessions with such places: `os`, `fcntl`, `marshal`.
"""

import fcntl
import marshal

from launcher.lean import os
from launcher.safefs import walk
from launcher.vcs import checkout, written
from launcher.vcs.disk import Present
from launcher.vcs.private.pointer import Holder, named
from policy.errors import Refusal
from policy.pasted import cited, joined, quoted
from policy.plan import Place, beneath

# Repositories that a command has put where an index names a submodule that is not populated.
#
# `git status` around it looks into every submodule that has a `.git`, by a git of its own that obeys the
# configuration there: a file system monitor is a command line (git-config(1), core.fsmonitor). A repository that
# nobody names in an index is not entered, so such places are few, and known.


def of_place(root: str, place: str, git_dir: str, directory: str) -> str | None:
    """Puts aside the `.git` of one place, unless it is a pointer to the trusted git directory of that very submodule.

    Args:
        root: canonical root of the repository around it.
        git_dir: the trusted git directory of the repository around it.
        directory: Paddock's, for what is put aside.

    Returns:
        Where it is now; None when there was nothing to do.

    Refusals: submodule-planted.
    """
    if not _is_entered(root, place):
        return None
    try:
        with Holder(root, place) as holder:
            return None if _is_ours(holder, git_dir) else holder.put_aside(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None  # git looks through no link, and into no file
    except OSError as error:
        raise Refusal(
            "submodule-planted",
            f"{place}/.git, which the command made, cannot be moved aside",
            context=f"{error.strerror}; `git status` in the worktree would obey its configuration",
            hint="remove it before you run git there",
        ) from None


def refuse(root: str, place: str, git_dir: str) -> None:
    """Refuses a `.git` that a session could have made in a place where git is about to expect a submodule.

    Args:
        root, place, git_dir: as for `of_place`.

    Refusals: submodule-planted.
    """
    if not _is_entered(root, place):
        return
    entry, why = f"{place}/.git", ""
    try:
        with Holder(root, place) as holder:
            if _is_ours(holder, git_dir):
                return
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        why = f"{error.strerror}; "
    tree = written.agents_tree(entry)
    if not tree:
        return
    pointer = not os.path.isdir(entry) or os.path.islink(entry)
    accept = "" if pointer else f"; paddock trust {quoted(entry)} shows what git would obey there, and accepts it"
    raise Refusal(
        "submodule-planted",
        f"{entry} lies where the merge would put a submodule",
        context=f"{why}commands in jails could write {tree}, and `git status` would obey what is there",
        hint=f"if nothing in it is needed: {joined(('rm', '-rf', entry))}{accept}; then merge again",
    )


def _is_entered(root: str, place: str) -> bool:
    """Whether git would look at a place: not through a link that a command has put in the way of the repository."""
    return {"", ".", ".."}.isdisjoint(place[len(root) + 1 :].split("/")) and os.path.realpath(root) == root


def _is_ours(holder: Holder, git_dir: str) -> bool:
    """Whether there is no `.git`, or a pointer that `git submodule` writes: its git directory names this very place.

    Another one of the repository's may be that of another submodule, whose files `git submodule update` would change.
    """
    if holder.stat() is None:
        return True
    store = named(holder.read(), holder.path)
    if store is None:
        return False
    common = checkout.common_dir(git_dir, Present())
    ours = any(beneath(store, f"{os.path.realpath(one)}/modules") for one in (git_dir, common))
    return ours and checkout.place_of(store, Present()) == holder.path


def report_line(place: str, aside: str) -> str:
    """What the user should know of it."""
    what = f"{cited(f'{place}/.git')} was written by the command, where git outside expects a submodule and obeys it"
    return f"{what}; it was moved to {cited(aside)}" if aside else f"{what}; it was removed"


NOTE = "left-open"
"""Name of the note in a session's directory; `launcher.session.state` has it, too."""

_MOST_BYTES = 64 << 20


def write(directory: str, places: tuple[Place, ...], aside: str) -> None:
    """Notes the places, which have no `.git` yet, before the command starts (OSError). The session's lock is held."""
    # Nothing but a crash of the machine loses it, and `finish` says so then.
    walk.replace(f"{directory}/{NOTE}", marshal.dumps((aside, places), 2), lasting=False)


def sweep(state: str) -> list[str]:
    """Puts aside what dead sessions have left in their places. Returns what the user should know."""
    try:
        names = os.listdir(f"{state}/sessions")
    except OSError:
        return []
    lines: list[str] = []
    for name in names:
        directory = f"{state}/sessions/{name}"
        if os.path.lexists(f"{directory}/{NOTE}"):
            lines += _swept(directory)
    return lines


def _swept(directory: str) -> list[str]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []  # somebody else was quicker
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return finish(directory)
    except BlockingIOError:
        return []  # it lives, or somebody is at it
    finally:
        os.close(fd)


def finish(directory: str) -> list[str]:
    """Puts aside what a dead session's command has made, and drops the note. Returns what the user should know.

    What cannot be put aside stays noted, and is reported each time.

    Args:
        directory: of the session; the caller holds its lock.
    """
    path = f"{directory}/{NOTE}"
    try:
        known = _read(path)
    except (EOFError, TypeError, ValueError):  # the machine went down before it was on the disk
        os.unlink(path)
        return ["a session was killed, and may have left submodule directories open: look for a `.git` in each"]
    if known is None:
        return []
    aside, places = known
    lines: list[str] = []
    left: list[Place] = []
    for root, git_dir, place in places:
        try:
            where = of_place(root, place, git_dir, aside)
        except Refusal as refusal:
            lines.append(f"{refusal.message}: {refusal.context}; {refusal.hint}")
            left.append((root, git_dir, place))
        else:
            lines += [report_line(place, where)] if where is not None else ()
    if not left:
        os.unlink(path)
    elif len(left) < len(places):
        write(directory, tuple(left), aside)
    return lines


def _read(path: str) -> tuple[str, tuple[Place, ...]] | None:
    """A note; None when there is none. It appears whole, in a directory that no jail reaches."""
    try:
        content = walk.read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    if content is None:
        raise ValueError(path)
    aside, places = marshal.loads(content)
    return aside, places
