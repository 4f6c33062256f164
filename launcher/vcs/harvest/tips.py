"""What an agent has committed: for each repository of a worktree the commit to take over, and branches beside it.

Read from the private git directory without git (`agent_refs`). Launch path (a session's end): no imports but the
system calls' and the record's.
"""

from launcher.lean import os
from launcher.vcs.harvest.agent_refs import AgentRefs
from launcher.vcs.quarantine import record as records
from launcher.vcs.quarantine.record import GIT, RECORD, Record, Repository
from policy.errors import Refusal


class Tip:
    """What one repository's private git directory holds.

    Attributes:
        repository: of the record.
        new: the commit to take over: the checked-out branch's, or HEAD's when it was detached. None when there is none.
        on: full name of the branch that HEAD is on now, None when it is detached or leads nowhere.
        detached: the commit of a HEAD that was on a branch and is detached now, else None.
    """

    __slots__ = ("detached", "new", "on", "repository")

    def __init__(self, repository: Repository, new: str | None, on: str | None, detached: str | None = None) -> None:
        self.repository = repository
        self.new = new
        self.on = on
        self.detached = detached

    @property
    def moved(self) -> bool:
        """Whether there is something to take over."""
        return self.new is not None and self.new != self.repository.base


def read(directory: str, record: Record) -> tuple[Tip, ...]:
    """The tips of all repositories of a record, in its order.

    Args:
        directory: of the worktree's private git directory (`record.directory_of`).
        record: from there.

    Raises:
        Refusal: what `AgentRefs` refuses of the worktree's own repository. A submodule whose private git directory
            has been removed (`git submodule deinit`) has nothing to take over.
    """
    return tuple(_tip(directory, repository) for repository in record.repositories)


def digits(repository: Repository) -> int:
    """Length of an object id."""
    return 64 if repository.object_format == "sha256" else 40


def _tip(directory: str, repository: Repository) -> Tip:
    try:
        with AgentRefs(f"{directory}/{GIT}", repository.private, digits(repository)) as refs:
            try:
                head = refs.head()
                oid, on = head.oid, head.ref
            except Refusal as refusal:
                if refusal.reference != "harvest-head-unreadable" or repository.branch is None:
                    raise
                oid, on = None, None
            new = oid if repository.branch is None else refs.branch(repository.branch)
            return Tip(repository, new, on, oid if on is None and repository.branch is not None else None)
    except Refusal as refusal:
        if repository.private and refusal.reference in ("harvest-git-replaced", "harvest-head-unreadable"):
            return Tip(repository, None, None)
        raise


def unchanged(directory: str, record: Record) -> bool:
    """Whether nothing was committed and no branch was made or moved since the record was written, or last looked at.

    By reading a few files, for a session's end. True means: sure. Whatever is unusual gives False, and the harvest
    itself looks closely.
    """
    written = os.stat(f"{directory}/{RECORD}").st_mtime_ns
    for tip in read(directory, record):
        repository = tip.repository
        if tip.new != repository.base or tip.on != repository.branch:
            return False
        if further(directory, repository, written):
            return False
    return True


def further(directory: str, repository: Repository, written: int) -> bool:
    """Whether a branch beside the own one may have been made or moved since `written` (see `changed_since`)."""
    with AgentRefs(f"{directory}/{GIT}", repository.private, digits(repository)) as refs:
        return refs.changed_since(written, repository.branch)


# The end of a session with a private git directory: harvest, if there is anything to harvest.
#
# Most sessions end without a commit, and then it costs the reading of a few files and no process.


HARVEST_JOURNAL = "journal"


def harvest_due(directory: str) -> bool:
    """Whether a harvest has anything to do; what is unusual counts as something. No process is started.

    Args:
        directory: of the worktree's private git directory.

    Raises:
        Refusal: git-record-damaged.
    """
    record = records.read(directory)
    if record is None:
        return False
    if os.path.lexists(f"{directory}/{records.HARVEST}/{HARVEST_JOURNAL}"):
        return True
    try:
        return not unchanged(directory, record)
    except (Refusal, OSError):
        return True
