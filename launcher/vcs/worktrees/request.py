"""Deciding what a new worktree will be: names, branches, commits and submodules. Nothing is changed here."""

import os
import re
import time
from pathlib import Path

from launcher.vcs import worktree_words
from launcher.vcs.checkout import Checkout
from launcher.vcs.disk import Names
from launcher.vcs.git import Git
from launcher.vcs.refs import AGENTS
from launcher.vcs.worktrees import admin_files, models, module_stores
from launcher.vcs.worktrees.models import Options, Part, State, Unpopulated, Worktree
from policy.errors import Refusal, in_rows
from policy.launch import worktree_id
from policy.pasted import cited, joined, quoted
from policy.plan import beneath


def propose(git: Git, parent: Checkout, ticket: str, options: Options) -> Worktree:
    """The worktree that will be made; the repository's lock is held until it is recorded.

    Args:
        parent: the parent worktree.
        ticket: as the caller names it.

    Refusals: ticket-name, worktree-exists, worktree-place, git-unsupported, commit-unknown, ref-ambiguous, branch-name,
        branch-exists, branch-in-use, directory-unknown, submodule-unknown, submodule-unavailable.
    """
    name = models.slug(ticket)
    _supported(git, parent)
    path = place(parent, options.path, name)
    branch, base, made = _branch(git, name, options)
    _sparse(git, base, options.sparse or ())
    found = module_stores.modules_of_commit(git, base)
    chosen, left = _chosen(found, options.submodules, path)
    wanted = models.slug(os.path.basename(path)[:60])
    directory = admin_files.free_name([git.common_dir, *(module.common_dir for module in chosen)], wanted)
    main = Part(
        name="", worktree_id=worktree_id(path), path=Path(path), common_dir=Path(git.common_dir),
        git_dir=Path(git.common_dir, "worktrees", directory), branch=branch, branch_made=made, base=base,
    )  # fmt: skip
    return Worktree(
        ticket=ticket,
        main=main,
        submodules=tuple(_submodule(module, path, directory, branch) for module in chosen),
        unpopulated=left,
        parent_worktree_id=worktree_id(parent.root),
        parent_path=Path(parent.root),
        created=time.time(),
        state=State.CREATING,
        staging=Path(models.staging(path)),
    )


_UNSUPPORTED = re.compile(r"extensions\.(refstorage|partialclone)|remote\..*\.promisor")


def _supported(git: Git, parent: Checkout) -> None:
    if parent.kind == "submodule" or "/modules/" in parent.common_dir:
        raise Refusal(
            "git-unsupported",
            f"{parent.root} is a submodule",
            context="its worktrees are made along with those of its superproject",
            hint="cd into the worktree that holds the submodule",
        )
    settings = {key: value or "" for _, key, value in git.configured() if _UNSUPPORTED.fullmatch(key)}
    storage = settings.pop("extensions.refstorage", "").strip().lower()
    if storage not in ("", "files"):
        raise Refusal(
            "git-unsupported",
            f"{parent.common_dir} keeps its refs as {storage}",
            context="worktrees are made by writing ref files, which this format does not have",
            hint="git refs migrate --ref-format=files, or make the worktree with git and: paddock worktree adopt DIR",
        )
    if settings:
        raise Refusal(
            "git-unsupported",
            f"{parent.common_dir} is a partial clone",
            context="worktrees are made offline, and some file contents are only on the server",
            hint="git fetch --refetch --no-filter, or make the worktree with git and: paddock worktree adopt DIR",
        )


def place(parent: Checkout, wanted: str | None, name: str) -> str:
    """Where a new worktree will be, canonical: `wanted`, or beside the parent.

    Refusals: worktree-place, worktree-exists, worktree-behind-link.
    """
    path = os.path.abspath(wanted) if wanted is not None else models.sibling(parent.root, parent.common_dir, name)
    above = os.path.dirname(path)
    trail = Names().walk(above)
    if trail.canonical is None or not os.path.isdir(trail.canonical):
        raise Refusal("worktree-place", f"{above} is not a directory", hint="make it first, or name another --path")
    canonical = os.path.join(trail.canonical, os.path.basename(path))
    worktree_words.refuse_link(path, trail, canonical)
    if os.path.lexists(canonical):
        raise Refusal(
            "worktree-exists",
            f"{canonical} already exists",
            hint="paddock worktree list; another ticket, or --path DIR; `paddock worktree adopt DIR` if git made it",
        )
    if beneath(canonical, parent.root) or beneath(canonical, parent.common_dir):
        raise Refusal(
            "worktree-place",
            f"{canonical} is inside {parent.root}",
            context="an agent in one could write the other",
            hint="name a --path beside it",
        )
    return canonical


