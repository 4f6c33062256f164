"""Harvest: what an agent committed in its private git directory becomes commits of the main repository.

In this order: everything crosses into quarantines and is checked (`gather`), it is decided what happens to each ref
(`decide`), that is written down (`parts.write`), packs are added, refs moved as one outcome (`refs.prepared`), the
checkouts' indexes brought forward, the record renewed. Until the journal is written nothing is visible; from then on
whoever harvests next finishes it. So it can be killed anywhere and called as often as one likes.

It takes the directory's lock for itself alone, so that no session of the worktree lives meanwhile; or finds all of its
sessions frozen, and takes over what is committed by then.
"""

import os
import random
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from launcher.safefs.guarded_files import Inside
from launcher.vcs import gitlinks, jailed_git, refs
from launcher.vcs.added_packs import Held, sweep
from launcher.vcs.disk import readable
from launcher.vcs.git import EMPTY_TREE, Git, GitFailed
from launcher.vcs.harvest import agent_refs, checkout_index, decide, further, gather, lfs, outstanding, parts
from launcher.vcs.harvest.agent_refs import HEADS, TAGS, plausible
from launcher.vcs.harvest.gather import Found
from launcher.vcs.harvest.parts import Handoff, HarvestResult, Limits, Part, PartResult
from launcher.vcs.harvest.signing import Signatures
from launcher.vcs.private import contents, lock, planted, swap, withheld, writers
from launcher.vcs.private import record as records
from launcher.vcs.private.contents import reached
from policy.errors import Refusal, printable
from policy.handoff import refused
from policy.pasted import cited, joined, quoted

# A submodule that an agent has added: what the user is told of it.


def added_submodule_note(part: Part, where: str) -> str:
    """How the submodule at `where`, relative to `part.path`, gets files outside, if it can.

    What lies behind a link may be the user's own, so nobody is sent there.
    """
    seen = gitlinks.reach(part.root, f"{part.path}/{where}")
    note = f"the agent has added the submodule {cited(where)}, "
    if seen.link:
        return note + (
            f"and {seen.link_in_words}: what is behind it is not a submodule, so neither remove it nor populate it; "
            "have the agent revert its commit, or remove that submodule from it"
        )
    return note + (
        "and its content is the agent's own: read .gitmodules, and remove that directory; "
        f"then: {gitlinks.update_command(part.path, where)}"
    )


# The agent's own branch is not there, or unreadable: what that means, and how to go on.


def missing_branch_note(part: Part) -> tuple[str, str, str]:
    """What is lost, and two commands: one lists the agent's commits, one lets the branch begin again."""
    run, ref = f"paddock run --worktree {quoted(part.path)} -- sh -c", quoted(part.ref)
    name = printable(part.ref.removeprefix("refs/heads/"))
    log = 'cat "$(git rev-parse --git-path logs/HEAD)"'
    # By its file: where git cannot read a branch it does not write it either.
    again = f'rm -rf "$(git rev-parse --git-path {ref})"; git update-ref {ref} {part.base}'
    return (
        f"the agent has removed {name} or made it unreadable; none of it was harvested, and the main repository's "
        "is unchanged",
        f"next: list the agent's commits: {run} {quoted(log)}",
        f"next: restore the branch (or end with another commit's id): {run} {quoted(again)}",
    )


_MESSAGE = "paddock: harvest"
_MOST_NAMED = 5
_MOVED = ("harvest-refs-moved", "try again: paddock worktree harvest")
_PATIENCE = 10.0
_PAUSE = (0.01, 0.2)
"""Seconds. Harvests of other worktrees share a submodule's repository, and may bring the very same commits to it."""
_OWN = ("refs/heads/", "refs/tags/", "refs/remotes/")
"""Where the user has what is his."""
_TICK = 20_000_000  # nanoseconds: the times of files come from a clock that ticks more slowly


