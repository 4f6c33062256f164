"""The files of a worktree, taken from one commit to another: all of them or none, and never over the user's edits.

git's own two-way merge (git-read-tree(1), "Two Tree Merge") keeps unrelated changes in index and files, and refuses
where they overlap. It works on a copy of the index, while `index.lock` is held under our name, so that no other git
can commit from a half-way state, also after a crash. What a crash leaves is told apart from what the user wrote by
content (`sweep_remains`). Sessions may be at work in the same files: git is jailed, and everything else goes by
descriptors.
"""

import os
import stat
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.vcs import gitlinks, jailed_git
from launcher.vcs.git import Difference, GitFailed, in_gits_words
from launcher.vcs.harvest import agent_refs
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.private import contents, planted, writers
from launcher.vcs.private import record as records
from launcher.vcs.private.ref_files import Head
from launcher.vcs.scratch import Scratch
from policy.errors import Refusal, in_rows
from policy.pasted import cited

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


def sweep_remains(
    git: JailedGit,
    differences: Iterable[Difference],
    environment: dict[str, str],
    keep: Mapping[bytes, tuple[bytes, str]] | None = None,
) -> list[str]:
    """Removes the files that can be made again, and tells which paths are free now (removed, or missing before).

    Args:
        keep: mode and object by path: what is so already stays, for a full disk may not take it a second time.
    """
    wanted = keep or {}
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
                mode, oid = wanted.get(each.path, (b"", ""))
                if mode == _LINK and target == git.run("cat-file", "blob", oid).out:
                    continue
                if any(mode == _LINK and target == git.run("cat-file", "blob", oid).out for mode, oid in _sides(each)):
                    free.append(path)
                    inside.remove(path)
            elif kind == stat.S_IFREG:
                files.append((path, each))
        hashes = _hashes(git, [path for path, _ in files], environment)
        for path, each in files:
            found = hashes.get(path)
            status = inside.status(path)
            mode = b"100755" if status is not None and status.st_mode & stat.S_IXUSR else b"100644"
            if found is not None and wanted.get(each.path) == (mode, found):
                continue
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


def _stays(one: Difference) -> bool:
    return bool(one.old.strip("0") and one.new.strip("0"))


def _before(one: Difference) -> tuple[bytes, str]:
    return (one.old_mode, one.old) if one.old.strip("0") else _NOTHING


def _after(one: Difference) -> tuple[bytes, str]:
    return (one.new_mode, one.new) if one.new.strip("0") else _NOTHING


def _shown(path: str) -> str:
    return cited(path if len(path) <= _SHOWN else f"{path[:_SHOWN]}...")


def _begins_one(names: Sequence[bytes], beginning: bytes) -> bool:
    """Whether one of the sorted `names` begins so."""
    at = bisect_left(names, beginning)
    return at < len(names) and names[at].startswith(beginning)


def _is_one(names: Sequence[bytes], name: bytes) -> bool:
    at = bisect_left(names, name)
    return at < len(names) and names[at] == name


def _fold(path: bytes) -> bytes:
    return os.fsencode(unicodedata.normalize("NFC", os.fsdecode(path)).casefold())


