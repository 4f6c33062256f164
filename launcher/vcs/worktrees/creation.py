"""Making a worktree, quicker than `git worktree add`, and so that a crash at any point can be finished or undone.

The row in the store comes first. Names, branches and git directories are made under the repository's lock, in a few
milliseconds; files are written outside of it, into a directory with a name of its own beside the final one, and renamed
when they are complete. So nobody ever sees half a worktree, and what is removed after a crash is certainly Paddock's.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

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
from policy.errors import Refusal

# A first checkout by several gits, each with its own part of the index.
#
# `checkout.workers` hands every file over a pipe: 12 system calls for a file in place of four, and half as much
# processor time again as one git alone. Here each git has an index of its own with a contiguous part of the
# entries, writes their files and notes the files' times there; the parts are put together to one. An entry is as
# long then as before, because what a checkout notes has a fixed size. Format: gitformat-index(5), version 2.


LEAST = 2_000
"""Files for which more than one process is worth it."""

_PLAIN = (
    ("index.version", "2"),
    ("index.sparse", "false"),
    ("index.threads", "1"),
    ("index.skipHash", "false"),
    ("core.splitIndex", "false"),
    ("core.untrackedCache", "false"),
    ("checkout.workers", "1"),
)
_HEADER = 12  # "DIRC", version, number of entries
_STAT = 40
_LONG = 0xFFF  # a name whose length the flags cannot hold


class _Index(NamedTuple):
    """An index file of version 2.

    Attributes:
        content: all of it.
        places: where each entry begins; one more for where the last one ends.
        algorithm: of object ids, and of the checksum at the end (hashlib).
    """

    content: bytes
    places: tuple[int, ...]
    algorithm: str

    @property
    def size(self) -> int:
        """How many entries there are."""
        return len(self.places) - 1

    @property
    def fixed(self) -> int:
        """Bytes of an entry before its path."""
        return _STAT + hashlib.new(self.algorithm).digest_size + 2

    def name(self, number: int) -> bytes:
        """The path of an entry: it ends with the first of the NULs that fill it up."""
        start = self.places[number] + self.fixed
        return self.content[start : self.content.index(b"\0", start)]

    def part(self, start: int, end: int) -> bytes:
        """An index file with the entries from `start` to before `end`, without extensions."""
        entries = self.content[self.places[start] : self.places[end]]
        return _with_checksum(self.content[:8] + (end - start).to_bytes(4) + entries, self.algorithm)


def check_out(git: JailedGit, workers: int, algorithm: str) -> None:
    """Writes the files of HEAD into an empty work tree, and the index."""
    with Scratch() as scratch:
        index = scratch.path("index")
        environment = {"GIT_INDEX_FILE": index}
        sparse = os.path.lexists(f"{git.git_dir}/info/sparse-checkout")
        base = None
        if workers > 1 and not sparse:
            git.variant(_PLAIN).repository.run("read-tree", "HEAD", environment=environment)
            base = _read_index(scratch.name, "index", algorithm)
        if base is None or base.size < LEAST:
            if os.path.lexists(index):
                os.unlink(index)
            git.run("read-tree", "-m", "-u", "HEAD", environment=environment)
            content = _index_content(scratch.name, "index")
        else:
            content = _by_parts(git.variant(_PLAIN), scratch, base, workers)
    _put_index(f"{git.git_dir}/index", content)


def _by_parts(git: JailedGit, scratch: Scratch, base: _Index, workers: int) -> bytes:
    """Writes the files of an index, `base`, by several gits. Returns the index that knows the files' times."""
    if b".gitattributes\0" in base.content:
        # Whole before any file beside them is written: what they say counts for it.
        names = [name for name in map(base.name, range(base.size)) if name.rpartition(b"/")[2] == b".gitattributes"]
        paths = b"".join(name + b"\0" for name in names)
        words = ("checkout-index", "-q", "-u", "-z", "--stdin")
        git.run(*words, input=paths, environment={"GIT_INDEX_FILE": scratch.path("index")})
        written = _read_index(scratch.name, "index", base.algorithm)
        assert written is not None
        base = written
    ends = [base.size * number // workers for number in range(workers + 1)]
    with Inside(git.work_tree) as inside:
        for end in ends[1:-1]:
            _make_shared(inside, base.name(end - 1), base.name(end))
    with ThreadPoolExecutor(workers) as pool:
        running = []
        for number, (start, end) in enumerate(pairwise(ends)):
            os.mkdir(scratch.path(str(number)))
            where = scratch.path(f"{number}/index")
            with open(where, "xb") as file:
                file.write(base.part(start, end))
            running.append(
                pool.submit(git.run, "checkout-index", "-q", "-u", "-a", environment={"GIT_INDEX_FILE": where})
            )
        for future in running:
            future.result()
    parts = [_index_content(scratch.name, f"{number}/index") for number in range(workers)]
    return _joined(base, parts, ends)


def _make_shared(inside: Inside, before: bytes, after: bytes) -> None:
    """Makes the directories that two neighbours have in common, which two gits would both want to make."""
    shared: list[bytes] = []
    for one, other in zip(before.split(b"/")[:-1], after.split(b"/")[:-1], strict=False):
        if one != other:
            break
        shared.append(one)
    if shared:
        inside.make(os.fsdecode(b"/".join(shared)), mode=0o777)


def _joined(base: _Index, parts: list[bytes], ends: list[int]) -> bytes:
    """The index with each part as its own git has left it."""
    pieces = [base.content[:_HEADER]]
    for content, (start, end) in zip(parts, pairwise(ends), strict=True):
        begin, size = base.places[start], base.places[end] - base.places[start]
        for entry in {start, end - 1} if end > start else ():
            at, stop = base.places[entry], base.places[entry + 1]
            # All but the times, which come first.
            if content[at - begin + _HEADER + _STAT : stop - begin + _HEADER] != base.content[at + _STAT : stop]:
                raise OSError("git changed index entries that it was not asked to change")
        pieces.append(content[_HEADER : _HEADER + size])
    digest = hashlib.new(base.algorithm).digest_size
    pieces.append(base.content[base.places[-1] : -digest])
    return _with_checksum(b"".join(pieces), base.algorithm)


def _with_checksum(content: bytes, algorithm: str) -> bytes:
    return content + hashlib.new(algorithm, content, usedforsecurity=False).digest()


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


def _index_content(directory: str, name: str) -> bytes:
    """What git in its jail has left there."""
    with Inside(directory) as inside:
        content = inside.read(name)
    if content is None:
        raise OSError(f"git wrote no index at {directory}/{name}")
    return content


def _read_index(directory: str, name: str, algorithm: str) -> _Index | None:
    """An index; None when it is of another version, or empty."""
    with Inside(directory) as inside:
        content = inside.read(name)
    if content is None or content[:8] != b"DIRC\0\0\0\2":
        return None
    return _Index(content, _places(content, _STAT + hashlib.new(algorithm).digest_size), algorithm)


def _places(content: bytes, flags: int) -> tuple[int, ...]:
    """Where each entry begins, and the last one ends. `flags`: where in an entry its flags are."""
    at = _HEADER
    found = [at]
    for _ in range(int.from_bytes(content[8:12])):
        length = (content[at + flags] << 8 | content[at + flags + 1]) & _LONG
        if length == _LONG:
            length = content.index(b"\0", at + flags + 2 + length) - at - flags - 2
        at += (flags + 2 + length + 8) & ~7  # one to eight NULs behind the name
        found.append(at)
    return tuple(found)


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
        """Restricts the main part to some directories: the ones asked for, or the parent's."""
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
            self._say(f"checking out {part.base[:12]}" + (f" of submodule {part.name}" if part.name else ""))
            place = os.path.join(staging, os.path.relpath(part.path, worktree.path)) if part.name else staging
            self._check_out(part, place, staging, options, kept)
        if options.copy and worktree.parent_path is not None:
            self._step("copies")
            for name in copy_untracked(os.fspath(worktree.parent_path), staging, options.copy):
                self._say(f"copied {name}")

    def _check_out(self, part: Part, place: str, staging: str, options: Options, kept: int) -> None:
        git_dir = os.fspath(part.git_dir)
        if part.name and not _is_empty(staging, os.path.relpath(place, staging)):
            raise Refusal("submodule-unavailable", f"submodule {part.name} has no empty directory of its own",
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
                algorithm = "sha256" if len(part.base) == 64 else "sha1"
                check_out(JailedGit(git_dir, place, settings=settings, hold=(kept,)), options.processes(), algorithm)
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
                          context="\n".join(failures[:10]), hint="paddock worktree repair, once it can be")  # fmt: skip
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
