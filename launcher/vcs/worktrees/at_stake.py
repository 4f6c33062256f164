"""What a worktree's removal would leave or lose: commits that no branch has, and repositories that git does not report.

The index names a submodule, and git leaves the content of that directory to the submodule. A repository in it may be an
agent's: it is moved as it is, and no unjailed git is ever started on it.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.safefs.guarded_files import Inside
from launcher.safefs.remove import remove_tree
from launcher.vcs import checkout, gitlinks, refs, written
from launcher.vcs.disk import Present
from launcher.vcs.git import Git, Object
from launcher.vcs.harvest import further
from launcher.vcs.harvest.agent_refs import is_pseudo
from launcher.vcs.harvest.decide import join, kept_places
from launcher.vcs.harvest.head_log import left_behind
from launcher.vcs.private import contents, lock, planted, record, ref_files, swap, withheld, writers
from launcher.vcs.private.pointer import Holder
from launcher.vcs.worktrees import admin_files, damage, module_stores
from launcher.vcs.worktrees.models import Part, Unharvested, Worktree
from policy import launch
from policy.errors import Refusal, in_rows
from policy.pasted import quoted
from policy.plan import beneath

_OWN = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
"""Refs that each worktree has to itself (git-worktree(1), "refs")."""
_GOING = ("refs/paddock/*", "refs/stash", "refs/replace/*", *(f"{place}*" for place in _OWN))
"""Refs that are nobody's answer to where a commit is: Paddock's own (what a private git directory borrows is pinned by
one that goes with the worktree), those of a worktree's own, and what is mostly made to be dropped."""
_TIPS = tuple(f"rebase-{how}/{name}" for how in ("merge", "apply") for name in ("autostash", "orig-head"))
"""Files of a worktree's own git directory that hold ids of commits, besides those beside HEAD (`is_pseudo`)."""
_TO_DO = ("sequencer/todo", "rebase-merge/git-rebase-todo")
_MOST_LOGGED = 100
_MOST_LEFT = 1000
_PICK = re.compile(rb"^[a-z]+ (?:-[cC] )?([0-9a-f]{4,64})\b", re.MULTILINE)
"""What is to be picked: mostly the beginnings of ids."""


class Kept(NamedTuple):
    """Commits of an agent that a harvest kept in a ref of their own, and that nobody has merged.

    Attributes:
        ref: full name.
        path: root of the part of the worktree that it belongs to.
        store: git directory that has the ref.
        commits: how many of them no branch, tag or remote-tracking branch has.
    """

    ref: str
    path: str
    store: str
    commits: int

    def __str__(self) -> str:
        """The fact, in words."""
        are = "commit of the agent is" if self.commits == 1 else "commits of the agent are"
        return f"{self.commits} {are} kept in {self.ref}"

    @property
    def join(self) -> str:
        """The command that joins it with what is checked out."""
        return join(self.ref, self.path)

    @property
    def apply(self) -> str:
        """The command that applies it, for a stash."""
        return further.stash_command(self.ref, self.path)

    @property
    def name(self) -> str:
        """The command that gives it a branch, where there is no checkout to join it with; NAME is the user's."""
        return f"git --git-dir {quoted(self.store)} branch NAME {quoted(self.ref)}"

    @property
    def give_up(self) -> str:
        """The command that removes the ref."""
        return f"git -C {quoted(self.path)} update-ref -d {quoted(self.ref)}"


def unreadable(part: Part) -> tuple[str, ...]:
    """Full paths of refs of a part that name no commit: its branch, what is checked out, and those of its own."""
    git_dir, common_dir = os.fspath(part.git_dir), os.fspath(part.common_dir)
    names = {part.ref or "", admin_files.head(git_dir).removeprefix("ref: ")}
    heads = sorted(name for name in names if name.startswith("refs/heads/"))
    found = ((common_dir, refs.unreadable(common_dir, *heads)), (git_dir, refs.unreadable(git_dir, *_OWN)))
    return tuple(f"{top}/{ref}" for top, names in found for ref in names)


