"""Finding the git worktree that holds a directory, by reading its pointers. No git process is run.

A worktree's `.git` file can be written by whoever may write the worktree, an agent of an earlier run included. So
a pointer is believed only when the directory it names points back, from a place outside the worktree.
Layout: gitrepository-layout(5).
"""

import os
from typing import NamedTuple

from launcher.vcs import git_config
from launcher.vcs.disk import Disk, Names
from launcher.vcs.private import pointer, record
from policy.errors import Refusal, in_rows
from policy.pasted import quoted
from policy.plan import beneath


class Submodule(NamedTuple):
    """A populated submodule: its name in `.gitmodules` (or its path), canonical path and git directory."""

    name: str
    path: str
    git_dir: str


class Checkout(NamedTuple):
    """A git worktree.

    Attributes:
        root: canonical root directory.
        kind: ``main`` (a checkout that holds its own `.git` directory), ``linked`` or ``submodule``; ``directory`` for
            one without git, which has no git directories.
        git_dir: its own git directory (HEAD, index).
        common_dir: the directory that holds objects, refs and config.
        submodules: populated submodules, nested ones too, outermost first.
    """

    root: str
    kind: str
    git_dir: str
    common_dir: str
    submodules: tuple[Submodule, ...]


MODULES = "paddock-modules"
"""File in a worktree's git directory: the submodule worktrees that Paddock made in it, as NUL-separated pairs of name
and git directory.
Each is a linked worktree of the module's own store; git keeps no list of which belong together."""

HINT = "cd into a git worktree; git init makes a repository of a directory"
WITH_OPTION = in_rows(
    "cd into a git worktree, or name one with --worktree DIR; git init makes a repository of a directory",
    "or --directory: the command is confined to this directory as it is, and nothing is harvested",
)
"""What may come next, without and with an option that names the worktree."""


def find(start: str, disk: Disk, *, exact: bool, hint: str = HINT) -> Checkout:
    """The checkout whose root is `start` (`exact`, for `--worktree`) or that holds `start`.

    Args:
        start: a directory; absolute.

    Refusals: worktree-missing, worktree-not-directory, not-a-worktree, bare-repository, git-pointer-invalid.
    """
    if disk.kind(start) is None:
        raise Refusal("worktree-missing", f"{start} does not exist", hint=hint)
    canonical = disk.resolve(start)
    if canonical is None:
        raise Refusal("worktree-missing", f"{start} cannot be reached", context="a dangling link, a link loop or a "
                      "directory without search permission is in its path", hint=hint)  # fmt: skip
    if disk.kind(canonical) != "dir":
        raise Refusal("worktree-not-directory", f"{start} is not a directory", hint=hint)
    here = canonical
    while True:
        entry = os.path.join(here, ".git")
        kind = disk.kind(entry)
        if kind is not None:
            return _described(here, entry, kind, disk)
        if exact or here == "/":
            break
        here = os.path.dirname(here)
    if _is_git_dir(canonical, disk):
        raise Refusal("bare-repository", f"{canonical} is a git directory, not a worktree",
                      hint=f"cd into a worktree of it: git -C {quoted(canonical)} worktree list")  # fmt: skip
    raise Refusal(
        "not-a-worktree",
        f"{start} is not the root of a git worktree" if exact else f"{start} is not inside a git worktree",
        context="there is no .git in it" if exact else "neither it nor a directory above it has a .git",
        hint=hint,
    )


def common_dir(git_dir: str, disk: Disk) -> str:
    """The directory that holds objects, refs and config for a git directory: itself, or what its `commondir` names."""
    text = _line(f"{git_dir}/commondir", disk)
    if text is None:
        return git_dir
    return os.path.normpath(os.path.join(git_dir, text.partition("\0")[0]))  # as far as git reads it, too


def _is_git_dir(path: str, disk: Disk) -> bool:
    return (
        disk.kind(f"{path}/HEAD") in ("file", "link")
        and disk.kind(f"{path}/objects") in ("dir", "link")
        and disk.kind(f"{path}/refs") in ("dir", "link")
    )


def _is_private(git_dir: str, disk: Disk) -> bool:
    """Whether a git directory is a private one of Paddock's, or lies in one (`launcher.vcs.private.record`)."""
    here = git_dir
    while here != "/":
        above = os.path.dirname(here)
        if os.path.basename(here) == record.GIT:
            content = disk.read(f"{above}/{record.RECORD}", 64 << 20)
            if content is not None and content.startswith(record.MAGIC):
                return True
        here = above
    return False


