"""Making a worktree, quicker than `git worktree add`, and so that a crash at any point can be finished or undone.

The row in the store comes first. Names, branches and git directories are made under the repository's lock, in a few
milliseconds; files are written outside of it, into a directory with a name of its own beside the final one, and renamed
when they are complete. So nobody ever sees half a worktree, and what is removed after a crash is certainly Paddock's.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import written
from launcher.vcs.checkout import Checkout
from launcher.vcs.disk import Present
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.git_config import UserConfig
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.private import record as private
from launcher.vcs.private import swap
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import admin_files, module_stores
from launcher.vcs.worktrees.models import Options, Part, Say, State, Step, Worktree
from launcher.vcs.worktrees.request import propose
from launcher.vcs.worktrees.store import WorktreeRepository
from policy.errors import Refusal, in_rows
from policy.pasted import cited


def check_out(git: JailedGit) -> None:
    """Writes the files of HEAD into an empty work tree, and the index."""
    with Scratch() as scratch:
        git.run("read-tree", "-m", "-u", "HEAD", environment={"GIT_INDEX_FILE": scratch.path("index")})
        with Inside(scratch.name) as inside:
            content = inside.read("index")
    if content is None:
        raise OSError(f"git wrote no index at {scratch.name}")
    _put_index(f"{git.git_dir}/index", content)


def _put_index(path: str, content: bytes) -> None:
    """Makes an index as git does, through its lock."""
    descriptor = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(f"{path}.lock", path)
    except BaseException:
        os.unlink(f"{path}.lock")
        raise


# Copying untracked files, such as ``.env``, from the parent worktree by pattern. Never through a symbolic link.
#
# The parent may be an agent's worktree: a link there would carry a file of the user's into the new one. So every
# step down is taken on a descriptor, with O_NOFOLLOW, and only regular files of one link are read.


LARGEST = 64 << 20
"""Bytes of one copied file."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 1000


def check_patterns(pattern: str) -> str:
    """`pattern` itself, when it stays in the worktree; otherwise refused (copy-pattern)."""
    parts = pattern.split("/")
    if not pattern or pattern.startswith("/") or ".." in parts or "" in parts or ".git" in parts or "\0" in pattern:
        raise Refusal(
            "copy-pattern",
            f"{pattern!r} is not a pattern for files of a worktree",
            context="it must be relative to the worktree's root, without '..', '.git' and empty names",
            hint="paddock worktree add T-1 --copy .env --copy 'config/*.local'",
        )
    return pattern


def copy_untracked(source: str, target: str, patterns: tuple[str, ...]) -> list[str]:
    """Copies the files below `source` that match a pattern to the same places below `target`.

    Args:
        source: root of the parent worktree.
        target: root of the new one, which nobody else writes yet.
        patterns: relative, checked by `check_patterns`; ``*``, ``?`` and ``[...]`` match inside one name.

    Returns:
        what was copied, as relative paths. What the new worktree has already (tracked files) is left as it is.

    Refusals: copy-too-large, copy-failed.
    """
    copied: list[str] = []
    try:
        with ExitStack() as opened:
            root = walk.open_canonical(source, _DIRECTORY)
            opened.callback(os.close, root)
            new = walk.open_canonical(target, _DIRECTORY)
            opened.callback(os.close, new)
            for pattern in patterns:
                for relative in _matches(root, pattern.split("/"), ""):
                    if relative not in copied and _copied(root, new, relative):
                        copied.append(relative)
                    if len(copied) > _MOST:
                        raise Refusal("copy-too-large", f"more than {_MOST} files match {', '.join(patterns)}",
                                      hint="name fewer files")  # fmt: skip
    except OSError as error:
        raise Refusal("copy-failed", f"cannot copy {error.filename or 'a file'} from {source}",
                      context=error.strerror or str(error)) from None  # fmt: skip
    return copied


def _matches(directory: int, parts: list[str], prefix: str) -> Iterator[str]:
    for name in sorted(os.listdir(directory)):
        if name == ".git" or not fnmatchcase(name, parts[0]):
            continue
        if name.startswith(".") and not parts[0].startswith("."):
            continue  # as in a shell
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if len(parts) == 1:
            if stat.S_ISREG(mode):
                yield prefix + name
        elif stat.S_ISDIR(mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                yield from _matches(below, parts[1:], f"{prefix}{name}/")
            finally:
                os.close(below)


def _copied(root: int, target: int, relative: str) -> bool:
    """Copies one file; False when it is there already, or is no plain file any more."""
    try:
        reading = walk.reopened(walk.open_inside(root, relative, os.O_PATH | os.O_NOFOLLOW))
    except OSError:
        return False  # replaced meanwhile
    if reading is None:
        return False
    try:
        found = os.fstat(reading)
        if found.st_nlink != 1:
            return False  # a second name may be that of a file elsewhere
        content = walk.read_up_to(reading, LARGEST)
    finally:
        os.close(reading)
    if content is None:
        raise Refusal("copy-too-large", f"{relative} is larger than {LARGEST >> 20} MiB",
                      hint="copy it yourself, or leave it out")  # fmt: skip
    directory, _, name = relative.rpartition("/")
    try:
        around = walk.make_beneath(target, directory)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return False  # a tracked file or link is where the directory was
        raise
    try:
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=around)
    except FileExistsError:
        return False
    finally:
        os.close(around)
    try:
        walk.write_all(writing, content)
        os.fchmod(writing, stat.S_IMODE(found.st_mode) & 0o777)
    finally:
        os.close(writing)
    return True