def harvest(
    directory: str,
    *,
    limits: Limits | None = None,
    branches: Mapping[str, str] | None = None,
    handoff: Handoff = lambda change: None,
    strict: bool | None = False,
    sign: bool | None = None,
    follow: bool | None = None,
    dismiss: Sequence[str] = (),
    step: Callable[[str], None] = lambda what: None,
) -> HarvestResult:
    """Takes over what the private git directory in `directory` holds.

    Args:
        limits: bounds of what is taken over.
        branches: further branches to take over: the agent's name for one -> its name in the main repository. In front
            of the agent's name may stand a submodule's, with a colon.
        handoff: finds hand-off files among the changes.
        strict: refuse when it finds any; None where sessions demanded it (`withheld.is_strict`), and then also what
            they have left to the user (`withheld.held`).
        sign: commits are made anew with the user's signature; None for what the sessions were told that made them.
        follow: new branches and tags come along, and the checkout follows HEAD; None for what the session was told.
        dismiss: further branches of the agent's, named as in `branches`, that are not to be spoken of any more.
        step: told each step before it is done, for progress.

    Returns:
        What happened. `busy` when a session is alive in the worktree: the last one to end harvests.

    Refusals: the work is not taken over, for the reason that it gives. It stays where it is.
    """
    directory = os.path.realpath(directory)
    if records.read(directory) is None:
        return HarvestResult("", "nothing")
    with writers.held(directory) as use, jailed_git.many():
        if use is writers.Use.BUSY:
            record = records.read(directory)
            return HarvestResult(record.worktree if record else "", "busy")
        released: tuple[str, ...] = ()
        if use is writers.Use.ENDED:
            swap.dock(directory)  # a session that was killed could not
            released = lock.release(f"{directory}/{records.GIT}")
        looked = time.time_ns() - _TICK
        wanted = records.noted(directory, records.SIGN) is not None if sign is None else sign
        follows = records.noted(directory, records.KEEP) is None if follow is None else follow
        held = None
        if strict is None:
            strict, held = withheld.is_strict(directory), withheld.held(directory)
        run = _Run(directory, limits or Limits(), handoff, strict=strict, held=held, sign=wanted, follow=follows,
                   ended=use is writers.Use.ENDED, step=step)  # fmt: skip
        result = run.all(branches or {}, dismiss)
        if not (result.branches or run.unsigned):  # nothing waits any more
            records.forget(directory, records.SIGN)
        if use is writers.Use.ENDED and result.state != "gone" and held is None:
            records.forget(directory, records.STRICT)
        outstanding.settle(directory, looked)
        return replace(result, notes=(*result.notes, *run.notes, *released))


