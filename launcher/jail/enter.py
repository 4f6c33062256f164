"""The last steps before the command: one page, in the only order that works.

Runs in the process that will become the command, after namespaces and mounts (they must come first: a Landlock domain
forbids every mount) and before exec. What was reached is compared with what the Plan requires; one row short is a
Refusal, so a command never starts in less than it was promised.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
import os

from launcher.jail import capabilities, hygiene, landlock, seccomp, syscalls
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

Facts = tuple[tuple[str, str, str], ...]
"""For the ledger: (row of policy.promises or name of a layer, "held" | "not held" | "layer", detail)."""


def enter(
    plan: Plan,
    argv: list[str],
    environment: dict[str, str],
    *,
    filter_program: bytes,
    kernel_uid: int,
    held_outside: tuple[str, ...],
    report: "Callable[[Facts], None]",
    keep: tuple[int, ...],
) -> "NoReturn":
    """Turns this process into the jailed command.

    Args:
        plan: bound.
        argv: the command's arguments, argv[0] first.
        environment: complete; nothing of the caller's is added.
        filter_program: from `seccomp.program`, for the backend in `plan`.
        kernel_uid: the user id outside of any user namespace.
        held_outside: ids of rows that the steps before (namespaces, init) hold.
        report: is told what holds, right before exec.
        keep: descriptors of ours that must live until exec; they are closed by it.

    Raises:
        Refusal: a step failed, a required row is not held, or the command cannot be executed (126, 127).
    """
    facts: list[tuple[str, str, str]] = []
    held = set(held_outside)

    limits = hygiene.rlimits(tuple(item for item in plan.limits if item[0] != "disk"), kernel_uid=kernel_uid)
    facts += [(f"limit {name}", "held" if ok else "not held", f"{value} {note}".strip())
              for name, value, ok, note in limits]  # fmt: skip
    hygiene.close_inherited(keep)
    _change_directory(plan.cwd)
    hygiene.no_new_privs()
    bounding_empty, locked = capabilities.drop_all()
    facts.append(("capabilities", "layer", f"none; bounding set {'empty' if bounding_empty else 'inert'}"
                  f"{', secure bits locked' if locked else ''}"))  # fmt: skip
    held |= {"environment", "fds", "privileges", "limits"}

    own_network = "network" in held_outside
    abi = landlock.abi()
    # A root of our own shows only what is granted, so `ls /` tells nothing else.
    shown = (("/", "l", "the jail's own root"),) if "unix-sockets" in held_outside else ()
    enforced = landlock.restrict((*plan.grants, *shown), abi=abi, network=plan.net == "open" or own_network, log=True)
    _, rules, handled_fs, handled_net, scopes, skipped = enforced
    facts.append(("landlock", "layer", f"ABI {abi}, {rules} rules, rights fs={handled_fs:#x} net={handled_net:#x} "
                  f"scopes={scopes:#x}" + (f", {len(skipped)} grants absent" if skipped else "")))  # fmt: skip
    if plan.worktree in skipped:
        raise Refusal("worktree-missing", f"{plan.worktree} has disappeared", hint="was it removed meanwhile?")
    held |= {"reads", "deny-inside-allow", "toolchains"}
    if abi >= 3 or "metadata" in held:  # truncate(2) by path: a right from ABI 3 on, else read-only mounts
        held.add("writes")
    if scopes & landlock.SCOPE_SIGNAL or "visibility" in held:
        held.add("signals")

    seccomp.install(filter_program)
    facts.append(("seccomp", "layer", f"{len(filter_program) // 8} instructions"))
    held |= {"kernel-surface", "network"}

    missing = [row for row in plan.required if row not in held]
    if missing:
        raise Refusal(
            "promise-not-held",
            "this machine cannot hold what the plan requires",
            context=", ".join(missing),
            hint="paddock doctor says which layer is missing, and what to do",
        )
    report((*facts, *((row, "held", "") for row in sorted(held))))
    try:
        os.execve(plan.program, argv, environment)
    except OSError as error:
        raise _not_executed(plan, error) from None


def _change_directory(path: str) -> None:
    """Into the plan's directory, without following a link that an agent may have put there since."""
    try:
        descriptor = syscalls.openat2(
            syscalls.AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, syscalls.RESOLVE_NO_SYMLINKS
        )
        try:
            os.fchdir(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Refusal(
            "directory-unreachable",
            f"cannot change to {path}",
            context=error.strerror or str(error),
            hint="it may have been removed or replaced meanwhile",
        ) from None


def _not_executed(plan: Plan, error: OSError) -> Refusal:
    """126 or 127, after POSIX: what is not there, and what is there but cannot be executed."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refusal(
            "command-not-found",
            f"{plan.program} cannot be started",
            context="it, or the interpreter that its first line names, is not there inside the jail",
            hint=f"paddock explain {plan.program}",
            exit_code=EXIT_NOT_FOUND,
        )
    context = error.strerror or str(error)
    hint = f"paddock explain {plan.program}"
    if error.errno == errno.ENOEXEC:
        context = "the kernel knows no such format, and there is no #! line"
        hint = f"start it through its interpreter, as in: paddock run -- sh {plan.program}"
    elif error.errno == errno.E2BIG:
        hint = "arguments and environment together are too long"
    return Refusal(
        "command-not-executable",
        f"{plan.program} cannot be executed",
        context=context,
        hint=hint,
        exit_code=EXIT_NOT_EXECUTABLE,
    )