IDENTITY = {"GIT_COMMITTER_NAME": "paddock", "GIT_COMMITTER_EMAIL": "paddock@localhost"}
"""Who moves refs, for their reflogs: Paddock, in the user's repository."""


class Creation:
    """Makes worktrees."""

    def __init__(self, store: WorktreeRepository, state: str, user: UserConfig, step: Step, say: Say) -> None:
        self._user = user
        self._store = store
        self._state = state
        self._step = step
        self._say = say

    def add(self, parent: Checkout, ticket: str, options: Options) -> Worktree:
        """Makes a worktree and gives it back, ready.

        Refusals: those of `propose`, of `copy_untracked` and of git. What was begun is undone then.
        """
        for pattern in options.copy:
            check_patterns(pattern)
        git = Git.open(parent.root)
        with self._store.repository_lock(parent.common_dir) as shared:
            worktree = propose(git, parent, ticket, options)
            with self._store.worktree_lock(worktree.worktree_id) as own:
                if own is None:
                    raise Refusal(
                        "worktree-busy", f"another process is working on {worktree.path}", hint="try again later"
                    )
                self._step("record")
                # Left by a session in a worktree that was here before, and that is gone.
                swap.remove_journal(private.directory_of(self._state, worktree.worktree_id))
                self._store.save(worktree)
                kept = os.dup(own)  # beyond the repository's lock
            try:
                self._reserve(worktree, parent, options, shared)
            except BaseException:
                self._undone(worktree, kept)
                raise
        try:
            try:
                self._populate(worktree, options, kept)
                self.place(worktree)
            except OSError as error:
                raise _unwritable(worktree, error) from None
        except BaseException:
            with self._store.repository_lock(parent.common_dir):
                self._undone(worktree, kept)
            raise
        try:
            return self.finish(worktree)  # what fails from here on is finished by the next command
        finally:
            os.close(kept)

    def _undone(self, worktree: Worktree, kept: int) -> None:
        try:
            self.undo(worktree)
        finally:
            os.close(kept)

    def _reserve(self, worktree: Worktree, parent: Checkout, options: Options, shared: int) -> None:
        """Branches, git directories and the staging directory."""
        zero = "0" * len(worktree.main.base)
        shares = {os.fspath(part.common_dir) for part in worktree.submodules}
        for store in module_stores.find(parent.common_dir) if shares else ():
            if store.path in shares:
                self._step(f"release {store.path}")
                module_stores.release(parent.common_dir, store)
        try:
            for part in worktree.parts:
                if part.branch_made:
                    self._step(f"branch {part.name}")
                    self._create_branch(part, zero, shared)
                self._step(f"metadata {part.name}")
                admin_files.make(part, worktree.worktree_id, zero)
            self._step("staging")
            with Inside(os.path.dirname(worktree.staging)) as around:
                around.create_directory(worktree.staging.name)
        except OSError as error:
            raise _unwritable(worktree, error) from None
        self._step("sparse")
        self._sparse(worktree, parent, options, shared)

    def _create_branch(self, part: Part, zero: str, shared: int) -> None:
        git = Git(os.fspath(part.common_dir), hold=(shared,))
        message = f"branch: Created from {part.base}"
        git.run("update-ref", "-m", message, str(part.ref), part.base, zero, environment=IDENTITY)

    def _sparse(self, worktree: Worktree, parent: Checkout, options: Options, shared: int) -> None:
        git = Git(os.fspath(worktree.main.git_dir), hold=(shared,))
        if options.sparse is not None:
            directories = "".join(f"{directory}\n" for directory in options.sparse)
            with Scratch() as empty:  # there are no files yet that it could move
                sparse = git.variant(own_tree=empty.name)
                sparse.run("sparse-checkout", "set", "--cone", "--stdin", input=os.fsencode(directories))
            return
        patterns = Present().read(f"{parent.git_dir}/info/sparse-checkout", 16 << 20)
        if patterns is None or parent.git_dir == git.git_dir:
            return
        above = Git(parent.git_dir)
        if above.run("config", "--type=bool", "--get", "core.sparseCheckout", ok=(0, 1)).out != b"true\n":
            return
        with Inside(git.git_dir) as directory:
            directory.make("info", mode=0o777)
            directory.create("info/sparse-checkout", patterns)
        for key in ("core.sparseCheckout", "core.sparseCheckoutCone"):
            value = above.run("config", "--type=bool", "--get", key, ok=(0, 1)).out.decode("ascii").strip()
            if value:
                git.run("config", "--worktree", key, value)

    def _populate(self, worktree: Worktree, options: Options, kept: int) -> None:
        """Writes all files into the staging directory."""
        staging = os.fspath(worktree.staging)
        for part in worktree.parts:
            self._step(f"files {part.name}")
            self._say(f"checking out {part.base[:12]}" + (f" of submodule {cited(part.name)}" if part.name else ""))
            place = os.path.join(staging, os.path.relpath(part.path, worktree.path)) if part.name else staging
            self._check_out(part, place, staging, options, kept)
        if options.copy and worktree.parent_path is not None:
            self._step("copies")
            for name in copy_untracked(os.fspath(worktree.parent_path), staging, options.copy):
                self._say(f"copied {name}")

    def _check_out(self, part: Part, place: str, staging: str, options: Options, kept: int) -> None:
        git_dir = os.fspath(part.git_dir)
        if part.name and not _is_empty(staging, os.path.relpath(place, staging)):
            raise Refusal("submodule-unavailable", f"submodule {cited(part.name)} has no empty directory of its own",
                          context=f"{place} is something else in the commit that contains it")  # fmt: skip
        admin_files.write_pointer(place, git_dir)
        settings = (*options.settings(), *self._user.of_filters(options.filters))
        try:
            if options.filters:  # programmes of the user's, which no jail of ours could run
                tree = written.agents_tree(place, self._state)
                if tree:
                    raise Refusal("worktree-filter", f"no filter is run in {place}",
                                  context=f"commands in jails can write {tree}, and could redirect it",
                                  hint="make the worktree elsewhere, or without --filter")  # fmt: skip
                git = Git(git_dir, own_tree=place, filters=options.filters, settings=settings, hold=(kept,))
                git.run("read-tree", "-m", "-u", "HEAD", environment=IDENTITY)
            else:
                check_out(JailedGit(git_dir, place, settings=settings, hold=(kept,)))
        except GitFailed as failure:
            failure.hint = "nothing was left behind; free some space, or check the repository: git fsck"
            raise

    def place(self, worktree: Worktree) -> None:
        """Gives a worktree whose files are complete its own name."""
        self._step("rename")
        with Inside(os.path.dirname(worktree.path)) as around:
            if around.exists(worktree.main.path.name):
                raise Refusal("worktree-exists", f"{worktree.path} was made by another process in the meantime",
                              hint="check what it is, then run the command again")  # fmt: skip
            around.move(worktree.staging.name, worktree.main.path.name)

    def finish(self, worktree: Worktree) -> Worktree:
        """Says that a worktree which is in its place is ready. May be repeated."""
        ready = worktree.with_state(State.READY)
        self._step("note")
        admin_files.record(ready)
        for part in ready.parts:
            self._step(f"unlock {part.name}")
            admin_files.unlock(part)
        self._step("ready")
        self._store.save(ready)
        return ready

    def undo(self, worktree: Worktree) -> None:
        """Takes back what was begun; the repository's lock is held. Branches go only where nobody has moved them."""
        self._step("undo files")
        failures = remove_staging(worktree)
        for part in reversed(worktree.parts):
            self._step(f"undo metadata {part.name}")
            failures += admin_files.discard(part, worktree.worktree_id)
        if failures:
            raise Refusal("worktree-unremovable", f"some of {worktree.staging} cannot be removed",
                          context=in_rows(*failures[:10]), hint="paddock worktree repair, once it can be")  # fmt: skip
        for part in reversed(worktree.parts):
            common_dir = os.fspath(part.common_dir)
            if part.branch_made and part.ref is not None and admin_files.checked_out(common_dir, part.ref) is None:
                self._step(f"undo branch {part.name}")
                Git(common_dir).run("update-ref", "-d", part.ref, part.base, ok=(0, 1, 128))
        self._step("undo record")
        self._store.forget(worktree.worktree_id)
        self._store.remove_worktree_lock(worktree.worktree_id)


def _unwritable(worktree: Worktree, error: OSError) -> Refusal:
    name = error.filename or worktree.path
    return Refusal("worktree-unwritable", f"cannot make {name}", context=error.strerror or str(error))


def _is_empty(staging: str, place: str) -> bool:
    """Whether there is an empty directory: a gitlink leaves one; what a sparse checkout leaves out is made now."""
    try:
        with Inside(staging) as root:
            if not root.exists(place):
                root.make(place, mode=0o777)
        with Inside(staging, place) as directory:
            return not directory.names()
    except OSError:
        return False  # a link or a file is there, or on the way


def remove_staging(worktree: Worktree) -> list[str]:
    """Removes what is in the place beside a worktree, where another session may be writing (see `remove_tree`)."""
    try:
        with Inside(os.path.dirname(worktree.staging)) as around:
            failures = around.remove_tree(worktree.staging.name)
            if failures and not around.is_directory(worktree.staging.name):
                around.remove(worktree.staging.name)  # a session has put a link there, or a file
                return []
            return failures
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [f"{worktree.staging}: {error.strerror}"]