class _Run:
    def __init__(
        self,
        directory: str,
        limits: Limits,
        handoff: Handoff,
        *,
        strict: bool,
        held: Refusal | None,
        sign: bool,
        follow: bool,
        ended: bool,
        step: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._id = os.path.basename(directory)
        self._place = f"{directory}/{records.HARVEST}"
        self._limits = limits
        self._handoff = handoff
        self._strict = strict
        self._held = held
        self._follow = follow
        self._ended = ended
        self._sign = sign
        self._signatures = Signatures(directory, step, wanted=sign)
        self._gits: dict[str, Git] = {}
        self._names: dict[str, further.Names] = {}
        self._step = step
        self._shown: dict[str, dict[str, str]] = {}
        self._joined: dict[str, str] = {}
        self._gone = False
        self.notes: list[str] = []
        self.unsigned: list[str] = []
        """Tags that are left behind, as they name commits without a signature."""

    def all(self, branches: Mapping[str, str], dismiss: Sequence[str]) -> HarvestResult:
        """Finishes what an earlier harvest began, then harvests."""
        os.makedirs(self._place, 0o700, exist_ok=True)
        begun = parts.read(self._place)
        if begun is not None:
            for entry in begun.entries:
                places = [
                    (name, update.new) for update in entry.updates for name in (update.ref, update.beside) if name
                ]
                refs.clear_locks(self._git(entry.git_dir), places)
            self._finish(begun)
        self._sweep()
        record = records.read(self._directory)
        assert record is not None
        for common in {repository.common_dir for repository in record.repositories}:
            sweep(common)
        looked = time.time_ns() - _TICK
        result = self._new(record, dict(branches) | dict.fromkeys(dismiss, ""))
        if result.state in ("nothing", "kept", "gone"):
            # Its time says up to when all is known: further branches are told once, not at each session's end.
            os.utime(f"{self._directory}/{records.RECORD}", ns=(looked, looked))
        self._sweep()
        if begun is not None and result.state == "nothing":
            return begun.result
        return result

    def _new(self, record: records.Record, branches: Mapping[str, str]) -> HarvestResult:
        founds, notes, others = self._look(record, branches)
        gathered = self._gathered(founds, notes)
        told = tuple(one for found in gathered for one in found.handoff)
        if told and self._strict:
            hint = "read them, then: paddock worktree harvest; the work stays in the private git directory until then"
            raise refused(told, "not harvested", hint)
        if self._held is not None and (gathered or any(found.follow for found in founds)):
            raise self._held
        self._signatures.put(founds, gathered, record.worktree)
        for found in gathered:
            notes += [note for where in found.added for note in self._added(found, where)]
        entries: list[parts.Entry] = []
        results: list[PartResult] = []
        for found in reversed(gathered):  # submodules before what holds them
            assert found.quarantine is not None
            number, size = lfs.take(self._directory, found.part, found.git, found.quarantine)
            if number:
                what = f"{number} Git LFS object{'s' * (number > 1)} of {found.part.label}"
                notes.append(f"{what} taken into {printable(lfs.lfs_store(found.git))}: {readable(size)}")
            entry, said = decide.decide(found, self._id)
            if entry is not None:
                entries.append(entry)
            results += reversed(said)
        entries += [decide.only_followed(found) for found in founds if found.follow and found not in gathered]
        results.reverse()
        notes += [
            f"the worktree is on {printable(_short(entry.head[1]))} now, following the agent; to go back: "
            f"git switch {quoted(_short(entry.head[0]))}"
            for entry in entries if entry.head is not None
        ]  # fmt: skip
        kept = any(result.kept for result in results)
        moved = any(entry.updates or entry.head for entry in entries)
        state = "kept" if kept else "harvested" if moved else "gone" if self._gone else "nothing"
        outcome = HarvestResult(
            record.worktree,
            state,
            tuple(results) if moved or kept else (),
            tuple(others),
            told if moved else (),
            (*notes, *(result.note for result in results if result.kept)),
        )
        if entries:
            written = parts.Journal(tuple(entries), secrets.token_hex(6), outcome)
            self._step("journal")
            parts.write(self._place, written)
            self._finish(written)
        if stashed := tuple(oid for found in gathered for oid in found.stashes.values()):
            further.note_stashes(self._directory, stashed)
        if self._joined:
            for repository in record.repositories:
                if repository.private in self._joined:
                    words = (
                        "-m",
                        _MESSAGE,
                        records.pin(self._id),
                        self._signatures.standing(self._joined[repository.private]),
                    )
                    self._git(repository.git_dir).run("update-ref", *words)
            self._renew(self._joined)
        return outcome

    def _gathered(self, founds: list[Found], notes: list[str]) -> tuple[Found, ...]:
        """What crosses. A stash that is refused is no reason to leave commits behind."""
        try:
            gathered = gather.gather(self._directory, self._place, founds, self._limits, self._handoff, self._step)
            for found in gathered:
                self._clear_of_unsigned(found)
                self._clear_of_paths(found, notes)
                self._clear_of_misnamed(found, notes)
        except Refusal as refusal:
            what = "the agent's stash is" if any(found.stashes for found in founds) else ""
            if any(found.offered for found in founds):
                what = "the agent's further branches, tags and stash are"
            if not what:
                raise
            for found in founds:
                found.stashes = {}
                found.added, found.further_files, found.handoff = (), 0, {}
                found.extra = {ref: oid for ref, oid in found.extra.items() if ref not in found.offered}
                found.offered, found.follow = {}, ()
            self._sweep()
            gathered = gather.gather(self._directory, self._place, founds, self._limits, self._handoff, self._step)
            notes.append(f"{what} not harvested: {refusal.message}: {refusal.context}; {refusal.hint}")
        if self.unsigned:
            more = ", ..." if len(self.unsigned) > _MOST_NAMED else ""
            shown = ", ".join(map(cited, self.unsigned[:_MOST_NAMED]))
            notes.append(f"the agent's tags name commits without a signature, and are not harvested: {shown}{more}")
        for found in gathered:
            path = found.part.path if found.part.name else ""
            for name in found.stashes:
                notes.append(f"the agent's stash is in {name}; to apply it: {further.stash_command(name, path)}")
        return gathered

    def _clear_of_unsigned(self, found: Found) -> None:
        """Leaves tags behind that say in themselves which commit they name, where a signed one stands for that."""
        assert found.quarantine is not None
        tags = [ref for ref in found.offered if ref.startswith(TAGS) and ref in found.extra]
        asked = (f"{found.extra[ref]}^{{commit}}" for ref in tags)
        answers = found.git.objects(asked, found.quarantine.environment) if tags else []
        for ref, one in zip(tags, answers, strict=True):
            if one.oid not in (found.extra[ref], self._signatures.standing(one.oid)):
                del found.extra[ref], found.offered[ref]
                self.unsigned.append(_short(ref))

    def _clear_of_paths(self, found: Found, notes: list[str]) -> None:
        """Gives new names that are paths the worktree's: git takes such a word for the branch where no file is there.

        Paths in the checkout, before and after the harvest, and in the main one, where the user may do the same.
        """
        new = [ref for ref in found.extra if ref in found.offered and ref not in found.standing]
        if not new:
            return
        assert found.quarantine is not None
        part, git, main = found.part, found.git, self._git(found.part.common_dir)
        names, prefix = self._names[part.private], further.prefix_of(part.root)
        asked = {further.parted(place)[1] for ref in new for place in (ref, further.prefixed(ref, prefix))}
        head = git.ref("HEAD")
        after = self._signatures.standing(found.follow[1]) if found.follow else found.new or head
        for one, tree in dict.fromkeys(((git, head), (git, after), (main, main.ref("HEAD")))):
            tree = tree or EMPTY_TREE[part.digits]
            names.paths |= further.tracked(one, tree, asked, found.quarantine.environment)
        with suppress(OSError), Inside(part.path) as checkout:
            names.paths |= {name for name in asked if checkout.exists(name)}
        for ref in new:
            name = further.parted(ref)[1]
            if name not in names.paths:
                continue
            oid = found.extra.pop(ref)
            del found.offered[ref]
            if place := names.place(ref, prefix):
                found.extra[place] = found.offered[place] = oid
            else:
                notes.append(f"the agent's {cited(name)} is not harvested: git would take it for a path")
            if found.follow and found.follow[0] == ref:
                found.follow = ()
                notes.append(_elsewhere(part, ref))

    def _clear_of_misnamed(self, found: Found, notes: list[str]) -> None:
        """Leaves annotated tags behind whose own name is not that of their ref: git-describe(1) prints their own."""
        tags = {ref: oid for ref, oid in found.extra.items() if ref.startswith(TAGS) and ref in found.offered}
        if not tags:
            return
        assert found.quarantine is not None
        kinds = found.git.objects(tags.values(), found.quarantine.environment)
        names = [ref for ref, one in zip(tags, kinds, strict=True) if one.kind == "tag"]
        misnamed: list[str] = []
        contents = found.git.contents([tags[ref] for ref in names], found.quarantine.environment)
        for ref, content in zip(names, contents, strict=True):
            own = os.fsdecode(b"".join(content.split(b"\n", 3)[2:3]).removeprefix(b"tag "))
            if own != ref.removeprefix(TAGS):
                del found.extra[ref], found.offered[ref]
                misnamed.append(f"{cited(ref.removeprefix(TAGS))} ({cited(own)})")
        if misnamed:
            more = ", ..." if len(misnamed) > _MOST_NAMED else ""
            shown = ", ".join(misnamed[:_MOST_NAMED])
            notes.append(f"tags of the agent have another name in themselves, and are not harvested: {shown}{more}")

    def _look(self, record: records.Record, branches: Mapping[str, str]) -> tuple[list[Found], list[str], list[str]]:
        """Every repository with its new commit and the branches asked for; what to say; branches not asked for."""
        founds: list[Found] = []
        notes: list[str] = []
        others: list[str] = []
        asked = dict(branches)
        for tip in agent_refs.read(self._directory, record):
            part = Part(tip.repository, record.worktree)
            found = self._found(part, tip)
            founds.append(found)
            if tip.new is None and part.base and not part.private:
                notes += missing_branch_note(part)
                self._gone = True
            found.stashes = self._stashes(tip.repository, found.git, notes)
            names, made = further.Names(found.git), further.made(self._directory)
            self._names[part.private] = names
            for name, oid in self._others(part, names, notes).items():
                label = f"{part.name}:{_short(name)}" if part.name else _short(name)
                if asked.get(label) == "":
                    del asked[label]
                    further.dismiss(self._directory, {f"{part.private}:{name}": oid})
                elif self._sign and name.startswith(TAGS):
                    self.unsigned.append(label)
                elif label in asked:
                    found.extra[_full(asked.pop(label))] = oid
                elif not self._offered(found, names, made, name, oid):
                    others.append(label)
            if tip.new is not None or not part.base:
                self._head(found, tip, made, notes)
        if asked:
            raise Refusal(
                "harvest-branch-unknown",
                f"the agent has no new branch {next(iter(asked))}",
                context="it has: " + (", ".join(map(printable, others)) or "none besides its own"),
            )
        return founds, notes, others

    def _offered(self, found: Found, names: further.Names, made: dict[str, str], ref: str, oid: str) -> bool:
        """Whether a further branch or tag comes along, as what the user's repository has under no name yet, or has."""
        prefix = further.prefix_of(found.part.root)
        taken = further.prefixed(ref, prefix)
        if names.refs.get(taken) in (oid, self._signatures.standing(oid)):
            return True
        if not self._follow or len(found.offered) >= further.MOST:
            return False
        place = taken if ref.startswith(HEADS) and taken in made and ref not in names.refs else ref
        now = names.refs.get(place)
        if now is not None:
            if made.get(place) != now or place in found.offered:
                return False  # the user's own
            found.standing[place] = now
        elif ref in self._given(found.part):
            return False  # he had it when the agent was shown it, and has removed it since
        else:
            place = names.place(ref, prefix)
        if place:
            found.offered[place] = oid
        return bool(place)

    def _head(self, found: Found, tip: agent_refs.Tip, made: dict[str, str], notes: list[str]) -> None:
        """Has the checkout follow the agent's HEAD to a branch that this harvest makes or an earlier one has made.

        A branch of the user's would be the sessions' own from then on, for them to move.
        """
        part, on = found.part, tip.on
        if on is None or on == part.branch or part.private:
            return
        if (
            self._follow
            and self._ended
            and part.branch
            and (on in found.offered or (on in made and made[on] == found.git.ref(on) == self._tip(part, on)))
        ):
            found.follow = (on, self._tip(part, on, inside=True))
            return
        notes.append(_elsewhere(part, on))

    def _tip(self, part: Part, ref: str, *, inside: bool = False) -> str:
        """A branch of the agent's: its commit, or unless `inside` what stands for that outside; "" for none."""
        with agent_refs.opened(self._directory, part) as refs:
            oid = refs.branch(ref) or ""
        return oid if inside else self._signatures.standing(oid)

    def _found(self, part: Part, tip: agent_refs.Tip) -> Found:
        """What of a tip is to be taken over: nothing that the user's branch, which he has moved himself, has already.

        A tip that the branch had when the agent was given it is one that the agent has put back.
        """
        found = Found(part, self._git(part.git_dir), new=(tip.new or "") if tip.moved else "")
        if not (found.new or tip.detached):
            return found
        now = found.git.ref(part.ref)
        known = (now,) if now else ()
        given = (part.base,) if part.base else ()
        merged = found.new and reached(found.git, self._signatures.standing(found.new), tips=known)
        if merged and not reached(found.git, found.new, tips=given):
            self._joined[part.private] = found.new
            found.new = ""
        at = tip.detached
        new = at is not None and at not in (part.base, tip.new)
        if at is not None and new and not reached(found.git, self._signatures.standing(at), tips=known, refs=_OWN):
            found.detached = at
        return found

    def _stashes(self, repository: records.Repository, git: Git, notes: list[str]) -> dict[str, str]:
        """Stashes that have not been taken over, with the refs they get. What keeps them from being read is told."""
        try:
            return further.stash_refs(git, self._directory, further.waiting_stashes(self._directory, repository))
        except Refusal as refusal:
            if not repository.private or refusal.reference != "harvest-git-replaced":  # of a submodule: it is gone
                notes.append(f"the agent's stash is not harvested: {refusal.message}: {refusal.context}")
            return {}

    def _others(self, part: Part, names: further.Names, notes: list[str]) -> dict[str, str]:
        """Branches of the private directory that the main repository has not, or has elsewhere; not the own one.

        And tags that it has not, where they come along. What the user has dismissed is left out until it moves.
        """
        try:
            with agent_refs.opened(self._directory, part) as refs:
                own = refs.below(HEADS[:-1])
                if self._follow:
                    own |= refs.below(TAGS[:-1])
        except Refusal as refusal:
            if refusal.reference == "harvest-refs-too-large":
                notes.append(f"further branches of {part.label} are not harvested: {refusal.context}")
            elif not part.private:
                raise
            return {}
        given, unwanted = self._given(part), further.dismissed(self._directory)
        found = {
            name: oid
            for name, oid in own.items()
            if given.get(name) not in (oid, self._signatures.standing(oid))  # first: most are as they were shown
            and name != part.branch
            and unwanted.get(f"{part.private}:{name}") != oid
            and not (name in given or name in names.refs if name.startswith(TAGS) else
                     names.refs.get(name) in (oid, self._signatures.standing(oid)))
            and further.plausible_new(name)
        }  # fmt: skip
        return dict(sorted(found.items()))

    def _given(self, part: Part) -> dict[str, str]:
        """The refs that the agent was shown: what he did not move is no work of his, though the user may have.

        Read once: he may have made hundreds of thousands to look up in them.
        """
        if part.private not in self._shown:
            found = self._shown[part.private] = {}
            place = contents.given_place(self._directory, part.private)
            for name in ("packed", "loose"):
                try:
                    with open(f"{place}/{name}", encoding="utf-8", errors="surrogateescape") as file:
                        for line in file:
                            oid, _, ref = line.rstrip("\n").replace("\t", " ").partition(" ")
                            found[ref] = oid
                except FileNotFoundError:
                    continue
        return self._shown[part.private]

    def _added(self, found: Found, where: str) -> tuple[str, ...]:
        """Of a submodule that is named for the first time: what git outside would obey there is put aside before.

        The user is told how to populate it where a commit that is taken over names it still, not one before that.
        """
        part = found.part
        place = f"{part.path}/{where}"
        aside = planted.of_place(part.path, place, part.git_dir, self._directory)
        told = () if aside is None else (planted.report_line(place, aside),)
        if not gather.names(found, where):
            return told
        return (*told, added_submodule_note(part, where))

    def _finish(self, written: parts.Journal) -> None:
        """Publishes what the journal says. May be repeated after a crash, at any point."""
        with Held(f"harvest of {self._id}, until its branches have moved", self._step) as held:
            for entry in written.entries:
                if entry.quarantine:
                    held.add(entry.quarantine, entry.common)
            self._publish(written.entries, held.locks)
        followed: dict[str, tuple[str, str]] = {}
        for entry in written.entries:
            index = entry.index if self._arrived(entry) or entry.head else None
            if entry.head is not None and self._followed(entry):
                followed[entry.private] = entry.head[1:]
            elif entry.head is not None:  # somebody was quicker; the own branch may have moved all the same
                index = (index[0], entry.tip or entry.base) if index and self._arrived(entry) else None
            if index is not None:
                self._step(f"index {entry.name or 'worktree'}")
                self._bring_forward(replace(entry, index=index), written.serial)
        self._step("record")
        known = further.made(self._directory)
        further.note_made(self._directory, {
            update.ref: update.new for entry in written.entries for update in entry.updates if not entry.private
            and update.beside and update.ref.startswith((HEADS, TAGS))
            and (update.ref in known or not update.old.strip("0"))
        })  # fmt: skip
        arrived = {entry.private: entry.base for entry in written.entries if entry.base and self._arrived(entry)}
        self._renew(arrived, followed)
        self._step("done")
        parts.remove(self._place)

    def _bring_forward(self, entry: parts.Entry, serial: str) -> None:
        """Brings the index outside to where the checkout is. A git that dies of the commit would do so each time."""
        assert entry.index is not None
        try:
            self._clear_places(entry, *entry.index)
            checkout_index.bring_forward(entry, self._git(entry.git_dir), self._place, serial, self._step)
        except GitFailed as failure:
            if failure.reference != "git-died":
                raise
            reset = ("git", "-C", entry.path, "reset")
            why = f"the index of {printable(entry.path)} stays as it was: {failure.message}"
            back = f", or {joined((*reset, '--soft', entry.index[0]))} takes the work back" if entry.index[0] else ""
            self.notes.append(f"{why}; {joined(reset)} makes it again{back}")

    def _clear_places(self, entry: parts.Entry, old: str, new: str) -> None:
        """Puts aside what git outside would obey as soon as the index names a submodule there, as any branch may."""
        for one in self._git(entry.git_dir).differences(old or EMPTY_TREE[len(new)], new):
            if one.new_mode == gitlinks.MODE != one.old_mode:
                place = f"{entry.path}/{os.fsdecode(one.path)}"
                aside = planted.of_place(entry.path, place, entry.git_dir, self._directory)
                self.notes += [planted.report_line(place, aside)] if aside is not None else ()

    def _followed(self, entry: parts.Entry) -> bool:
        """Moves HEAD outside to the branch that the agent's is on, unless somebody has moved it meanwhile."""
        assert entry.head is not None
        old, new, _ = entry.head
        git = self._git(entry.git_dir)
        now = git.text("symbolic-ref", "-q", "HEAD").strip()
        if now == old and entry.index is not None and git.ref(new) == entry.index[1]:
            self._step(f"head {entry.name or 'worktree'}")
            git.run("symbolic-ref", "-m", _MESSAGE, "HEAD", new)
            return True
        return now == new

    def _publish(self, entries: Sequence[parts.Entry], hold: Sequence[int]) -> None:
        changes = [(self._git(entry.git_dir).variant(hold=hold), entry.updates) for entry in entries]
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                with refs.prepared(changes, _MESSAGE, moved=_MOVED, step=self._step) as commit:
                    commit()
                return
            except Refusal as refusal:
                if refusal.reference != _MOVED[0] or time.monotonic() > end:
                    raise
            time.sleep(random.uniform(*_PAUSE))  # without locks, and not in step with the others

    def _git(self, git_dir: str) -> Git:
        """Git on a trusted git directory, the same for all steps: it has asked what is configured."""
        if git_dir not in self._gits:
            self._gits[git_dir] = Git(git_dir)
        return self._gits[git_dir]

    def _arrived(self, entry: parts.Entry) -> bool:
        """Whether the own ref of an entry has moved: somebody else may have been quicker, and then it has not."""
        return any(
            update.new == (entry.tip or entry.base)
            and update.beside
            and self._git(entry.git_dir).ref(update.ref) == update.new
            for update in entry.updates
        )

    def _renew(self, bases: dict[str, str], followed: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> None:
        """Writes where the agent's work goes on from: other commits, and other branches where a checkout followed."""
        record = records.read(self._directory)
        assert record is not None
        known = {each.private: (each.branch, each.base) for each in record.repositories}
        starts = known | {private: (known[private][0], base) for private, base in bases.items()} | dict(followed)
        repositories = tuple(
            old.replace(branch=starts[old.private][0], base=starts[old.private][1]) for old in record.repositories
        )
        if repositories != record.repositories:
            renewed = records.Record(record.worktree, record.kind, record.form, repositories, ())
            records.write(self._directory, renewed)

    def _sweep(self) -> None:
        """Removes what is left of quarantines and temporary files. Only where there is no journal."""
        for name in os.listdir(self._place):
            path = f"{self._place}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)


def _elsewhere(part: Part, on: str) -> str:
    return f"the agent's HEAD is on {printable(_short(on))}, not on {printable(_short(part.ref))}"


def _short(name: str) -> str:
    return name.removeprefix(HEADS)


def _full(name: str) -> str:
    full = name if name.startswith(HEADS) else HEADS + name
    if not plausible(full):
        raise Refusal("harvest-branch-name", f"{name} is not a valid branch name", hint="git help check-ref-format")
    return full
