"""Which layer says no, and how the command sees it. Pure; from the Plan's backend and network alone."""

from policy import promises
from policy.plan import Plan
from policy.verdict import Verdict


def for_path(plan: Plan, found: Verdict) -> str:
    """What holds a path back, in words; "" when nothing does."""
    if "w" in found.access:
        return ""
    if promises.has_mounts(plan.backend):
        if not found.access:
            return "the jail's view: it looks as if it were not there (ENOENT)"
        return "a read-only mount (EROFS)" + ("" if plan.backend == promises.BUBBLEWRAP else ", and Landlock")
    return "Landlock (EACCES); the guard for mode, owner, times and attributes (EPERM)"


def for_hosts(plan: Plan) -> str:
    """What holds connections back, in words; "" when nothing does."""
    if plan.net == "open":
        return ""
    if plan.net == "proxy":
        return "the proxy, which answers 403; past it there is no way out"
    if plan.backend == promises.GUARD:
        return "the system call filter: there are no internet sockets (EACCES)"
    return "the network namespace, which holds nothing but its own loopback (ENETUNREACH)"
