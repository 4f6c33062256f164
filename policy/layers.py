"""Which layer says no, and how the command sees it. Pure; from the Plan's backend and network alone."""

from policy import promises
from policy.plan import Plan, beneath
from policy.verdict import Verdict


def for_path(plan: Plan, found: Verdict) -> str:
    """What holds a path back, in words; "" when nothing does."""
    if "w" in found.access:
        return ""
    if promises.has_mounts(plan.backend):
        if found.rules and any(kind == "denied" for _, kind, _ in found.limits):
            return "a mask that lies over it: nobody opens it, nor anything below it (EACCES)"
        if not found.access:
            return "the jail's view: it looks as if it were not there (ENOENT)"
        return "a read-only mount (EROFS)" + ("" if plan.backend == promises.BUBBLEWRAP else ", and Landlock")
    return "Landlock (EACCES); the guard for mode, owner, times and attributes (EPERM)"


def for_git(plan: Plan, found: Verdict) -> str:
    """What git in the jail makes of a denied path of the worktree; "" for any other path."""
    denied = any(kind == "denied" for _, kind, _ in found.limits)
    if not denied or not beneath(found.path, plan.worktree):
        return ""
    return "for git in the jail, tracked files there look modified, and `git add -A` fails on them: add others by name"


def for_hosts(plan: Plan) -> str:
    """What holds connections back, in words; "" when nothing does."""
    if plan.net == "open":
        return ""
    if plan.net == "proxy":
        return "the proxy, which answers 403; past it there is no way out"
    if plan.backend == promises.GUARD:
        return "the system call filter: there are no internet sockets (EACCES)"
    return "the network namespace, which holds nothing but its own loopback (ENETUNREACH)"