def _described(root: str, entry: str, kind: str, disk: Disk) -> Checkout:
    if kind == "dir":
        if not _is_git_dir(entry, disk):
            raise _invalid(entry, "the directory has no HEAD, objects and refs")
        return Checkout(root, "main", entry, entry, _submodules(root, entry, disk))
    if kind != "file":
        raise _invalid(entry, f"it is a {kind}, neither a directory nor a pointer file")
    git_dir = _pointer(entry, root, disk)
    if beneath(git_dir, root):
        raise _invalid(entry, f"it points into the worktree itself, at {git_dir}")
    if _is_private(git_dir, disk):
        raise _invalid(
            entry,
            f"it points to a private git directory, which an agent writes: {git_dir}",
            hint=f"if a session is running in {root}, wait for it; if one was killed: "
            f"paddock worktree dock {quoted(root)}",
        )
    common_text = _line(f"{git_dir}/commondir", disk)
    if common_text is not None:
        common = disk.resolve(os.path.join(git_dir, common_text))
        back = _line(f"{git_dir}/gitdir", disk)
        if common is None or os.path.dirname(git_dir) != f"{common}/worktrees" or not _is_git_dir(common, disk):
            raise _invalid(entry, f"{git_dir} is not a worktree directory of a repository")
        if back is None or disk.resolve(os.path.join(git_dir, back)) != entry:
            raise _invalid(
                entry,
                f"{git_dir}/gitdir does not point back at it",
                hint=f"if it was moved: paddock worktree repair {quoted(root)}; or, if Paddock does not know it: "
                f"git -C {quoted(root)} worktree repair",
            )
        return Checkout(root, "linked", git_dir, common, _submodules(root, git_dir, disk))
    if not _is_git_dir(git_dir, disk):
        raise _invalid(entry, f"{git_dir} has no HEAD, objects and refs")
    if configured_worktree(git_dir, disk) != root:
        raise _invalid(
            entry,
            f"core.worktree in {git_dir}/config does not point back at {root}",
            hint="if git submodule update ran in another worktree: paddock worktree repair in the superproject",
        )
    return Checkout(root, "submodule", git_dir, git_dir, _submodules(root, git_dir, disk))


def _invalid(entry: str, why: str, hint: str = "") -> Refusal:
    return Refusal(
        "git-pointer-invalid",
        f"{entry} does not point to a git directory that can be trusted",
        context=why,
        hint=hint or "check the file: an agent may have replaced it; `git worktree repair` fixes moved worktrees",
    )


def _line(path: str, disk: Disk) -> str | None:
    content = disk.read(path, 8192)
    return None if content is None else os.fsdecode(content.rstrip(b"\r\n"))  # as git reads it


def _pointer(entry: str, root: str, disk: Disk) -> str:
    content = disk.read(entry, pointer.MOST_BYTES) or b""
    named = pointer.text(content)
    if named is None or b"\0" in content:
        raise _invalid(entry, "it cannot be read as `gitdir: PATH`")
    target = disk.resolve(os.path.join(root, named))
    if target is None:
        raise _invalid(entry, f"{named} does not exist")
    if named not in (target, os.path.relpath(target, root)):  # what git itself writes leads through no link
        for link, _ in Names().walk(os.path.join(root, named)).links:
            if beneath(link, root):  # whoever may write the worktree turns it later
                raise _invalid(
                    entry,
                    f"it leads through a link in the worktree itself, {link}",
                    hint=f"run no git there before it is repaired: paddock worktree dock {quoted(root)}; or, where no "
                    "session has had private git, write it by hand (gitdir: PATH)",
                )
    return target


def configured_worktree(git_dir: str, disk: Disk) -> str | None:
    """`core.worktree` of a submodule's git directory, resolved; None when it has none.

    A store with linked worktrees has it in `config.worktree` (`worktrees.module_stores`).
    """
    place = _configured_worktree(git_dir, disk)
    return None if place is None else disk.resolve(place)


