"""Finding the git worktree that holds a directory, by reading its pointers. No git process is run.

A worktree's `.git` file can be written by whoever may write the worktree, an agent of an earlier run included. So
a pointer is believed only when the directory it names points back, from a place outside the worktree.
Layout: gitrepository-layout(5).
"""

import os
from typing import NamedTuple

from policy.errors import Refusal
from policy.host import Host
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
        kind: ``main`` (a checkout that holds its own `.git` directory), ``linked`` or ``submodule``.
        git_dir: its own git directory (HEAD, index).
        common_dir: the directory that holds objects, refs and config.
        submodules: populated submodules, nested ones too, outermost first.
    """

    root: str
    kind: str
    git_dir: str
    common_dir: str
    submodules: tuple[Submodule, ...]


_HINT = "cd into a git worktree, name one with --worktree DIR, or make one: git worktree add ../agent-1 -b agent-1"


def find(start: str, host: Host, *, exact: bool) -> Checkout:
    """The checkout whose root is `start` (`exact`, for `--worktree`) or that holds `start`.

    Args:
        start: a directory; absolute.

    Refusals: worktree-missing, worktree-not-directory, not-a-worktree, bare-repository, git-pointer-invalid.
    """
    if host.kind(start) is None:
        raise Refusal("worktree-missing", f"{start} does not exist", hint=_HINT)
    canonical = host.resolve(start)
    if canonical is None:
        raise Refusal("worktree-missing", f"{start} cannot be reached", context="a dangling link, a link loop or a "
                      "directory without search permission is on the way", hint=_HINT)  # fmt: skip
    if host.kind(canonical) != "dir":
        raise Refusal("worktree-not-directory", f"{start} is not a directory", hint=_HINT)
    here = canonical
    while True:
        entry = os.path.join(here, ".git")
        kind = host.kind(entry)
        if kind is not None:
            return _described(here, entry, kind, host)
        if exact or here == "/":
            break
        here = os.path.dirname(here)
    if _is_git_dir(canonical, host):
        raise Refusal("bare-repository", f"{canonical} is a git directory, not a worktree", hint=_HINT)
    raise Refusal(
        "not-a-worktree",
        f"{start} is not the root of a git worktree" if exact else f"{start} is not inside a git worktree",
        context="there is no .git in it" if exact else "neither it nor a directory above it has a .git",
        hint=_HINT,
    )


def _is_git_dir(path: str, host: Host) -> bool:
    return (
        host.kind(f"{path}/HEAD") in ("file", "link")
        and host.kind(f"{path}/objects") in ("dir", "link")
        and host.kind(f"{path}/refs") in ("dir", "link")
    )


def _described(root: str, entry: str, kind: str, host: Host) -> Checkout:
    if kind == "dir":
        if not _is_git_dir(entry, host):
            raise _invalid(entry, "the directory holds no HEAD, objects and refs")
        return Checkout(root, "main", entry, entry, _submodules(root, entry, host))
    if kind != "file":
        raise _invalid(entry, f"it is a {kind}, neither a directory nor a pointer file")
    git_dir = _pointer(entry, root, host)
    if beneath(git_dir, root):
        raise _invalid(entry, f"it points into the worktree itself, at {git_dir}")
    common_text = _line(f"{git_dir}/commondir", host)
    if common_text is not None:
        common = host.resolve(os.path.join(git_dir, common_text))
        back = _line(f"{git_dir}/gitdir", host)
        if common is None or os.path.dirname(git_dir) != f"{common}/worktrees" or not _is_git_dir(common, host):
            raise _invalid(entry, f"{git_dir} is not a worktree directory of a repository")
        if back is None or host.resolve(os.path.join(git_dir, back)) != entry:
            raise _invalid(
                entry,
                f"{git_dir}/gitdir does not point back at it",
                hint=f"if the worktree was moved: git -C {root} worktree repair",
            )
        return Checkout(root, "linked", git_dir, common, _submodules(root, git_dir, host))
    if not _is_git_dir(git_dir, host):
        raise _invalid(entry, f"{git_dir} holds no HEAD, objects and refs")
    if _configured_worktree(git_dir, host) != root:
        raise _invalid(entry, f"core.worktree in {git_dir}/config does not point back at {root}")
    return Checkout(root, "submodule", git_dir, git_dir, _submodules(root, git_dir, host))


def _invalid(entry: str, why: str, hint: str = "") -> Refusal:
    return Refusal(
        "git-pointer-invalid",
        f"{entry} does not lead to a git directory that can be trusted",
        context=why,
        hint=hint or "look at the file: an agent may have replaced it; `git worktree repair` mends moved worktrees",
    )


def _line(path: str, host: Host) -> str | None:
    content = host.read(path, 8192)
    return None if content is None else os.fsdecode(content.rstrip(b"\n"))


def _pointer(entry: str, root: str, host: Host) -> str:
    text = _line(entry, host)
    if text is None or not text.startswith("gitdir: "):
        raise _invalid(entry, "it cannot be read as `gitdir: PATH`")
    target = host.resolve(os.path.join(root, text[len("gitdir: ") :]))
    if target is None:
        raise _invalid(entry, f"{text[len('gitdir: ') :]} does not exist")
    return target


def _configured_worktree(git_dir: str, host: Host) -> str | None:
    """`core.worktree` of a submodule's git directory, resolved; None when it has none."""
    content = host.read(f"{git_dir}/config", 1 << 20) or b""
    section = b""
    for raw in content.splitlines():
        line = raw.strip()
        if line.startswith(b"["):
            section = line.lower()
        elif section == b"[core]":
            key, _, value = line.partition(b"=")
            if key.strip().lower() == b"worktree":
                return host.resolve(os.path.join(git_dir, os.fsdecode(value.strip().strip(b'"'))))
    return None


