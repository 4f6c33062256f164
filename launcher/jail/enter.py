"""The last steps before the command: one page, in the only order that works.

Runs in the process that will become the command, after namespaces and mounts (they must come first: a Landlock domain
forbids every mount) and before exec. What was reached is compared with what the Plan requires; one row short is a
Refusal, so a command never starts in less than it was promised.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import capabilities, filtering, hygiene, landlock, syscalls
from launcher.jail.namespaces import layout
from launcher.lean import os
from policy import promises
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
    install: "Callable[[bytes], Facts] | None" = None,
    search: tuple[str, ...] = (),
    telling: "Callable[[bytes], bytes] | None" = None,
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
        install: applies the filter in place of `filtering.install`, and returns what that holds.
        search: files that the command's name may mean, tried in this order in place of the plan's program.
        telling: for when somebody reads the kernel's audit: makes of the filter the one to be installed above it
            (`launcher.jail.seccomp`). Then one denial is provoked, too, that names this session's domain.

    Raises:
        Refusal: a step failed, a required row is not held, or the command cannot be executed (126, 127).
    """
    facts: list[tuple[str, str, str]] = []
    held = set(held_outside)

    limits = hygiene.rlimits(tuple(item for item in plan.limits if item[0] != "disk"), kernel_uid=kernel_uid)
    facts += [(f"limit {name}", "held" if ok else "not held", f"{value} {note}".strip())
              for name, value, ok, note in limits]  # fmt: skip
    hygiene.close_inherited(keep)
    hygiene.own_devices()
    _change_directory(plan.cwd)
    hygiene.no_new_privs()
    bounding_empty, locked = capabilities.drop_all()
    facts.append(("capabilities", "layer", f"none; bounding set {'empty' if bounding_empty else 'inert'}"
                  f"{', secure bits locked' if locked else ''}"))  # fmt: skip
    held |= {"environment", "fds", "privileges", "limits"}

    if plan.backend != promises.BUBBLEWRAP:
        layer, rows = _landlock(plan, held)
        facts.append(layer)
        held |= rows
        if telling is not None:
            _prove()

    if install is None:
        filtering.install(filter_program)
    else:
        guarded = install(filter_program)
        facts += guarded
        held |= {row for row, state, _ in guarded if state == "held"}
    if telling is not None:
        filtering.install(telling(filter_program), log=True)
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
    program, error = _execute(search or (plan.program,), argv, environment)
    if search and error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(program):
        raise _not_found(argv[0], search)
    raise _not_executed(plan.replace(program=program), error)


def _landlock(plan: Plan, held: set[str]) -> tuple[tuple[str, str, str], set[str]]:
    """Applies Landlock, on top of what is held already; returns the ledger's line and the rows that this adds."""
    abi = landlock.abi()
    grants = (*plan.grants, *((path, access, source) for source, path, access in plan.binds))
    if promises.has_mounts(plan.backend):
        # A root of our own shows only what is granted, so `ls /` tells nothing else.
        grants = layout.gathered((*grants, ("/", "l", "the jail's own root")))
    network = plan.net == "open" or "network" in held
    enforced = landlock.restrict(grants, abi=abi, network=network, log=True)
    _, rules, handled_fs, handled_net, scopes, skipped = enforced
    if plan.worktree in skipped:
        raise Refusal("worktree-missing", f"{plan.worktree} has disappeared", hint="was it removed meanwhile?")
    rows = {"reads", "deny-inside-allow", "toolchains"}
    if abi >= 3 or "metadata" in held:  # truncate(2) by path: a right from ABI 3 on, else read-only mounts
        rows.add("writes")
    if scopes & landlock.SCOPE_SIGNAL or "visibility" in held:
        rows.add("signals")
    rights = f"rights fs={handled_fs:#x} net={handled_net:#x} scopes={scopes:#x}"
    absent = f", {len(skipped)} grants absent" if skipped else ""
    return ("landlock", "layer", f"ABI {abi}, {rules} rules, {rights}{absent}"), rows


def _prove() -> None:
    """Asks for what the domain just entered forbids: see `launcher.ledger.audit`. Nothing happens but a record."""
    try:
        os.kill(os.getppid(), 0)
    except OSError:
        return


def _execute(programs: tuple[str, ...], argv: list[str], environment: dict[str, str]) -> tuple[str, OSError]:
    """Executes the first of `programs` that can be; otherwise the file that came closest, and why it cannot.

    As in execvp(3), neither a file that is not there nor one without permission ends the search.
    """
    closest: tuple[str, OSError] | None = None
    for program in programs:
        try:
            os.execve(program, argv, environment)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                return program, error
            if closest is None or (error.errno == errno.EACCES and closest[1].errno != errno.EACCES):
                closest = program, error
    assert closest is not None
    return closest


def _not_found(name: str, search: tuple[str, ...]) -> Refusal:
    return Refusal(
        "command-not-found",
        f"{name}: command not found inside the jail",
        context="looked in: " + ":".join(os.path.dirname(path) or "." for path in search),
        hint="check the spelling; paddock explain FILE says whether the jail shows a file",
        exit_code=EXIT_NOT_FOUND,
    )


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
        few = error.errno == errno.EMFILE
        raise Refusal(
            "directory-unreachable",
            f"cannot change to {path}",
            context=error.strerror or str(error),
            hint="allow more: --limit open_files=64" if few else "it may have been removed or replaced meanwhile",
        ) from None


def _interpreter(program: str) -> str:
    """What a script's first line names (execve(2)); empty for anything else."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            first = os.read(descriptor, 256).partition(b"\n")[0]
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    words = first[2:].split()
    return os.fsdecode(words[0]) if first.startswith(b"#!") and words else ""


def _not_executed(plan: Plan, error: OSError) -> Refusal:
    """126 or 127, after POSIX: what is not there, and what is there but cannot be executed."""
    interpreter = _interpreter(plan.program)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        named = f"the interpreter that its first line names, {interpreter}," if interpreter else "it, or its loader,"
        return Refusal(
            "command-not-found",
            f"{plan.program} cannot be started",
            context=f"{named} is not there inside the jail",
            hint=f"paddock explain {interpreter or plan.program}",
            exit_code=EXIT_NOT_FOUND,
        )
    context = error.strerror or str(error)
    if interpreter:
        context += f"; its first line names the interpreter {interpreter}"
    hint = f"paddock explain {interpreter or plan.program}"
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
