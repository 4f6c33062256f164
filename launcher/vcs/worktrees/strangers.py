"""What lies where a submodule belongs and none of ours is: git looks past it, so nothing else tells that it is work.

The index names a submodule there, and git takes what is in the directory for the submodule's own affair. A repository
in it may be an agent's: it is moved as it is, and no git of the host's is ever started on it.
"""

import os
from pathlib import Path

from launcher.vcs import checkout
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.quarantine.inside import Inside
from launcher.vcs.quarantine.pointer import NAME, Holder
from launcher.vcs.worktrees import files, naming
from launcher.vcs.worktrees.models import Part, Worktree
from policy.errors import Refusal
from policy.plan import beneath

DOCKED = "docked-"
"""How the names begin of what `Holder.put_aside` has moved beside a private git directory."""


def in_places_of_submodules(gitlinks: list[bytes], part: Part, worktree: Worktree) -> list[str]:
    """Places, relative to a part, that its index has for a submodule of which nothing is known, and that hold anything.

    Args:
        gitlinks: of the part's index, as ``git ls-files --stage`` prints them.
        part: of the worktree.
        worktree: `with_populated`.
    """
    known = {os.fspath(inner.path) for inner in worktree.submodules}
    found: list[str] = []
    for entry in gitlinks:
        place = os.fsdecode(entry.partition(b"\t")[2])
        if f"{part.path}/{place}" not in known and place not in found and _holds(os.fspath(part.path), place):
            found.append(place)
    return found


def _holds(root: str, place: str) -> bool:
    """Whether there is anything but an empty directory. What a link on the way leads to is not looked at."""
    above, _, name = place.rpartition("/")
    try:
        holder = Inside(root, above)
    except OSError:
        return False  # gone; or a link or a file is on the way, which git itself names
    with holder:
        if not holder.exists(name):
            return False
    try:
        with Inside(root, place) as directory:
            return bool(directory.names())
    except OSError:
        return True  # no directory, or none that could be looked into


def with_populated(worktree: Worktree) -> Worktree:
    """The worktree with submodules that the user has populated since it was made, as `git submodule update` does.

    Their git directories lie below the worktree's own, where no agent writes; so they are looked at like any other.
    """
    known = {os.fspath(part.path) for part in worktree.parts}
    found: list[Part] = []
    for outer in worktree.parts:
        prefix = f"{outer.name}/" if outer.name else ""
        for name, store in checkout.module_dirs(f"{outer.git_dir}/modules", prefix, Present()):
            place = checkout.configured_worktree(store, Present())
            if place is None or place in known or not beneath(place, worktree.path) or not os.path.isdir(place):
                continue
            head = Git(store).ref("HEAD", ok=(0, 1, 128))
            if not head:
                continue
            known.add(place)
            text = files.head(store)
            branch = text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else None
            found.append(
                Part(
                    name=name,
                    worktree_id=naming.worktree_id(place),
                    path=Path(place),
                    common_dir=Path(store),
                    git_dir=Path(store),
                    branch=branch,
                    branch_made=False,
                    base=head,
                )
            )
    return worktree.model_copy(update={"submodules": (*worktree.submodules, *found)}) if found else worktree


def put_aside(part: Part, places: list[str], directory: str) -> list[str]:
    """Moves what lies at `.git` in such places out of the worktree, as it is. Returns where each is now.

    Args:
        part: of the worktree.
        places: of `in_places_of_submodules`.
        directory: where to; made when it is needed.

    Refusals: worktree-obstructed: one cannot be moved there, so it would go with the files.
    """
    root = os.fspath(part.path)
    done: list[str] = []
    for place in places:
        entry = f"{root}/{place}/{NAME}"
        try:
            with Inside(root, place) as inside:
                closed = [name for name in inside.names() if name.startswith(f"{NAME}.{DOCKED}")]
            if closed:  # nobody may enter it, so no backup has it
                raise _stuck(f"{root}/{place}/{closed[0]}", "a session's end has put it there, from .git")
            with Holder(root, f"{root}/{place}") as holder:
                if (found := holder.stat()) is None:
                    continue
                os.makedirs(directory, 0o700, exist_ok=True)
                if found.st_dev != os.stat(directory).st_dev:  # it would only be renamed where it is, and go after all
                    raise _stuck(entry, f"it is on another file system than {directory}")
                aside = holder.put_aside(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no directory: the backup has it, as a file or a link
        except OSError as error:
            raise _stuck(entry, error.strerror or str(error)) from None
        if beneath(aside, root):
            raise _stuck(entry, f"it is on another file system than {directory}, and at {aside} now")
        done += [aside] if aside else []
    return done


def _stuck(entry: str, why: str) -> Refusal:
    return Refusal("worktree-obstructed", f"{entry} cannot be kept", context=why,
                   hint="move it to where you want to have it, then once more")  # fmt: skip


def docked(directory: str) -> tuple[str, ...]:
    """Git directories that lie beside a private one, where a session's end has put them: commits may be in them.

    Args:
        directory: of the private git directory and its record; it need not exist.
    """
    return tuple(
        f"{directory}/{name}"
        for name in Present().listing(directory) or ()
        if name.startswith(DOCKED) and _is_repository(f"{directory}/{name}")
    )


def _is_repository(path: str) -> bool:
    try:
        with Inside(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) as directory:
            return directory.exists("HEAD") and directory.is_directory("objects")
    except OSError:
        return False  # a pointer, or another file
