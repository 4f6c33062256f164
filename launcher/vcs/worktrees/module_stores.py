"""Where a submodule's store says that the main checkout of it is, when linked worktrees share the store.

`git submodule update` writes ``core.worktree`` into the store's `config` when one is set there (its function
``ensure_core_worktree``): in a linked worktree of the superproject with that worktree's own place, which then
holds for the main checkout, and breaks it. Without the variable git writes nothing, and finds the files from their
`.git`. So a store with linked worktrees has it in `config.worktree`, where git itself would put it (git-worktree(1),
CONFIGURATION FILE), and where `checkout` looks too. ``extensions.worktreeConfig`` stays as it is: every git is content.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.vcs import checkout, git_config, gitlinks
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.vcs.private import pointer
from launcher.vcs.worktrees import admin_files
from launcher.vcs.worktrees.models import Part
from policy.plan import beneath

_KEY = ("core", "", "worktree")
_DEEPEST = 16


class Store(NamedTuple):
    """A submodule's store that has ``core.worktree`` in its `config`.

    Attributes:
        path: the git directory.
        right: whether the value leads to the main checkout.
        place: where the main checkout's files of it are; None when it has none, or they cannot be found.
    """

    path: str
    right: bool
    place: str | None


def find(common_dir: str) -> list[Store]:
    """The stores of a repository's submodules that have the variable in `config`, outermost first."""
    modules = f"{common_dir}/modules"
    named = [(path, value) for _, path in checkout.module_dirs(modules, "", Present()) if (value := _value(path))]
    if not named:
        return []
    root = _root(common_dir)
    populated = _populated(root, modules, 0) if root is not None else {}
    return [_judged(path, value, root, populated) for path, value in named]


def damaged(common_dir: str) -> list[Store]:
    """The stores whose value leads elsewhere than to the main checkout."""
    return [store for store in find(common_dir) if not store.right]


def release(common_dir: str, store: Store) -> None:
    """Moves the variable out of a store's `config`; may be repeated. The repository's lock is held.

    The right value is in `config.worktree` before `config` loses its own, so a crash in between changes nothing.

    Args:
        common_dir: of the superproject, from which git is run: in the store it may not even start.
    """
    git = Git(common_dir)
    if store.place is not None:
        value = os.path.relpath(store.place, store.path)
        git.run("config", "--file", f"{store.path}/config.worktree", "--replace-all", "core.worktree", value)
    git.run("config", "--file", f"{store.path}/config", "--unset-all", "core.worktree", ok=(0, 5))


def mend(common_dir: str) -> list[str]:
    """Mends every store that is damaged; returns what was done. The repository's lock is held."""
    done = []
    for store in damaged(common_dir):
        release(common_dir, store)
        done.append(f"repaired {store.path}: git submodule update had pointed the main checkout's to another worktree")
    return done


def follow(parts: Iterable[Part], old: str, new: str) -> None:
    """Has the stores below the git directories of a worktree's parts name the place where it is now; may be repeated.

    `git submodule update` made them there, in a worktree that Paddock did not make or after it did. Git itself does not
    move such a worktree, and its `git worktree repair` leaves them alone.
    """
    for part in parts:
        for _, store in checkout.module_dirs(f"{part.git_dir}/modules", "", Present()):
            for file in ("config", "config.worktree"):
                value = _value(store, file)
                place = os.path.normpath(os.path.join(store, value)) if value else ""
                if value and beneath(place, old) and not os.path.lexists(place):
                    value = os.path.relpath(f"{new}{place[len(old) :]}", store)
                    words = ("--file", f"{store}/{file}", "--replace-all", "core.worktree", value)
                    Git(os.fspath(part.common_dir)).run("config", *words)


def _judged(path: str, value: str, root: str | None, populated: dict[str, str]) -> Store:
    place = os.path.normpath(os.path.join(path, value))
    found = leads(place)
    if found == path or (found is None and root is not None and beneath(place, root)):
        return Store(path, True, place)
    noted = _value(path, "config.worktree")
    before = os.path.normpath(os.path.join(path, noted)) if noted else None
    known = populated.get(path) or (before if before is not None and leads(before) == path else None)
    written = any(
        os.path.normpath(os.path.join(git_dir, value)) == os.path.dirname(admin_files.points_to(git_dir) or "")
        for git_dir in admin_files.linked(path)
    )
    wrong = written or known is not None or not os.path.isdir(place)
    return Store(path, not wrong, known if wrong else place)


