"""Making private git directories, and bringing existing ones up to what the host has: the slow road of `lease`.

Called by whoever has the directory's lock alone, so no session lives there. Killed at any point it leaves either no
record, then everything is made again; or the old one, then the next call does the same once more.
"""

import errno
import os
from collections.abc import Mapping

from launcher.safefs import walk
from launcher.safefs.guarded_files import Inside
from launcher.safefs.remove import remove_tree
from launcher.vcs.added_packs import sweep
from launcher.vcs.git import Git
from launcher.vcs.harvest import agent_refs
from launcher.vcs.private import contents, copied_settings, record, ref_files
from launcher.vcs.private.contents import Source, reached
from launcher.vcs.private.record import (
    GIT,
    MOUNTED,
    POINTERS,
    Record,
    Repository,
    Stamp,
    form_of,
    pin,
    stamp,
    unusable,
    write,
)
from policy.errors import Refusal
from policy.pasted import cited
from policy.plan import Plan


def renew(directory: str, plan: Plan, before: Record | None) -> tuple[str, ...]:
    """Makes everything in `directory` right for `plan`, and records it. Returns what the user should know.

    Args:
        plan: bound or not.

    Refusals: state-unusable, git-head-unreadable, git-config-unreadable, git-file-unreadable.
    """
    mask = os.umask(0o077)
    try:
        return _Renewal(directory, plan, before, mask).run()
    except OSError as error:
        raise unusable(directory, error) from None
    finally:
        os.umask(mask)