def loose(part: Part, broken: Sequence[str], *held: str) -> tuple[str, ...]:
    """Commits to which nothing but the own git directory of a part leads: HEAD, its own refs, what is under way.

    Where a ref is `broken`, what logs have instead, and the ref that pins what sessions borrow. A branch, tag,
    remote-tracking branch or note holds what it reaches, unless it is broken; `held` do, too. Of HEAD's log, where it
    was on no branch and something else was checked out; what was amended, rebased or reset was given up.
    """
    git_dir = os.fspath(part.git_dir)
    git, present = Git(git_dir), Present()
    tips = ("HEAD", *filter(is_pseudo, sorted(os.listdir(git_dir))), *_TIPS)
    said = [os.fsdecode(present.read(f"{git_dir}/{name}", 1 << 16) or b"").split() for name in tips]
    names = [oid for words in said if all(map(ref_files.is_oid, words)) for oid in words]
    picks = [
        pick.decode() for name in _TO_DO for pick in _PICK.findall(present.read(f"{git_dir}/{name}", 1 << 20) or b"")
    ]
    trusted, log = Git(os.fspath(part.common_dir)), f"{git_dir}/logs/HEAD"
    if not git.ref("HEAD", ok=(0, 1, 128)):  # its branch is broken, or gone: what it had is where HEAD was last
        names.append(damage.last_commit(trusted, [log]))
    for path in broken:
        top = git_dir if beneath(path, git_dir) else trusted.git_dir
        names.append(damage.last_commit(trusted, [f"{top}/logs{path.removeprefix(top)}"]))
    known = (trusted.ref(record.pin(part.worktree_id)), *damage.logged([log])[:_MOST_LOGGED]) if broken else ()
    names += (oid for oid in known if damage.is_commit(trusted, oid))
    names += [one.oid for one in git.objects(picks) if one.kind == "commit"]
    names += (one.oid for one in _own(git) if one.kind == "commit")
    began = part.ref if part.branch_made or part.ref is None else ""
    is_loose = not admin_files.head(git_dir).startswith("ref: ")
    left = left_behind(present.read(log, damage.MOST_LOG) or b"", began, loose=is_loose)
    names += [*dict.fromkeys(reversed(left))][:_MOST_LEFT]
    return _unheld_of(git, tuple(dict.fromkeys(filter(ref_files.is_oid, names))), *held)


def _unheld_of(git: Git, oids: tuple[str, ...], *held: str) -> tuple[str, ...]:
    """Those of these commits that nothing holds, nor one before: by halves, as there may be thousands."""
    if not oids or not _unheld(git, oids, *held):
        return ()
    half = len(oids) // 2
    first = _unheld_of(git, oids[:half], *held)
    return (*first, *_unheld_of(git, oids[half:], *held, *first)) if half else oids


def _unheld(git: Git, oids: Sequence[str], *held: str) -> bool:
    """Whether some commit of these is held neither by `held` nor by a ref that counts: of thousands, too, one process.

    Of an incomplete history nobody can tell: True.
    """
    asked = "".join(f"{word}\n" for word in (*oids, *(f"^{each}" for each in (*held, *_cut_off(git)))))
    words = ("rev-list", "--ignore-missing", "--max-count=1", "--stdin", "--not", *elsewhere())
    listed = git.run(*words, input=asked.encode(), ok=(0, 128))
    return bool(listed.out or listed.status)


def _cut_off(git: Git) -> list[str]:
    """Where a shallow history ends (gitrepository-layout(5)): it was fetched, by its id too, which no ref has then."""
    said = (Present().read(f"{git.common_dir}/shallow", 1 << 20) or b"").split()
    return [oid for oid in map(os.fsdecode, said) if ref_files.is_oid(oid)]


def _own(git: Git) -> list[Object]:
    """What the refs lead to that a worktree has to itself."""
    return git.objects(git.refs(*_OWN).values()) if ref_files.may_be_below(git.git_dir, [*_OWN]) else []


def no_commits(part: Part) -> list[str]:
    """Ids of what these refs of a part lead to besides commits: tags, with what they say, files and directories."""
    return [one.oid for one in _own(Git(os.fspath(part.git_dir))) if one.kind in ("tag", "tree", "blob")]


def beside(git: Git, part: Part, worktree: Worktree, head: str | None) -> tuple[Kept, ...]:
    """Commits that harvests of a part have kept, and that `head`, which is checked out there, does not contain."""
    # The part's own id, too: a session may have taken a submodule as its worktree.
    places = [f"{place}/" for owner in {worktree.worktree_id, part.worktree_id} for place in kept_places(owner)]
    found: list[Kept] = []
    if not ref_files.may_be_below(os.fspath(part.common_dir), places):
        return ()
    for ref in sorted(git.refs(*places)):
        known = [f"^{head}"] if head is not None else []
        commits = int(git.text("rev-list", "--ignore-missing", "--count", ref, *known, "--not", *elsewhere()))
        if commits:
            found.append(Kept(ref=ref, path=os.fspath(part.path), store=os.fspath(part.common_dir), commits=commits))
    return tuple(found)


