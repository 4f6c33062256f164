"""The files of a worktree, taken from one commit to another: all of them or none, and never over the user's edits.

git's own two-way merge (git-read-tree(1), "Two Tree Merge") keeps unrelated changes in index and files, and refuses
where they overlap. It works on a copy of the index, while `index.lock` is held under our name, so that no other git
can commit from a half-way state, also after a crash. What a crash leaves is told apart from what the user wrote by
content (`sweep_remains`). Sessions may be at work in the same files: git is jailed, and everything else goes by
descriptors.
"""

import os
import stat

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import gitlinks, jailed_git
from launcher.vcs.git import Difference, GitFailed
from launcher.vcs.harvest import agent_refs
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.private import contents, planted, writers
from launcher.vcs.private import record as records
from launcher.vcs.private.ref_files import Head
from launcher.vcs.scratch import Scratch
from policy.errors import Refusal

# What a killed checkout leaves behind, told apart from what the user wrote.
#
# git writes a file in place, so a SIGKILL leaves files of the old commit, of the new one, and one that is half
# written. Whatever is equal to one of the two, or to the beginning of one, can be made again from the objects; so
# it may be removed, and the checkout then starts from files that are either git's or missing, which it takes for
# clean.


_LINK = b"120000"


def _sides(one: Difference) -> list[tuple[bytes, str]]:
    return [side for side in ((one.old_mode, one.old), (one.new_mode, one.new)) if side[1].strip("0")]


def _is_submodule(one: Difference) -> bool:
    return gitlinks.MODE in (one.old_mode, one.new_mode)


def sweep_remains(git: JailedGit, differences: list[Difference], environment: dict[str, str]) -> list[str]:
    """Removes the files that can be made again, and tells which paths are free now (removed, or missing before)."""
    free: list[str] = []
    files: list[tuple[str, Difference]] = []
    with Inside(git.work_tree) as inside:
        for each in differences:
            if _is_submodule(each):
                continue
            path = os.fsdecode(each.path)
            kind = inside.kind(path)
            if kind is None:
                if not _is_behind_link(inside, path):  # one that the user has put there: not git's file
                    free.append(path)
            elif kind == stat.S_IFLNK:
                target = os.fsencode(inside.link(path) or "")
                if any(mode == _LINK and target == git.run("cat-file", "blob", oid).out for mode, oid in _sides(each)):
                    free.append(path)
                    inside.remove(path)
            elif kind == stat.S_IFREG:
                files.append((path, each))
        hashes = _hashes(git, [path for path, _ in files], environment)
        for path, each in files:
            found = hashes.get(path)
            if any(oid == found for _, oid in _sides(each)) or any(
                _begins(git, inside, path, oid, environment) for mode, oid in _sides(each) if mode != _LINK
            ):
                inside.remove(path)
                free.append(path)
    return free


def _is_behind_link(inside: Inside, path: str) -> bool:
    parts = path.split("/")
    return any(inside.kind("/".join(parts[:depth])) == stat.S_IFLNK for depth in range(1, len(parts)))


def _hashes(git: JailedGit, names: list[str], environment: dict[str, str]) -> dict[str, str]:
    """Object ids that files would have if they were added; one process. Names that git would take for others are not.

    It reads lines, without a carriage return at their end.
    """
    asked = [name for name in names if "\n" not in name and not name.startswith('"') and name[-1:] != "\r"]
    if not asked:
        return {}
    content = b"".join(os.fsencode(name) + b"\n" for name in asked)
    found = git.run("hash-object", "--stdin-paths", input=content, environment=environment).out.decode().splitlines()
    return dict(zip(asked, found, strict=True))


def _begins(git: JailedGit, inside: Inside, name: str, oid: str, environment: dict[str, str]) -> bool:
    """Whether the file is the beginning of what git would write for this object."""
    wanted = git.run("cat-file", "--filters", f"--path={name}", oid, environment=environment).out
    content = inside.read(name, len(wanted))
    return content is not None and wanted.startswith(content)