_MARK = "paddock merge "
_NOTHING = (b"", "")
_PATH_MAX = 4096
_SHOWN = 100
_MOST_SHOWN = 8


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
        self._found: tuple[bytes, os.stat_result] | None = None
        self._before: tuple[tuple[bytes, os.stat_result] | None, str, str] | None = None
        self._there: dict[str, bool] = {}
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
        there; submodule-planted: a repository that a session could have made lies where a submodule will be;
        checkout-impossible: no file of that name, or none in that directory, can be written.
        """
        self._refuse_planted(old, new)
        self._refuse_unwritable(old, new)
        self._prepare()
        self._try(old, new)
        in_the_way = self._ignored(old, new)
        if in_the_way:
            raise self._dirty([f"{path} is ignored by git, and the merge would write it" for path in in_the_way])
        if self.locked_by() == self._run:
            self._fresh = self._content()

    def apply(self, old: str, new: str) -> None:
        """Takes files and index from `old` to `new`. `lock` must have been called.

        Refusals: submodule-planted, checkout-failed. Whatever it fails with, `take_back` undoes what was written.
        """
        self._refuse_planted(old, new)
        if self._fresh is None:
            self._prepare()
        else:
            # Nobody can have changed the index since `check`, and git looks at the files again.
            walk.replace(self._copy, self._fresh, mode=None, lasting=False)
            self._fresh = None
        self._write(old, new)
        self._publish()

    def take_back(self) -> None:
        """Undoes `apply`, also one that has failed on its way: index and files are as before it, or as edited since.

        The index of before says what the files were: git writes none whose entry is not that of the old commit. A file
        that had been deleted, and that git was to change, is there again.

        Refusals: checkout-stuck: it cannot be done either. The index stays locked.
        """
        if self._before is None:
            return
        try:
            missing = self._taken_back(*self._before)
        except (OSError, Refusal) as error:
            raise self._stuck(error.message if isinstance(error, Refusal) else str(error)) from error
        if missing:
            raise self._stuck(in_rows(*(f"{_shown(path)} is missing" for path in missing[:_MOST_SHOWN])))
        self._before = None

    def _taken_back(self, found: tuple[bytes, os.stat_result] | None, old: str, new: str) -> list[str]:
        """Files that have to be there and are not."""
        self._fresh = None
        self._drop_copy()
        if found is not None:
            _replace(self._copy, *found, lasting=False)
        indexed = self._indexed()
        touched = [
            each
            for each in self._git.differences(old, new)
            if not _is_submodule(each) and indexed.get(each.path, _NOTHING) == _before(each)
        ]
        sweep_remains(self._git, touched, self._environment, indexed)
        self._prune([each.path for each in touched], indexed)
        paths = [os.fsdecode(each.path) for each in touched if each.path in indexed]
        self._write_missing(paths)
        with Inside(self._root) as inside:
            missing = [path for path in paths if not inside.exists(path)]
        if found is None:
            self._drop(self._index)
        elif not missing:
            now = self._read()
            if now is None or now[0] != found[0]:
                self._publish()
        return missing

    def recover(self, old: str, new: str, *, back: bool) -> None:
        """`apply` where earlier attempts, in either direction, may have been killed anywhere on the way.

        Args:
            back: `new` is where the run has begun.

        Refusals: trunk-dirty, checkout-failed, submodule-planted; every file is as the index says then, or as the user
        left it. checkout-stuck, as for `take_back`.
        """
        self._refuse_planted(old, new)  # sessions may have been there since
        self._drop_copy()
        self._prepare()
        differences = list(self._git.differences(old, new))
        if back and self._is_of_before(differences):
            self._before = self._found, new, old
            self.take_back()
            return
        swept = sweep_remains(self._git, differences, self._environment)
        self._prune([each.path for each in differences], self._indexed())
        try:
            self._try(old, new)
            self._write(old, new)
        except Refusal:
            self.take_back()
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
        self._found = self._read()
        if self._found is not None:
            _replace(self._copy, *self._found, lasting=False)
        else:
            self._drop_copy()
        # 1: some files differ, which read-tree looks at itself
        jailed_git.run_patiently(self._git, "update-index", "-q", "--refresh", ok=(0, 1), environment=self._environment)

    def _read(self) -> tuple[bytes, os.stat_result] | None:
        """The index; None where there is none yet."""
        try:
            with open(self._index, "rb") as source:
                return source.read(), os.fstat(source.fileno())
        except FileNotFoundError:
            return None

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

    def _try(self, old: str, new: str) -> None:
        try:
            words = ("read-tree", "-n", "-m", "-u", old, new)
            jailed_git.run_patiently(self._git, *words, environment=self._environment)
        except GitFailed as error:
            if error.status != 128:
                raise
            raise self._dirty(in_gits_words(error.err, _MOST_SHOWN)) from None

    def _write(self, old: str, new: str) -> None:
        self._before = self._found, old, new
        try:
            done = self._git.run("read-tree", "-m", "-u", old, new, environment=self._environment)
        except GitFailed as error:
            raise self._failed(in_gits_words(error.err, _MOST_SHOWN) or [error.message]) from None
        # What it cannot remove it leaves there, and exits with 0.
        if b"unable to unlink" in done.err:
            raise self._failed(in_gits_words(done.err, _MOST_SHOWN))

    def _indexed(self) -> dict[bytes, tuple[bytes, str]]:
        """What the copy of the index has to be in the files: mode and object by path."""
        found = {}
        entries = self._git.run("ls-files", "-z", "-t", "--stage", environment=self._environment).out.split(b"\0")
        for entry in filter(None, entries):
            about, _, path = entry.partition(b"\t")
            tag, mode, oid, _ = about.split(b" ")
            if tag != b"S":  # left out of a sparse checkout
                found[path] = mode, oid.decode("ascii")
        return found

    def _is_of_before(self, differences: Sequence[Difference]) -> bool:
        """Whether the index is that from before the run; `differences`: from after it to before it.

        What the user has staged there is what the run has brought, too; git would take it for the run's and drop it.
        """
        indexed = self._indexed()
        found = [(indexed.get(one.path, _NOTHING), _before(one), _after(one)) for one in differences]
        return any(now == new for now, _, new in found) and all(now in (old, new) for now, old, new in found)

    def _prune(self, paths: Iterable[bytes], indexed: Mapping[bytes, object]) -> None:
        """Removes the directories above `paths` that are empty, and that the index has no file in, as git does."""
        names = sorted(indexed)
        with Inside(self._root) as inside:
            for path in paths:
                parts = path.split(b"/")[:-1]
                depth = 0  # from above, for an agent's path may have thousands of names
                while depth < len(parts) and inside.is_directory(os.fsdecode(b"/".join(parts[: depth + 1]))):
                    depth += 1
                for above in (b"/".join(parts[:number]) for number in range(depth, 0, -1)):
                    if os.fsdecode(above) in self._there or _begins_one(names, above + b"/"):
                        break
                    try:
                        inside.remove_directory(os.fsdecode(above))
                    except OSError:  # something is in it
                        break

    def _refuse_unwritable(self, old: str, new: str) -> None:
        """Refuses what git would find out only between two files: `read-tree -n` looks at no name that is not there."""
        changed = [each for each in self._git.differences(old, new) if not (_is_submodule(each) and _stays(each))]
        longest = os.statvfs(self._root).f_namemax
        why: list[str] = []
        with Inside(self._root) as inside:
            self._there = {"": inside.is_closed("")}
            for each in changed:
                path = os.fsdecode(each.path)
                if each.new.strip("0"):
                    if len(os.fsencode(self._root)) + 1 + len(each.path) >= _PATH_MAX:
                        why.append(f"{_shown(path)} is a path of {len(each.path)} bytes: too long")
                        continue
                    if max(map(len, each.path.split(b"/"))) > longest:
                        why.append(f"{_shown(path)} has a name of more than {longest} bytes")
                        continue
                closed = self._closed_above(inside, path)
                if closed is not None:
                    directory = f"{self._root}/{closed}" if closed else self._root
                    why.append(f"{_shown(path)} cannot be written: {_shown(directory)} is closed to changes")
                if len(why) >= _MOST_SHOWN:
                    break
            files = [each.path for each in changed if each.new.strip("0")]
            why += self._unlinkable(changed) or (self._folded(inside, files, new) if files else [])
        if why:
            raise Refusal(
                "checkout-impossible",
                f"the merge cannot be checked out in {self._root}",
                context=in_rows(*why[:_MOST_SHOWN]),
                hint="fix that in the branch (or open the directory), and merge again; nothing has been changed",
            )

    def _closed_above(self, inside: Inside, path: str) -> str | None:
        """The directory that a change of `path` changes, where it is closed; None where it is not.

        What is there is remembered, and what is not is not: an agent's path may have thousands of names.
        """
        nearest, at = "", path.find("/")
        while at != -1:
            above = path[:at]
            if above not in self._there:
                if inside.kind(above) != stat.S_IFDIR:
                    break
                self._there[above] = inside.is_closed(above)
            nearest, at = above, path.find("/", at + 1)
        return nearest if self._there[nearest] else None

    def _unlinkable(self, changed: Sequence[Difference]) -> list[str]:
        """Symbolic links that symlink(2) does not make, or makes with another text."""
        links = [each for each in changed if each.new_mode == _LINK]
        sizes = self._git.objects(each.new for each in links) if links else []
        fit = [each for each, one in zip(links, sizes, strict=True) if one.kind == "blob" and 0 < one.size < _PATH_MAX]
        texts = dict(zip(fit, self._git.contents([each.new for each in fit]), strict=True))
        return [
            f"{_shown(os.fsdecode(each.path))} is a symbolic link that cannot be made"
            for each in links
            if b"\0" in texts.get(each, b"\0")
        ]

    def _folded(self, inside: Inside, files: Sequence[bytes], new: str) -> list[str]:
        """Those of `files` that would be one with another file of the commit, in a checkout where case is nothing."""
        plain, upper = inside.status(".git"), inside.status(".GIT")
        if plain is None or upper is None or not os.path.samestat(plain, upper):
            return []
        listed = self._git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", new).out.split(b"\0")
        names = sorted((_fold(path), path) for path in listed if path)
        keys = [key for key, _ in names]
        why = []
        for path in files:
            key = _fold(path)
            parts = key.split(b"/")
            there = [other for folded, other in names[bisect_left(keys, key) :][:2] if folded == key and other != path]
            ups = (b"/".join(parts[:depth]) for depth in range(1, len(parts)))
            if there or _begins_one(keys, key + b"/") or any(_is_one(keys, up) for up in ups):
                why.append(f"{_shown(os.fsdecode(path))} differs from another file in upper and lower case alone")
        return why

    def _dirty(self, why: list[str]) -> Refusal:
        return Refusal(
            "trunk-dirty",
            f"uncommitted work in {self._root} is in the way",
            context=in_rows(*why),
            hint="commit or stash it, and merge again; nothing has been changed",
        )

    def _failed(self, why: list[str]) -> Refusal:
        return Refusal(
            "checkout-failed",
            f"git could not move all files of {self._root}",
            context=in_rows(*why),
            hint="fix that, and try again; what it has written is taken back",
        )

    def _stuck(self, why: str) -> Refusal:
        return Refusal(
            "checkout-stuck",
            f"some files of {self._root} are changed, and could not be taken back",
            context=why,
            hint=f"fix that; then: paddock merge --rollback {self._run}; until then its index is locked",
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
        self._followed: tuple[str, str] | None = None

    def check(self, old: str, new: str) -> None:
        """As `Files.check`.

        Refusals: child-busy: a frozen agent is in the middle of an operation.
        """
        self._follow(old, old)
        super().check(old, new)

    def apply(self, old: str, new: str) -> None:
        """As `Files.apply`; a frozen agent's own git follows."""
        super().apply(old, new)
        self._followed = old, new
        self._follow(old, new)

    def take_back(self) -> None:
        """As `Files.take_back`; a frozen agent's own git goes back, too.

        Refusals: child-busy: it has gone on since, as only a stopped process can.
        """
        super().take_back()
        if self._followed is not None:
            old, new = self._followed
            self._follow(new, old)
            self._followed = None

    def recover(self, old: str, new: str, *, back: bool) -> None:
        """As `Files.recover`; a frozen agent's own git follows."""
        super().recover(old, new, back=back)
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
