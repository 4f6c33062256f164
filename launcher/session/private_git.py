"""A session's private git directory: taken before its jail is built.

Launch path: `os`.
"""

from launcher.session import inputs, messages
from launcher.session.places import Places, made
from launcher.vcs.quarantine import lease
from launcher.vcs.quarantine.lease import Lease
from launcher.vcs.quarantine.record import directory_of
from policy.errors import printable
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
