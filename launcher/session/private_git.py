"""A session's private git directory: taken before its jail is built.

Launch path: `os`.
"""

from launcher.session import inputs, messages
from launcher.session.places import Places, made
from launcher.vcs.quarantine import lease
from launcher.vcs.quarantine.lease import Lease
from launcher.vcs.quarantine.record import directory_of
from policy.errors import Refusal, printable
from policy.plan import Plan


def take(places: Places, plan: Plan, slots: dict[str, str]) -> Lease:
    """Makes the worktree's private git directory ready, adds its slot, and tells what the user should know.

    Refusals: state-not-ours, state-unusable, and those of `lease.take`.
    """
    directory = made(directory_of(places.state, plan.worktree_id))
    slots["git"] = inputs.resolved(directory) or directory
    taken = lease.take(slots["git"], plan.bind(slots))
    for warning in taken.warnings:
        messages.say(f"paddock: warning: {printable(warning)}")
    return taken


def finish(taken: Lease, plan: Plan) -> list[str]:
    """Ends the use of the private git directory; the last session in the worktree harvests. For after the jail's end.

    Returns:
        What to tell the user. A harvest that is refused is no failure of the session: the work stays where it is.
    """
    taken.close()
    try:
        from launcher.vcs.harvest import ending

        if not ending.due(taken.directory):
            return []
        from launcher.session import harvesting, packages

        packages.enable()
        return harvesting.told(harvesting.take(taken.directory, plan.handoff_patterns))
    except Refusal as refusal:
        messages.say(str(refusal))
        return []