def _submodules(root: str, git_dir: str, host: Host) -> tuple[Submodule, ...]:
    """Populated submodules of a worktree, sorted so that nested ones come behind their parents.

    The git directories below `<git_dir>/modules` are the first witness: no agent can write there, while one that
    could edit `.gitmodules` would hide a submodule that a later session must not reach. `.gitmodules` only adds
    those that carry their git directory inside (old layout).
    """
    found: dict[str, Submodule] = {}
    for name, inner in _module_dirs(f"{git_dir}/modules", "", host):
        path = _configured_worktree(inner, host)
        if path is not None and path != root and beneath(path, root):
            found[path] = Submodule(name, path, inner)
    pending = [(root, "")]
    while pending:
        parent, prefix = pending.pop(0)
        for name, relative in _gitmodules(parent, host):
            path = os.path.join(parent, relative)
            if host.resolve(path) != path or path == parent:
                continue  # absent, or reached through a link: git does not follow one either
            if path not in found and host.kind(f"{path}/.git") == "dir" and _is_git_dir(f"{path}/.git", host):
                found[path] = Submodule(prefix + name, path, f"{path}/.git")
            if path in found and len(found) < 10_000:
                pending.append((path, f"{prefix}{name}/"))
    return tuple(found[path] for path in sorted(found))


def _module_dirs(directory: str, prefix: str, host: Host) -> list[tuple[str, str]]:
    """(name, git directory) for each git directory below a `modules` directory; a name may hold slashes."""
    result: list[tuple[str, str]] = []
    if host.kind(directory) != "dir":
        return result
    for entry in host.listing(directory) or ():
        inner = f"{directory}/{entry}"
        if host.kind(inner) != "dir":
            continue
        if host.kind(f"{inner}/HEAD") is not None:
            result.append((prefix + entry, inner))
            result += _module_dirs(f"{inner}/modules", f"{prefix}{entry}/", host)
        elif prefix.count("/") < 40:
            result += _module_dirs(inner, f"{prefix}{entry}/", host)
    return result


def _gitmodules(root: str, host: Host) -> list[tuple[str, str]]:
    """(name, relative path) pairs of `.gitmodules`; what cannot be read as plain text is left out."""
    content = host.read(f"{root}/.gitmodules", 1 << 20)
    result: list[tuple[str, str]] = []
    name = ""
    for raw in (content or b"").splitlines():
        line = os.fsdecode(raw.strip())
        if line.startswith("[submodule ") and line.endswith("]"):
            name = line[len("[submodule ") : -1].strip().strip('"')
        elif line.startswith("["):
            name = ""
        elif name:
            key, _, value = line.partition("=")
            path = value.strip().strip('"')
            if key.strip() == "path" and path and not path.startswith("/") and ".." not in path.split("/"):
                result.append((name, os.path.normpath(path)))
    return result