def stashed(part: Part, worktree: Worktree) -> tuple[Kept, ...]:
    """Stashes of an agent that harvests have taken over, the oldest first. They are the user's, and not at stake."""
    store = os.fspath(part.common_dir)
    if not os.path.isdir(f"{store}/objects"):
        return ()
    places = [f"{further.stash_place(owner)}/" for owner in {worktree.worktree_id, part.worktree_id}]
    if not ref_files.may_be_below(store, places):
        return ()
    names = Git(store).refs("--sort=version:refname", *places)
    return tuple(Kept(ref=name, path=os.fspath(part.path), store=store, commits=1) for name in names)


def elsewhere(*but: str) -> list[str]:
    """Arguments of git-rev-list(1) for the refs that count, without `but`. HEADs do not: `--all` brings the own one."""
    return [*(f"--exclude={pattern}" for pattern in (*_GOING, *but)), "--glob=refs/*"]


def stores(worktree: Worktree) -> Iterator[tuple[str, str]]:
    """Git directories of submodules that go with those of a worktree: name and path.

    `git submodule update` makes them there, in a linked worktree, where Paddock has not.
    """
    for part in filter(lambda part: part.linked, worktree.parts):
        prefix = f"{part.name}/" if part.name else ""
        yield from checkout.module_dirs(f"{part.git_dir}/modules", prefix, Present(), deepest=4096)


def own_stores(worktree: Worktree) -> tuple[tuple[str, str], ...]:
    """Submodules that keep commits nowhere but in such a store, as far as is known of its remotes: name, and a tip.

    The tip is "" where git cannot tell.
    """
    found = []
    for name, store in stores(worktree):
        git = Git(store)
        words = ("rev-list", "--ignore-missing", "--max-count=1", "--all", *git.ref("HEAD", ok=(0, 1, 128)).split())
        done = git.run(*words, "--not", *_told(git, worktree), ok=(0, 128))
        if done.out or done.status or refs.unreadable(store, "refs/heads/", "refs/tags/", "refs/stash"):
            found.append((name, "" if done.status else done.out.decode().strip()))
    return tuple(found)


def _told(git: Git, worktree: Worktree) -> Iterator[str]:
    """Arguments of git-rev-list(1) for what remotes have, but for those that go, too, or have gone already.

    One that borrows from what goes does not keep it. A remote's tracking refs may lie below another one's.
    """
    places = (worktree.path, *(os.fspath(part.git_dir) for part in worktree.parts))
    base = checkout.configured_worktree(git.git_dir, Present()) or git.git_dir
    remotes: dict[str, list[tuple[str, str]]] = {}
    words = ("config", "--local", "-z", "--get-regexp", r"^remote\..*\.(url|pushurl|fetch)$")
    for entry in os.fsdecode(git.run(*words, ok=(0, 1)).out).split("\0")[:-1]:
        key, _, value = entry.partition("\n")
        name, _, what = key.rpartition(".")
        remotes.setdefault(name, []).append((what, value))
    stay: list[str] = []
    lost: list[str] = []
    for entries in remotes.values():
        urls = [url for what, url in entries if what != "fetch"]
        local = [os.path.join(base, url.removeprefix("file://")) for url in urls if _is_local(url)]
        tracking = (value.partition(":")[2] for what, value in entries if what == "fetch")
        found = stay if urls and not any(_goes(path, places) for path in local) else lost
        found += (ref for ref in tracking if ref.startswith("refs/remotes/"))
    yield from _cut_off(git) if stay else ()
    for ref in stay:
        yield from (f"--exclude={other}" for other in lost)
        yield f"--glob={ref[:-1]}[{ref[-1]}]" if ref[-1:].isalnum() else f"--glob={ref}"


def _goes(path: str, places: Sequence[str], deepest: int = 5) -> bool:
    """Whether a repository is in one of these places, or borrows from one, or is not there."""
    place = os.path.realpath(path)
    if not os.path.exists(place) or not deepest or any(beneath(place, each) for each in places):
        return True
    stores = (place, f"{place}/objects", f"{place}/.git/objects")
    return any(_goes(other, places, deepest - 1) for objects in stores for other in _lenders(objects))