class _Renewal:
    def __init__(self, directory: str, plan: Plan, before: Record | None, mask: int) -> None:
        self.mask = mask & ~0o700  # what the user wants for files in his repository, but never one that he cannot open
        self.directory = directory
        self.plan = plan
        self.kind = _kind(plan)
        self.before = before
        self.seen: dict[str, str] = dict(before.seen) if before is not None else {}
        self.stamps: dict[str, Stamp] = {}
        self.quiet = False
        self.warnings: list[str] = []
        self.signed = record.read_signed(directory)

    def run(self) -> tuple[str, ...]:
        self._sweep()
        sources = self._sources()
        old = self._old(sources)
        self.quiet = bool(old) and self._settled(sources)
        if not old:
            repositories = self._make_all(sources)
        else:
            repositories = [self._one(source, old.get(source.private), name) for name, source in sources]
        identity = os.path.basename(self.directory)
        os.umask(self.mask)
        for repository in repositories:
            sweep(repository.common_dir)
            if repository.base is not None and not self.plan.review:  # which leaves nothing in the user's repository
                ref_files.pin(repository.common_dir, pin(identity), repository.base)
        os.umask(0o077)
        self._pointers(sources)
        seen = tuple(self.stamps.values())
        write(self.directory, Record(self.plan.worktree, self.kind, form_of(self.plan), tuple(repositories), seen))
        return tuple(self.warnings)

    def _sweep(self) -> None:
        given = f"{self.directory}/{contents.GIVEN}"
        places = [self.directory, f"{self.directory}/{POINTERS}", given]
        places += [f"{given}/{name}" for name in os.listdir(given)] if os.path.isdir(given) else []
        for place in filter(os.path.isdir, places):
            for name in os.listdir(place):
                if name.startswith(".new-") or name.endswith(".tmp"):
                    _remove(f"{place}/{name}")

    def _sources(self) -> list[tuple[str, Source]]:
        """The plan's repositories with their submodules' names."""
        top = f"{self.plan.worktree}/.git" if self.kind == "main" else f"{self.directory}/{GIT}"
        if form_of(self.plan) != MOUNTED:
            top = f"{self.directory}/{GIT}"
        shown = {source: target.replace("@git", self.directory, 1) for source, target, _ in self.plan.binds}
        found = []
        for name, path, git_dir, common_dir, private, object_format, stores in self.plan.repositories:
            inside = f"{top}/{private}" if private else top
            borrowed = tuple(shown.get(store, store) for store in stores)
            where = (path, git_dir, common_dir, private, object_format, inside, borrowed)
            found.append((name, Source(*where, worktree=self.plan.worktree)))
        return found

    def _old(self, sources: list[tuple[str, Source]]) -> dict[str, Repository]:
        """What the record knows, when the private git directory is still one, and that of the worktree's repository.

        Else nothing, and it is put aside: work may be in it that nobody has harvested.
        """
        place = f"{self.directory}/{GIT}"
        if self.before is None:
            if os.path.lexists(place):  # left by a call that was killed before any session could start
                _remove(place)
            return {}
        found, why = {repository.private: repository for repository in self.before.repositories}, "was damaged"
        try:
            with Inside(place) as directory:
                if contents.whole(directory):
                    top, own = found.get(""), next(source for _, source in sources if not source.private)
                    if top is None or (top.common_dir, top.object_format) == (own.common_dir, own.object_format):
                        return found
                    why = f"is that of {top.common_dir}"
        except OSError as error:
            self.warnings.append(f"{place}: {error.strerror}")
        aside = f"{self.directory}/docked-{os.urandom(4).hex()}"  # for which `worktree status` and `remove` look
        try:
            os.rename(place, aside)
            where = f"; the old one is in {aside}"
        except FileNotFoundError:  # as when a call was killed between this and what follows
            why, where = "was missing", ""
        self.warnings.append(f"the private git directory of {self.plan.worktree} {why} and is created again{where}")
        return {}

    def _make_all(self, sources: list[tuple[str, Source]]) -> list[Repository]:
        """Makes the whole under another name, so that it is there complete or not at all."""
        self.seen = {}
        fresh = f"{self.directory}/.new-{os.urandom(4).hex()}"
        os.mkdir(fresh, 0o700)
        try:
            repositories = [self._made(fresh, name, source) for name, source in sources]
            os.rename(fresh, f"{self.directory}/{GIT}")
        except BaseException:
            _remove(fresh)
            raise
        return repositories

    def _made(self, tree: str, name: str, source: Source) -> Repository:
        loose, head = self._look(source)
        effective = self._settings(source)
        with Inside(tree) as top:
            if source.private:
                if top.exists(source.private):
                    top.move(source.private, f"{source.private}.replaced-{os.urandom(4).hex()}")
                top.make(source.private)
        with Inside(tree, source.private) as directory:
            contents.make(directory, source, head)
            contents.alternates(directory, source.alternates)
            contents.all_refs(directory, source, contents.given_place(self.directory, source.private), loose)
            contents.files(directory, source)
            contents.configure(directory, source, effective)
        return self._repository(name, source, head)

    def _one(self, source: Source, old: Repository | None, name: str) -> Repository:
        """One repository of a private git directory that exists."""
        if old is None or (old.common_dir, old.object_format) != (source.common_dir, source.object_format):
            return self._made(f"{self.directory}/{GIT}", name, source)
        try:
            directory = Inside(f"{self.directory}/{GIT}", source.private)
        except OSError:
            self.warnings.append(
                f"the private git directory of submodule {cited(name)} was missing, and is created again"
            )
            return self._made(f"{self.directory}/{GIT}", name, source)
        with directory:
            if not contents.whole(directory):
                self.warnings.append(
                    f"the private git directory of submodule {cited(name)} was damaged, and is created again"
                )
                return self._made(f"{self.directory}/{GIT}", name, source)
            loose, head = self._look(source)
            contents.alternates(directory, source.alternates)
            if not self.quiet:
                contents.point_back(directory, source)
                contents.configure(directory, source, self._settings(source))
                contents.files(directory, source)
            # Before the host's refs are shown: among them is where the agent's own branch is now.
            start = self._advanced(directory, source, old, head)
            packed = f"{source.common_dir}/packed-refs"
            contents.new_refs(
                directory,
                source,
                contents.given_place(self.directory, source.private),
                loose,
                old.branch,
                packed_too=self.seen.get(packed) != self.stamps[packed][1],
            )
            return self._repository(name, source, start)

    def _advanced(self, directory: Inside, source: Source, old: Repository, head: ref_files.Head) -> ref_files.Head:
        """Where the agent's work starts from now."""
        known = ref_files.Head(old.branch, old.base)
        agent, own = _of_agent(self.directory, old)
        if head == known or agent == head:
            return head
        if agent == known or _arrived(source, old, agent, own, head, self.signed):
            if contents.advance(directory, source, head):
                self.warnings.append(
                    f"{source.path}: a merge, cherry-pick or revert that the agent had begun was dropped, because "
                    "the branch has moved outside in the meantime"
                )
            return head
        where = f"on {head.branch.removeprefix('refs/heads/')}" if head.branch is not None else "detached"
        self.warnings.append(
            f"{source.path} is {where} at {(head.oid or 'no commit')[:12]} outside, while the agent's work there "
            "is not harvested yet: it continues where it stopped, and differs from the files that you see"
        )
        return known

    def _settled(self, sources: list[tuple[str, Source]]) -> bool:
        """Whether nothing but refs has changed since the record was written; then its other stamps stay."""
        prefixes = tuple(f"{source.common_dir}/refs" for _, source in sources)
        others = [
            item for item in self.seen.items()
            if not item[0].endswith(("/HEAD", "/packed-refs")) and not item[0].startswith(prefixes)
        ]  # fmt: skip
        if copied_settings.__file__ not in self.seen or any(stamp(path) != (path, seen) for path, seen in others):
            return False
        self.stamps.update((item[0], item) for item in others)
        return True

    def _look(self, source: Source) -> tuple[dict[str, str], ref_files.Head]:
        """The host's refs, with the stamps taken before they are read: what changes in between is read once more."""
        self._stamp(ref_files.watched(source.git_dir, source.common_dir, ref_files.loose(source.common_dir)[1]))
        return ref_files.loose(source.common_dir)[0], ref_files.head(source.git_dir, source.common_dir)

    def _settings(self, source: Source) -> copied_settings.Settings:
        """The host's settings, with the stamps of all that is taken over beside them."""
        self._stamp(contents.watched(source, None))
        effective = copied_settings.effective(source.git_dir, source.worktree)
        self._stamp(contents.watched(source, effective))
        return effective

    def _stamp(self, paths: list[str]) -> None:
        for path in paths:
            self.stamps.setdefault(path, stamp(path))

    def _repository(self, name: str, source: Source, head: ref_files.Head) -> Repository:
        stores = next(repository[6] for repository in self.plan.repositories if repository[4] == source.private)
        return Repository(name, source.path, source.git_dir, source.common_dir, source.private, head.branch, head.oid,
                          source.object_format, stores)  # fmt: skip

    def _pointers(self, sources: list[tuple[str, Source]]) -> None:
        os.makedirs(f"{self.directory}/{POINTERS}", mode=0o700, exist_ok=True)
        for at, (_, source) in enumerate(sources):
            content = os.fsencode(f"gitdir: {source.inside}\n")
            path = f"{self.directory}/{POINTERS}/{at}"
            try:
                with open(path, "rb") as file:
                    same = file.read() == content
            except FileNotFoundError:
                same = False
            if not same:
                walk.replace(path, content)