def _root(common_dir: str) -> str | None:
    """The main checkout around a common directory; None for a bare repository, or when it cannot be told."""
    if os.path.basename(common_dir) == ".git":
        return os.path.dirname(common_dir)
    return checkout.configured_worktree(common_dir, Present())


def _populated(root: str, modules: str, depth: int) -> dict[str, str]:
    """Store -> place, of the populated submodules of a checkout whose `.git` file leads to the store of their name."""
    found: dict[str, str] = {}
    for name, relative in checkout.gitmodules(root, Present()):
        store, place = os.path.normpath(f"{modules}/{name}"), os.path.join(root, relative)
        if beneath(store, modules) and os.path.realpath(place) == place and leads(place) == store:
            found[store] = place
            if depth < _DEEPEST:
                found |= _populated(place, f"{store}/modules", depth + 1)
    return found


def leads(place: str) -> str | None:
    """The git directory that the `.git` file of a directory names; None without such a file."""
    return pointer.target(Present().read(f"{place}/.git", pointer.MOST_BYTES), place)


def _value(store: str, file: str = "config") -> str | None:
    content = Present().read(f"{store}/{file}", 1 << 20) or b""
    values = [value for *key, value in git_config.entries(content) if tuple(key) == _KEY]
    return values[-1] if values else None


# The submodules of a commit, and where their objects are: read from the object stores, nothing is checked out.


NOT_GRANTED = "not granted"


class Module(NamedTuple):
    """A submodule of a commit, nested ones too.

    Attributes:
        name: its name in `.gitmodules`; a nested one is ``outer/inner``.
        path: relative to the root of the outermost worktree.
        commit: what the gitlink names.
        common_dir: its store below the superproject's ``modules``.
        problem: why it cannot be checked out; empty when it can.
    """

    name: str
    path: str
    commit: str
    common_dir: str
    problem: str


def modules_of_commit(git: Git, commit: str) -> list[Module]:
    """All submodules of a commit, each behind the one that it is nested in.

    What lies in `.gitmodules` may have been written by an agent: names that lead elsewhere are refused as git does
    (CVE-2018-11235), and only paths that really are gitlinks in the tree are taken.
    """
    return list(_modules_of_commit(git, commit, "", "", 0))


def _modules_of_commit(git: Git, commit: str, name_prefix: str, path_prefix: str, depth: int) -> Iterator[Module]:
    known = gitlinks.paths_by_name(git, commit, ok=(0, 1, 3, 128))  # what git cannot parse names no submodule
    names = {path.rstrip("/"): name for name, path in known.items() if name}
    if not names:
        return
    for path, oid in sorted(gitlinks.of_tree(git, commit).items()):
        name = names.get(path)
        if name is None:
            continue  # a gitlink without a name is no submodule for git either
        common_dir = f"{git.common_dir}/modules/{name}"
        problem = _problem(name, common_dir, oid, depth)
        yield Module(name_prefix + name, path_prefix + path, oid, common_dir, problem)
        if not problem:
            yield from _modules_of_commit(
                Git(common_dir), oid, f"{name_prefix}{name}/", f"{path_prefix}{path}/", depth + 1
            )


def _problem(name: str, common_dir: str, commit: str, depth: int) -> str:
    parts = name.split("/")
    if ".." in parts or name.startswith(("/", "-")) or not name.isprintable() or ".git" in (p.lower() for p in parts):
        return "its name in .gitmodules points elsewhere"
    if depth >= _DEEPEST:
        return f"it is nested more than {_DEEPEST} deep"
    if not os.path.isdir(f"{common_dir}/objects"):
        return "it was never fetched here (git submodule update --init --recursive, in the main checkout)"
    known = not os.path.islink(common_dir)
    if not known or Git(common_dir).run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128)).status:
        return f"its commit {commit[:12]} was never fetched here (git submodule update, in the main checkout)"
    return ""