def _lenders(objects: str) -> Iterator[str]:
    """Where a directory of objects borrows others from (gitrepository-layout(5), objects/info/alternates)."""
    for line in (Present().read(f"{objects}/info/alternates", 1 << 16) or b"").splitlines():
        if line and b"\0" not in line:  # an agent may have written it
            yield os.path.realpath(os.path.join(objects, os.fsdecode(line)))


def _is_local(url: str) -> bool:
    """Whether git takes a URL for a path (git-clone(1), GIT URLS)."""
    return url.startswith("file://") or ":" not in url.partition("/")[0]


def astray(part: Part) -> str:
    """A repository in the git directory of a part where git makes none: it would go with that. "" for none."""
    disk, own = Present(), os.fspath(part.git_dir)
    tops = (f"{own}/{name}" for name in disk.listing(own) or () if name not in ("modules", "objects"))
    inner = (path for top in tops for path in (top, *(path for _, path in checkout.module_dirs(top, "", disk))))
    return next(filter(_is_repository, inner), "")


def borrows(worktree: Worktree, kept: Sequence[str]) -> str:
    """A git directory among those to be `kept`, or in them, or a store that goes, with objects in the files that go."""
    for path in (*kept, *(store for _, store in stores(worktree))):
        for git_dir in (path, *(inner for _, inner in checkout.module_dirs(f"{path}/modules", "", Present()))):
            if any(beneath(place, worktree.path) for place in _lenders(f"{git_dir}/objects")):
                return git_dir
    return ""


def is_gone(part: Part) -> bool:
    """Whether the files of a part are not there, or were replaced; `git submodule deinit` leaves an empty directory."""
    place = os.fspath(part.path)
    if os.path.realpath(place) != place or not os.path.isdir(place):
        return True
    with suppress(OSError):
        return bool(part.name) and not os.listdir(place)
    return False


def was_taken_away(part: Part, worktree: Worktree) -> bool:
    """Whether git has taken the files of a submodule away that are gone: by `deinit`, or with the one around it."""
    place = os.fspath(part.path)
    if not part.name or os.path.lexists(place):
        return bool(part.name) and os.path.realpath(place) == place and os.path.isdir(place)
    around = _around(part, worktree)
    if around.name and is_gone(around):
        return was_taken_away(around, worktree)
    return not _is_named(part, worktree)


DOCKED = "docked-"
"""How the names begin of what `Holder.put_aside` has moved beside a private git directory."""


def in_places_of_submodules(gitlinks: list[bytes], part: Part, worktree: Worktree) -> list[str]:
    """Places in a part that its index has for an unknown submodule, and that hold anything; relative to the part."""
    known = {os.fspath(inner.path) for inner in worktree.submodules}
    found: list[str] = []
    for entry in gitlinks:
        place = os.fsdecode(entry.partition(b"\t")[2])
        if f"{part.path}/{place}" not in known and place not in found and _holds(os.fspath(part.path), place):
            found.append(place)
    return found


def _holds(root: str, place: str) -> bool:
    """Whether there is anything but an empty directory. Links are not followed."""
    above, _, name = place.rpartition("/")
    try:
        holder = Inside(root, above)
    except PermissionError:
        return True
    except OSError:
        return False  # gone; or a link or a file is on the way, which git itself names
    try:
        with holder:
            if not holder.exists(name):
                return False
        with Inside(root, place) as directory:
            return bool(directory.names())
    except OSError:
        return True  # no directory, or none that could be looked into


def with_populated(worktree: Worktree) -> Worktree:
    """The worktree with submodules that the user has populated since it was made, as `git submodule update` does.

    Their git directories (`stores`) lie below the worktree's own, where no agent writes; so they are looked at like any
    other, also where their files have gone. One takes the place of what Paddock had made there, if that is what git
    finds there now (after `deinit`).
    """
    known = {os.fspath(part.path): part for part in worktree.parts}
    taken = {part.name for part in worktree.parts}
    found: dict[str, Part] = {}
    for name, store in stores(worktree):
        place = checkout.configured_worktree(store, Present()) or ""
        own = (store,) if place in known else (store, None)  # what its `.git` leads to, if it has one
        others = place in found or module_stores.leads(place) not in own
        if others or not beneath(place, worktree.path):
            place = f"{worktree.path}/.git/{name}"  # it has no files
        head = Git(store).ref("HEAD", ok=(0, 1, 128))
        found[place] = Part(
            name=known[place].name if place in known else f"{name} (made by git)" if name in taken else name,
            worktree_id=launch.worktree_id(place),
            path=Path(place),
            common_dir=Path(store),
            git_dir=Path(store),
            branch=admin_files.branch(store),
            branch_made=False,
            base=head or "0" * len(worktree.main.base),
        )
    inner = (found.pop(os.fspath(part.path), part) for part in worktree.submodules)
    return worktree._replace(submodules=(*inner, *found.values())) if found else worktree