def _configured_worktree(git_dir: str, disk: Disk) -> str | None:
    for file in ("config", "config.worktree"):
        for section, subsection, name, value in git_config.entries(disk.read(f"{git_dir}/{file}", 1 << 20) or b""):
            if (section, subsection, name) == ("core", "", "worktree"):
                return os.path.join(git_dir, value)
    return None


def place_of(git_dir: str, disk: Disk) -> str | None:
    """Where a submodule's git directory says that its files are, as it is written there; None when it does not say.

    Not resolved: a link in an agent's tree would have it say another place.

    Args:
        git_dir: canonical; a store, or the directory of a linked worktree of one.
    """
    entry = _line(f"{git_dir}/gitdir", disk) if disk.kind(f"{git_dir}/commondir") == "file" else None
    place = os.path.dirname(os.path.join(git_dir, entry)) if entry else _configured_worktree(git_dir, disk)
    return None if place is None else os.path.normpath(place)


def _submodules(root: str, git_dir: str, disk: Disk) -> tuple[Submodule, ...]:
    """Populated submodules of a worktree, sorted so that nested ones come behind their parents.

    The git directories below `<git_dir>/modules` are the first witness: no agent can write there, while one that
    could edit `.gitmodules` would hide a submodule that a later session must not reach; so are those that Paddock
    made (`MODULES`), and those below these. `.gitmodules` only adds those that carry their git directory inside (old
    layout).
    """
    found: dict[str, Submodule] = {}
    linked = _linked_modules(git_dir, disk)
    for prefix, around in (("", git_dir), *((f"{name}/", inner) for name, inner in linked)):
        for name, inner in module_dirs(f"{around}/modules", prefix, disk):
            path = configured_worktree(inner, disk)
            if path is not None and path != root and beneath(path, root):
                found[path] = Submodule(name, path, inner)
    for name, inner in linked:
        entry = _line(f"{inner}/gitdir", disk)
        path = disk.resolve(os.path.dirname(os.path.join(inner, entry))) if entry else None
        if path is not None and path != root and beneath(path, root):
            found[path] = Submodule(name, path, inner)
    pending = [(root, "")]
    while pending:
        parent, prefix = pending.pop(0)
        for name, relative in gitmodules(parent, disk):
            path = os.path.join(parent, relative)
            if disk.resolve(path) != path or path == parent:
                continue  # absent, or reached through a link: git does not follow one either
            if path not in found and disk.kind(f"{path}/.git") == "dir" and _is_git_dir(f"{path}/.git", disk):
                found[path] = Submodule(prefix + name, path, f"{path}/.git")
            if path in found and len(found) < 10_000:
                pending.append((path, f"{prefix}{name}/"))
    return tuple(found[path] for path in sorted(found))


def module_dirs(directory: str, prefix: str, disk: Disk, deepest: int = 40) -> list[tuple[str, str]]:
    """(name, git directory) for each git directory below a `modules` directory, which an agent may have made.

    Names of more slashes than `deepest` are not looked for: each level costs a walk.
    """
    result: list[tuple[str, str]] = []
    pending = [(directory, prefix)] if disk.kind(directory) == "dir" else []
    for here, above in pending:
        inner = ((entry, f"{here}/{entry}") for entry in disk.listing(here) or ())
        for entry, path in ((entry, path) for entry, path in inner if disk.kind(path) == "dir"):
            if disk.kind(f"{path}/HEAD") is not None:
                result.append((above + entry, path))
                path = f"{path}/modules"
            deeper = above.count("/") < deepest and disk.kind(path) == "dir"
            pending += [(path, f"{above}{entry}/")] if deeper else []
    return result


def _linked_modules(git_dir: str, disk: Disk) -> list[tuple[str, str]]:
    """(name, git directory) of the submodule worktrees in `MODULES`, which no agent can write."""
    fields = os.fsdecode(disk.read(f"{git_dir}/{MODULES}", 1 << 20) or b"").split("\0")
    return list(zip(fields[::2], fields[1::2], strict=False))


def gitmodules(root: str, disk: Disk) -> list[tuple[str, str]]:
    """(name, relative path) pairs of `.gitmodules`, up to where git could not read on."""
    entries = git_config.entries(disk.read(f"{root}/.gitmodules", 1 << 20) or b"")
    return [
        (name, os.path.normpath(path))
        for section, name, key, path in entries
        if (section, key) == ("submodule", "path") and name and path
        if not path.startswith("/") and ".." not in path.split("/")
    ]
