"""Third-party packages, when they are needed at all.

The `paddock` script starts Python without `site` (`-I -S`), which halves the start-up time; the warm launch path needs
nothing but the standard library's core. Everything else calls `enable` before its first import of a package.
"""

import sys

_ADDRESS_SPACE = 9  # RLIMIT_AS
_STACK = 3  # RLIMIT_STACK (getrlimit(2)), the same on every machine that Paddock knows
LEAST_STACK = 256 << 10
"""Bytes of stack that planning takes, with much to spare."""

LEAST_ROOM = 64 << 20
"""Bytes of address space without which the packages cannot be loaded."""

_enabled = False


def enable() -> None:
    """Runs what `site` would have run at start: `.pth` files of the environment's own site-packages.

    Does nothing when the interpreter was started with `site`. The user's own site directory stays out (`-I`).

    Refusals: memory-missing.
    """
    global _enabled
    if _enabled or not sys.flags.no_site:
        return
    from launcher.jail import syscalls
    from policy.errors import Refusal

    room = syscalls.prlimit64(0, _ADDRESS_SPACE)[0]
    if room < LEAST_ROOM:  # pydantic's compiled half panics where there is none, in words of its own
        raise Refusal(
            "memory-missing",
            "not enough memory to make a plan",
            context=f"{room >> 20} MiB of address space are allowed (ulimit -v), {LEAST_ROOM >> 20} needed",
            hint="allow more; to limit the command in the jail instead: --limit memory=SIZE",
        )
    stack = syscalls.prlimit64(0, _STACK)[0]
    if stack < LEAST_STACK:  # the same half dies there of SIGSEGV, now and then
        raise Refusal(
            "memory-missing",
            "not enough stack to make a plan",
            context=f"{stack >> 10} KiB are allowed (ulimit -s), {LEAST_STACK >> 10} needed",
            hint="ulimit -s 8192",
        )
    import site

    known = list(sys.path)
    site.main()
    # `site.main` appends and makes entries absolute; what was first stays first.
    sys.path[:] = known + [entry for entry in sys.path if entry not in known]
    _enabled = True