def replaced(row: Worktree, worktree: Worktree) -> list[Part]:
    """What Paddock had made of submodules in the places of which git finds another repository now."""
    return [part for part in row.submodules if part not in worktree.submodules and os.path.isdir(part.git_dir)]


def put_aside(part: Part, entries: list[str], directory: str) -> list[str]:
    """Moves git directories and pointers out of a part, as they are. Returns where each is now."""
    root = os.fspath(part.path)
    done: list[str] = []
    for entry in entries:
        place, name = os.path.split(entry)
        entry = f"{root}/{entry}"
        try:
            with Inside(root, place) as inside:
                closed = [each for each in inside.names() if each.startswith(f"{name}.{DOCKED}")]
            if closed:  # nobody may enter it, so no backup has it
                raise _stuck(
                    os.path.join(root, place, closed[0]), f"it was moved there from {name} when a session ended"
                )
            with Holder(root, os.path.join(root, place)) as holder:
                if (found := holder.stat(name)) is None:
                    continue
                os.makedirs(directory, 0o700, exist_ok=True)
                if found.st_dev != os.stat(directory).st_dev:  # it would only be renamed where it is, and go after all
                    raise _stuck(entry, f"it is on another file system than {directory}")
                aside = holder.put_aside(directory, name)
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
                   hint="move it elsewhere, then run the command again")  # fmt: skip


def follow(private: str, stores: str, now: str, warn: Callable[[str], None]) -> None:
    """Has a private git directory borrow from where submodules' stores are now, which its record has below `stores`."""
    known = None
    with suppress(Refusal):  # it is damaged, and kept as it is
        known = record.read(private) if os.path.isdir(private) else None
    for repository in known.repositories if known is not None else ():
        if repository.common_dir.startswith(stores):
            try:
                with Inside(f"{private}/{record.GIT}", repository.private) as inside:
                    contents.alternates(inside, [store.replace(stores, now) for store in repository.stores])
            except OSError as error:
                warn(f"{private}/{record.GIT}/{repository.private} cannot borrow from {now}: {error.strerror}")


def docked(directory: str) -> tuple[str, ...]:
    """Git directories that a session's end has put beside the private one in `directory`: commits may be in them."""
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


# Submodules whose files are there without the `.git` that leads to their git directory.
#
# Where no mount holds it, a command can move a submodule away and back. What led to its private git directory goes with
# that, and the next session knows the submodule as one that is not populated: nothing but its own git directory says
# what it is. `git submodule update` would clone it again, which fails for the files in the way.


def lost_pointers(worktree: Worktree, state: str) -> list[Part]:
    """The submodules of a worktree that have lost their `.git`, innermost first."""
    if swap.is_swapped(record.directory_of(state, worktree.worktree_id)):
        return []  # a session lives, and has it lead elsewhere
    whole = with_populated(worktree)
    found = [part for part in whole.submodules if _has_lost_its_pointer(part, worktree) and _is_named(part, whole)]
    return sorted(found, key=lambda part: len(part.path.parts), reverse=True)


def _has_lost_its_pointer(part: Part, worktree: Worktree) -> bool:
    git_dir, place = os.fspath(part.git_dir), os.fspath(part.path)
    if os.path.realpath(place) != place or checkout.place_of(git_dir, Present()) != place:
        return False  # gone, or a link is in its place; or it is elsewhere now
    try:
        inside = os.path.relpath(place, worktree.path)
        with Holder(worktree.path, place) as holder, Inside(worktree.path, inside) as files:
            return bool(files.names()) and not swap.leads_to(holder, git_dir)
    except OSError:
        return False  # closed to us: whoever looks at its files says so


def _is_named(part: Part, worktree: Worktree) -> bool:
    """Whether the index around a submodule has it still; else the files there are those of another branch, say."""
    around = _around(part, worktree)
    return os.fspath(part.path.relative_to(around.path)) in gitlinks.in_index(Git(os.fspath(around.git_dir)))


def _around(part: Part, worktree: Worktree) -> Part:
    outers = [outer for outer in worktree.parts if outer.path in part.path.parents]
    return max(outers, key=lambda outer: len(outer.path.parts))