def _branch(git: Git, name: str, options: Options) -> tuple[str, str, bool]:
    """Branch, commit to start from, and whether the branch is to be made."""
    branch = options.branch if options.branch is not None else f"{AGENTS}/{name}"
    ref = f"refs/heads/{branch}"
    if branch.startswith("-") or not branch.isprintable() or git.run("check-ref-format", ref, ok=(0, 1)).status:
        raise Refusal("branch-name", f"{branch!r} is not a valid branch name", hint="see git check-ref-format --help")
    exists = bool(git.ref(ref))
    if not exists:
        _check_unbroken(git.common_dir, branch, ref)
    if exists and (options.branch is None or options.start is not None):
        raise Refusal(
            "branch-exists",
            f"branch {branch} already exists",
            context="it may hold an earlier agent's work, so it is not reset",
            hint=in_rows(
                f"paddock worktree add {quoted(name)} --branch {quoted(branch)} continues it",
                "--branch OTHER starts another",
            ),
        )
    if exists and (where := admin_files.checked_out(git.common_dir, ref)) is not None:
        raise Refusal(
            "branch-in-use", f"branch {branch} is checked out at {where}",
            hint="name another --branch, or work in that worktree",
        )  # fmt: skip
    if not exists and git.ref(f"refs/tags/{branch}"):
        raise Refusal(
            "ref-ambiguous",
            f"there is a tag {branch}",
            context="git would take it for the branch; an agent may have chosen its name",
            hint=f"name another --branch, or remove it: git tag -d {quoted(branch)}",
        )
    start = ref if exists else options.start if options.start is not None else "HEAD"
    commit = git.commit_of(start)
    if not commit:
        raise Refusal(
            "commit-unknown",
            f"{git.git_dir} has no commits yet" if start == "HEAD" else f"there is no commit {start} in {git.git_dir}",
            context="a worktree needs a commit to start from",
            hint="commit something first, or name another with --from",
        )
    return branch, commit, not exists


def _sparse(git: Git, base: str, directories: tuple[str, ...]) -> None:
    """Refuses directories that the commit does not have: git would check out nothing in their place, silently."""
    for directory in directories:
        name = os.path.normpath(directory)
        kind = b"" if "\n" in name else git.run("cat-file", "-t", f"{base}:{name}", ok=(0, 128)).out.strip()
        if kind != b"tree":
            raise Refusal(
                "directory-unknown",
                f"there is no directory {directory} in this commit",
                context="--sparse checks out whole directories (git sparse-checkout, cone mode)",
                hint=f"git ls-tree -d --name-only {base[:12]}",
            )


def _chosen(
    found: list[module_stores.Module], wanted: tuple[str, ...] | None, path: str
) -> tuple[list[module_stores.Module], tuple[Unpopulated, ...]]:
    """The submodules to populate, and the others with the reason."""
    known = {module.name for module in found}
    for name in wanted or ():
        if name not in known:
            raise Refusal("submodule-unknown", f"there is no submodule {cited(name)} in this commit",
                          context="known: " + (", ".join(sorted(known)) or "none"))  # fmt: skip
    chosen: list[module_stores.Module] = []
    left: list[Unpopulated] = []
    missing: list[str] = []
    for module in found:
        named = wanted is not None and any(module.name == name or module.name.startswith(f"{name}/") for name in wanted)
        why = module.problem if wanted is None or named else module_stores.NOT_GRANTED
        if not why and any(module.path.startswith(f"{outer}/") for outer in missing):
            why = "the submodule that contains it is not populated"
        if why:
            if named and wanted is not None and module.name in wanted:
                raise Refusal("submodule-unavailable", f"submodule {cited(module.name)} cannot be populated",
                              context=why, hint="git submodule update --init --recursive")  # fmt: skip
            missing.append(module.path)
            place = os.path.join(path, module.path)
            left.append(Unpopulated(name=module.name, worktree_id=worktree_id(place), path=Path(place), why=why))
        else:
            chosen.append(module)
    return chosen, tuple(left)


def _check_unbroken(common_dir: str, branch: str, ref: str) -> None:
    """Refuses (branch-broken) a branch's file that names no commit, as a crash leaves it: git would not replace it."""
    path = f"{common_dir}/{ref}"
    if os.path.isfile(path):
        raise Refusal(
            "branch-broken",
            f"branch {branch} is broken: {path} names no commit",
            context="git can neither read nor replace it; where it has been is in its log, if it has one",
            hint=in_rows(joined(("cat", f"{common_dir}/logs/{ref}")), joined(("rm", path))),
        )


def _submodule(module: module_stores.Module, root: str, directory: str, branch: str) -> Part:
    git = Git(module.common_dir)
    ref = f"refs/heads/{branch}"
    tip = git.ref(ref)
    if not tip:
        _check_unbroken(module.common_dir, branch, ref)
    where = admin_files.checked_out(module.common_dir, ref) if tip else None
    if tip and (tip != module.commit or where is not None):
        raise Refusal(
            "branch-exists",
            f"submodule {cited(module.name)} has a branch {branch} already",
            context=f"it is checked out at {where}" if where else f"it is at {tip[:12]}, not at {module.commit[:12]}",
            hint=f"git --git-dir {module.common_dir} branch -m {branch} OTHER, or another --branch",
        )
    place = os.path.join(root, module.path)
    return Part(
        name=module.name, worktree_id=worktree_id(place), path=Path(place), common_dir=Path(module.common_dir),
        git_dir=Path(module.common_dir, "worktrees", directory), branch=branch, branch_made=not tip, base=module.commit,
    )  # fmt: skip