def _of_agent(directory: str, repository: Repository) -> tuple[ref_files.Head | None, str | None]:
    """Where the agent's HEAD and its own branch stand; None for what cannot be read."""
    try:
        with agent_refs.opened(directory, repository) as refs:
            own = None if repository.branch is None else refs.branch(repository.branch)
            return ref_files.Head(*refs.head()), own
    except Refusal:
        return None, None


def _arrived(
    source: Source,
    old: Repository,
    agent: ref_files.Head | None,
    own: str | None,
    head: ref_files.Head,
    standing: Mapping[str, str],
) -> bool:
    """Whether the host's branch has all that the agent committed on it, or on a detached HEAD beside it.

    The user has merged what a harvest had kept. The trusted repository is asked: it has not what was never harvested.
    Where the agent has gone back behind his start (reset, bisect), the files have too, so he stays there.
    """
    if agent is None or agent.branch not in (old.branch, None) or head.oid is None:
        return False
    oids = {agent.oid} if old.branch is None else {agent.oid, own}
    git = Git(source.git_dir)
    refs = () if old.branch is None else (old.branch,)
    given = () if old.base is None else (old.base,)
    return all(
        oid is not None
        and (
            oid == old.base
            or (reached(git, standing.get(oid, oid), tips=(head.oid,), refs=refs) and not reached(git, oid, tips=given))
        )
        for oid in oids
    )


def _kind(plan: Plan) -> str:
    """The kind of the plan's worktree, as `launcher.vcs.checkout` names them."""
    _, path, git_dir, common_dir, *_ = plan.repositories[0]
    if git_dir == f"{path}/.git":
        return "main"
    return "linked" if git_dir != common_dir else "submodule"


def _remove(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    elif failures := remove_tree(path):
        raise OSError(errno.ENOTEMPTY, failures[0], path)
