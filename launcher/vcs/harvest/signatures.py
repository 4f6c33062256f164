"""What stands for the agent's commits where a harvest signs: in the worktree's own repository and its submodules.

Innermost first, because commits name those of the submodules in them.
"""

import os
from collections.abc import Callable, Iterable, Mapping

from launcher.vcs.harvest import as_user, checks, signing
from launcher.vcs.harvest.gather import Found
from launcher.vcs.quarantine import signed


class Signatures:
    """The agent's commits and the signed ones, of this harvest and of earlier ones.

    Args:
        directory: of the worktree (`record.directory_of`).
        wanted: whether new ones are to be made.
        step: told what comes next.
    """

    def __init__(self, directory: str, step: Callable[[str], None], *, wanted: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._step = step
        self._known = signed.read(directory)

    def standing(self, oid: str) -> str:
        """What stands for a commit of the agent's in the repository that it is for."""
        return self._known.get(oid, oid)

    def put(self, founds: Iterable[Found], gathered: Iterable[Found], worktree: str) -> None:
        """Puts signed commits in the place of the agent's in `gathered`, and makes them where they are wanted.

        Args:
            founds: all repositories of the worktree.
            gathered: those with something new; those around before those inside.
            worktree: its root.

        Raises:
            Refusal: harvest-sign, and those of `as_user.prepare`.
            GitFailed: git failed.
        """
        if not (self._wanted or self._known):
            return
        have = {found.part.inside: self._present(found) for found in founds}
        places = {found.part.path: found.part.inside for found in founds}
        made: dict[str, str] = {}
        for found in reversed(tuple(gathered)):
            known = have[found.part.inside]
            if self._wanted:
                new = self._made(found, known, have, places, worktree)
                made |= new
                known |= new
                found.links = tuple(known.get(oid, oid) for oid in found.links)
            found.signed = known.get(found.new, "")
            found.detached = known.get(found.detached, found.detached)
            found.extra = {name: known.get(oid, oid) for name, oid in found.extra.items()}
        if made:
            self._known |= made
            signed.write(self._directory, self._known)

    def _made(
        self,
        found: Found,
        known: Mapping[str, str],
        have: Mapping[str, Mapping[str, str]],
        places: Mapping[str, str],
        worktree: str,
    ) -> dict[str, str]:
        part = found.part
        assert found.quarantine is not None
        elsewhere = {old: new for inside, pairs in have.items() if inside != part.inside for old, new in pairs.items()}
        links: dict[str, Mapping[str, str]] = {}
        for where, oids in found.gitlinks.items():
            inside = places.get(os.path.normpath(f"{part.path}/{where}"))
            pairs = elsewhere if inside is None else have[inside]  # a submodule that was moved or added there
            if renamed := {oid: pairs[oid] for oid in oids if oid in pairs}:
                links[where] = renamed
        user = as_user.prepare(part.git_dir, part.common, worktree)
        others = frozenset(elsewhere) - known.keys()
        return signing.sign(
            found.git, found.quarantine, found.work, known, user, self._step, links=links, others=others
        )

    def _present(self, found: Found) -> dict[str, str]:
        """The known pairs whose signed commit this repository has."""
        gone = frozenset(checks.missing(found.git, tuple(self._known.values()), found.quarantine))
        return {old: new for old, new in self._known.items() if new not in gone}