def restore_pointers(worktree: Worktree, state: str, say: Callable[[str], None]) -> list[swap.Docked]:
    """Puts back the `.git` of submodules that have lost it. What a session could have put into them goes aside first.

    Args:
        say: gets a line for each repository in the place of a nested submodule that was moved.

    Refusals: session-running; submodule-planted; dock-failed.
    """
    if not lost_pointers(worktree, state):
        return []
    with writers.excluded(state, [worktree.path], frozen=True):
        return [_restored(part, worktree, state, say) for part in lost_pointers(worktree, state)]


def _restored(part: Part, worktree: Worktree, state: str, say: Callable[[str], None]) -> swap.Docked:
    git_dir, place = os.fspath(part.git_dir), os.fspath(part.path)
    directory = record.directory_of(state, worktree.worktree_id)
    if not os.path.isdir(directory):
        directory = f"{state}/planted"
        with Inside(state) as inside:
            inside.make("planted")
    # From then on git around it enters it, and what is in the places that its index names.
    for name in gitlinks.in_index(Git(git_dir)):
        inner = f"{place}/{name}"
        if written.agents_tree(f"{inner}/.git", state):
            aside = planted.of_place(place, inner, git_dir, directory)
            if aside is not None:
                say(planted.report_line(inner, aside))
    try:
        with Holder(worktree.path, place) as holder:
            relative = not os.path.lexists(f"{git_dir}/commondir")
            return swap.Docked(place, "restored", swap.point(holder, git_dir, directory, relative=relative))
    except OSError as error:
        raise Refusal(
            "dock-failed", f"{place}/.git cannot be repaired", context=error.strerror or str(error),
            hint=f"do not run git in {place} until it is repaired: paddock worktree repair",
        ) from None  # fmt: skip


# The private git directory of an earlier worktree at the same place.
#
# A private git directory is found by the path of its worktree. A new worktree there would inherit the commits, the
# branch and the stashes of the earlier one; so those are moved to where no session looks.

_ORDINARY = {
    record.RECORD, record.GIT, record.POINTERS, record.STORE, record.HARVEST, record.SWAPPED_NOW, record.SIGN,
    record.KEEP, record.STRICT, record.SETTLED, record.NAME, lock.LOCK, contents.GIVEN, withheld.NOTE,
    further.TAKEN, further.MADE, further.DISMISSED,
}  # fmt: skip
"""What lies beside a private git directory; anything else has been put there to be kept."""


def clear_earlier(state: str, root: str, worktree_id: str, unharvested: Unharvested) -> str:
    """Makes room for a new worktree. Returns where the earlier one's private git directory is now; "" for removed.

    Refusals: worktree-in-use (a session lives in it); state-unusable.
    """
    directory = record.directory_of(state, worktree_id)
    if not os.path.isdir(directory):
        return ""
    try:
        descriptor = lock.opened(directory)
        try:
            if not lock.alone(descriptor, wait=False):
                raise Refusal("worktree-in-use", f"a session of an earlier worktree at {root} is running",
                              hint="paddock exec --list")  # fmt: skip
            swap.remove_journal(directory)  # it speaks of `.git` files that are gone
            if _is_empty(directory, root, unharvested):
                failures = remove_tree(directory)
                if failures:
                    raise _unusable(directory, in_rows(*failures[:10]))
                return ""
            return _put_aside(state, directory, worktree_id)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from None


def _is_empty(directory: str, root: str, unharvested: Unharvested) -> bool:
    if not _ORDINARY.issuperset(os.listdir(directory)):
        return False
    try:
        return not unharvested(Path(root))
    except Refusal:
        return False  # what cannot be read is not for us to give up


def _put_aside(state: str, directory: str, worktree_id: str) -> str:
    target = f"{state}/removed/{worktree_id}-{os.urandom(4).hex()}"
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    try:
        known = record.read(directory)
    except Refusal:
        known = None
    for repository in known.repositories if known is not None else ():
        # The pin goes by the worktree's id, and the new one takes it for itself.
        git = Git(repository.common_dir) if os.path.isdir(repository.common_dir) else None
        if git is not None and repository.base:
            git.run("update-ref", record.pin(os.path.basename(target)), repository.base, ok=(0, 1, 128))
    os.rename(directory, target)
    return target


def _unusable(directory: str, why: str) -> Refusal:
    return Refusal("state-unusable", f"{directory} of an earlier worktree cannot be moved aside", context=why,
                   hint="move it away, or name another --path")  # fmt: skip