_MARK = "paddock merge "


class Files:
    """Index and files of one worktree.

    Args:
        run: name of the run, written into the lock.
    """

    def __init__(self, git: JailedGit, run: str) -> None:
        self._git = git
        self._root = git.work_tree
        self._run = run
        self._index = f"{git.git_dir}/index"
        self._lock = f"{git.git_dir}/index.lock"
        self._mark = f"{git.git_dir}/index.paddock-{run}"
        self._published = f"{git.git_dir}/index.paddock"
        self._scratch = Scratch()
        self._copy = self._scratch.path("index/copy")
        os.mkdir(os.path.dirname(self._copy))
        self._environment = {"GIT_INDEX_FILE": self._copy}
        self._fresh: bytes | None = None
        self._places: dict[tuple[str, str], list[str]] = {}

    def lock(self) -> None:
        """Takes the index, as git does. Taking it again in the same run (after a crash) is fine.

        Refusals: trunk-locked.
        """
        # It appears with its content: an empty one, which a full disk or a SIGKILL would leave, has no owner.
        self._drop(self._mark)
        try:
            with open(self._mark, "x", encoding="utf-8") as stream:
                stream.write(f"{_MARK}{self._run}\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.link(self._mark, self._lock)
        except FileExistsError:
            if self.locked_by() == self._run:
                return
            raise Refusal(
                "trunk-locked",
                f"another git process is working in {self._root}",
                context=f"{self._lock} exists{self._owner()}",
                hint="wait for it; if none is running, the file was left by a crash and can be removed",
            ) from None
        finally:
            self._drop(self._mark)

    def locked_by(self) -> str | None:
        """The run that holds the index; None when none of ours does."""
        try:
            with open(self._lock, encoding="utf-8", errors="replace") as stream:
                text = stream.read(200)
        except OSError:
            return None
        return text.removeprefix(_MARK).strip() if text.startswith(_MARK) else None

    def unlock(self) -> None:
        """Lets the index go, if this run holds it."""
        self._drop(self._mark)
        if self.locked_by() == self._run:
            self._drop_copy()
            os.unlink(self._lock)

    def check(self, old: str, new: str) -> None:
        """Tries the way from `old` to `new` without writing any file; needs no `lock`.

        Refusals: trunk-dirty: uncommitted work is in the way; worktree-obstructed: git would wait for ever on what is
        there; submodule-planted: a repository that a session could have made lies where a submodule will be.
        """
        self._refuse_planted(old, new)
        self._prepare()
        self._read_tree("-n", "-m", "-u", old, new)
        in_the_way = self._ignored(old, new)
        if in_the_way:
            raise self._dirty([f"{path} is ignored by git, and the merge would write it" for path in in_the_way])
        if self.locked_by() == self._run:
            self._fresh = self._content()

    def apply(self, old: str, new: str) -> None:
        """Takes files and index from `old` to `new`. `lock` must have been called.

        Refusals: trunk-dirty, submodule-planted; nothing was written then.
        """
        self._refuse_planted(old, new)
        if self._fresh is None:
            self._prepare()
        else:
            # Nobody can have changed the index since `check`, and git looks at the files again.
            walk.replace(self._copy, self._fresh, mode=None, lasting=False)
            self._fresh = None
        self._read_tree("-m", "-u", old, new)
        self._publish()

    def recover(self, old: str, new: str) -> None:
        """`apply` where earlier attempts, in either direction, may have been killed anywhere on the way.

        Refusals: trunk-dirty, submodule-planted; every file is as the index says then, or as the user left it.
        """
        self._refuse_planted(old, new)  # sessions may have been there since
        self._drop_copy()
        self._prepare()
        swept = sweep_remains(self._git, list(self._git.differences(old, new)), self._environment)
        try:
            self._read_tree("-m", "-u", old, new)
        except Refusal:
            self._write_missing(swept)
            raise
        # Where the index was at `new` already, git has had no reason to look whether the file is there.
        self._write_missing(swept)
        self._publish()

    def _refuse_planted(self, old: str, new: str) -> None:
        """Looks at the places that the index does not name as submodules yet: from then on git enters them."""
        places = self._places.get((old, new))
        if places is None:
            changed = self._git.differences(old, new)
            places = [os.fsdecode(one.path) for one in changed if one.new_mode == gitlinks.MODE != one.old_mode]
            self._places[old, new] = places
        for place in places:
            planted.refuse(self._root, f"{self._root}/{place}", self._git.git_dir)

    def _write_missing(self, paths: list[str]) -> None:
        """Writes those of `paths` that are missing and that the index has."""
        with Inside(self._root) as inside:
            missing = {os.fsencode(path) for path in paths if not inside.exists(path)}
        if not missing:
            return
        indexed = self._git.run("ls-files", "-z", "--cached", environment=self._environment).out.split(b"\0")
        content = b"".join(name + b"\0" for name in indexed if name in missing)
        words = ("checkout-index", "-q", "-u", "-z", "--stdin")
        self._git.run(*words, input=content, environment=self._environment)

    def _prepare(self) -> None:
        """Makes the copy of the index, with up-to-date file times."""
        try:
            with open(self._index, "rb") as source:
                _replace(self._copy, source.read(), os.fstat(source.fileno()), lasting=False)
        except FileNotFoundError:
            self._drop_copy()
        # 1: some files differ, which read-tree looks at itself
        jailed_git.run_patiently(self._git, "update-index", "-q", "--refresh", ok=(0, 1), environment=self._environment)

    def _drop_copy(self) -> None:
        self._drop(self._copy, f"{self._copy}.lock", self._published)

    @staticmethod
    def _drop(*paths: str) -> None:
        for path in paths:
            if os.path.lexists(path):
                os.unlink(path)

    def _content(self) -> bytes | None:
        """The copy as git in its jail has left it."""
        with Inside(os.path.dirname(self._copy)) as inside:
            return inside.read(os.path.basename(self._copy))

    def _read_tree(self, *words: str) -> None:
        try:
            run = jailed_git.run_patiently if "-n" in words else JailedGit.run
            run(self._git, "read-tree", *words, environment=self._environment)
        except GitFailed as error:
            if error.status != 128:
                raise
            raise self._dirty(error.err.decode(errors="replace").strip().splitlines()[-8:]) from None

    def _dirty(self, why: list[str]) -> Refusal:
        return Refusal(
            "trunk-dirty",
            f"uncommitted work in {self._root} is in the way",
            context="\n".join(why),
            hint="commit or stash it, and merge again; nothing has been changed",
        )

    def _ignored(self, old: str, new: str) -> list[str]:
        """Untracked files that `apply` would write over: git takes the ignored ones among them for worthless."""
        changed = self._git.differences(old, new)
        added = [os.fsdecode(each.path) for each in changed if not each.old.strip("0") and not _is_submodule(each)]
        met: list[str] = []
        with Inside(self._root) as inside:
            for path in added:
                parts = path.split("/")
                for depth in range(1, len(parts) + 1):
                    there = "/".join(parts[:depth])
                    kind = inside.kind(there)
                    if kind is None:
                        break
                    if depth == len(parts) and kind == stat.S_IFDIR:
                        met += [f"{path}/{inner}" for inner, _ in walk.files(self._root, at=there)]
                    elif depth == len(parts) or kind != stat.S_IFDIR:
                        met.append(there)
                        break
        if not met:
            return []
        words = ("ls-files", "-z", "--cached")
        known = frozenset(os.fsdecode(self._git.run(*words, environment=self._environment).out).split("\0"))
        return sorted({path for path in met if path not in known})[:8]

    def _publish(self) -> None:
        content = self._content()
        if content is None:
            raise Refusal("index-unusable", f"git in its jail wrote no index for {self._root}")
        self._drop(self._published)
        temporary = os.path.basename(self._published)
        _replace(self._index, content, os.lstat(self._copy), temporary=temporary)

    def _owner(self) -> str:
        run = self.locked_by()
        return f"; it belongs to the unfinished run {run}: paddock merge --resume" if run else ""


def _replace(path: str, content: bytes, like: os.stat_result, *, temporary: str = "", lasting: bool = True) -> None:
    """Replaces an index, with the time of another one: entries that are younger than it are looked at again."""
    mode = stat.S_IMODE(like.st_mode)
    walk.replace(path, content, temporary=temporary, mode=mode, time=like.st_mtime_ns, lasting=lasting)


# The files of an agent's worktree, taken from one commit to another, and the agent's own git with them.
#
# Where the agent's sessions have ended, the next one finds out for itself where its branch is (`private.renew`).
# A frozen one goes on where it stopped, so its branch and index are put right before it does.


_UNDER_WAY = ("index.lock", "HEAD.lock", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge",
              "rebase-apply", "sequencer")  # fmt: skip


class AgentFiles(Files):
    """Index and files of a worktree that an agent has written.

    Args:
        ref: full name of its branch, or ``HEAD``.
        agent: its private git directory (see `record`); None when it has none.
    """

    def __init__(self, git: JailedGit, run: str, ref: str, agent: str | None) -> None:
        super().__init__(git, run)
        self._ref = ref
        self._agent = agent

    def check(self, old: str, new: str) -> None:
        """As `Files.check`.

        Refusals: child-busy: a frozen agent is in the middle of an operation.
        """
        self._follow(old, old)
        super().check(old, new)

    def apply(self, old: str, new: str) -> None:
        """As `Files.apply`; a frozen agent's own git follows."""
        super().apply(old, new)
        self._follow(old, new)

    def recover(self, old: str, new: str) -> None:
        """As `Files.recover`; a frozen agent's own git follows."""
        super().recover(old, new)
        self._follow(old, new)

    def _follow(self, old: str, new: str) -> None:
        """Takes a frozen agent's branch, HEAD and index from `old` to `new`; does nothing where none is frozen.

        With `old` and `new` the same it only looks whether that is possible.
        """
        record = records.read(self._agent) if self._agent is not None else None
        if record is None or self._agent is None or not writers.sessions(self._agent):
            return
        for repository in record.repositories:
            if repository.path == self._root:
                break
        else:
            return  # it was not granted, so the agent has no git for it
        branch = None if self._ref == "HEAD" else self._ref
        with Inside(os.path.realpath(f"{self._agent}/{records.GIT}"), repository.private) as inside:
            busy = [name for name in _UNDER_WAY if inside.exists(name)]
            at = _head_of(self._agent, repository)
            if busy or at not in ((branch, old), (branch, new)):
                what = f"{busy[0]} exists" if busy else f"its HEAD is at {at[1] or 'no commit'}, not {old}"
                raise Refusal(
                    "child-busy",
                    f"the frozen agent in {self._root} is in the middle of an operation",
                    context=f"its own git directory has {what}",
                    hint="let it continue, and merge when it has finished that",
                )
            if old == new:
                return
            source = contents.Source(
                repository.path, repository.git_dir, repository.common_dir, repository.private,
                repository.object_format, "", (), record.worktree,
            )  # fmt: skip
            contents.advance(inside, source, Head(branch, new))
        moved = tuple(each.replace(base=new) if each is repository else each for each in record.repositories)
        records.write(self._agent, records.Record(record.worktree, record.kind, record.form, moved))


def _head_of(directory: str, repository: records.Repository) -> tuple[str | None, str | None]:
    try:
        with agent_refs.opened(directory, repository) as refs:
            return refs.head()
    except Refusal:
        return None, None
