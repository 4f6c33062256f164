"""The last steps before the command: one page, in the only order that works.

Runs in the process that will become the command, after namespaces and mounts (they must come first: a Landlock domain
forbids every mount) and before exec. What was reached is compared with what the spec requires; one row short is a
Refusal, so a command never starts in less than it was promised.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import hygiene, landlock, layout, reports
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import os
from launcher.safefs import walk
from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from launcher.jail.guard.guard import Guard

    Prepared = tuple[landlock.Domain, tuple[str, str, str], set[str]]


def enter(
    spec: JailSpec,
    *,
    uid: int,
    held: tuple[str, ...],
    pipe: int,
    first: bool,
    guard: "Guard | None" = None,
    search: tuple[str, ...] = (),
) -> "NoReturn":
    """Turns this process into the jailed command.

    Args:
        spec: with its `filter`.
        uid: the user id outside of any user namespace.
        held: rows that the steps before (namespaces, init) hold.
        pipe: to the launcher or the client; lives until exec, which closes it.
        first: it is the jail's first command: what holds is sent over `pipe` right before exec.
        guard: applies the filter in place of `hygiene.install_filter`.
        search: files that the command's name may mean, tried in this order in place of the spec's program.

    Raises:
        Refusal: a step failed, a required row is not held, or the command cannot be executed (126, 127).
    """
    facts = confine(spec, uid=uid, held=held, keep=(pipe,), guard=guard)
    if first:
        reports.send_report(pipe, facts)
        reports.send_executing(pipe)
    execute(search or (spec.program,), spec.argv, spec.environment, searched=bool(search))


def confine(
    spec: JailSpec,
    *,
    uid: int,
    held: tuple[str, ...],
    keep: tuple[int, ...],
    guard: "Guard | None" = None,
    prepared: "Prepared | None" = None,
) -> Facts:
    """All steps but the last one: nothing that this process does from now on is more than the command may.

    Args:
        spec, uid, held, guard: see `enter`.
        keep: descriptors from 3 on that stay open.
        prepared: what `prepare` made before, for this and other commands.

    Returns:
        What holds, for the ledger.

    Raises:
        Refusal: a step failed, or a required row is not held.
    """
    facts: list[tuple[str, str, str]] = []
    rows = set(held)

    limits = hygiene.rlimits(tuple(item for item in spec.limits if item[0] != "disk"), kernel_uid=uid)
    facts += [(f"limit {name}", "held" if ok else "not held", f"{value} {note}".strip())
              for name, value, ok, note in limits]  # fmt: skip
    kept = (*keep, *((prepared[0][0],) if prepared is not None else ()))
    hygiene.close_inherited((*kept, *(guard.descriptors if guard is not None else ())))
    hygiene.own_devices()
    change_directory(spec.cwd)
    hygiene.no_new_privs()
    bounding_empty, locked = hygiene.drop_all()
    facts.append(("capabilities", "layer", f"none; bounding set {'empty' if bounding_empty else 'inert'}"
                  f"{', secure bits locked' if locked else ''}"))  # fmt: skip
    rows |= {"environment", "fds", "privileges", "limits"}

    if spec.landlock:
        domain, layer, added = prepared or prepare(spec, rows)
        landlock.enter(domain, log=True)
        facts.append(layer)
        rows |= added
        if spec.audited:
            _prove()

    if guard is None:
        hygiene.install_filter(spec.filter)
    else:
        guarded = guard.install(spec.filter)
        facts += guarded
        rows |= {row for row, state, _ in guarded if state == "held"}
    if spec.audited:
        from launcher.jail import seccomp  # loaded before the view was the jail's: see `spawn`

        hygiene.install_filter(seccomp.telling(spec.filter), log=True)
    facts.append(("seccomp", "layer", f"{len(spec.filter) // 8} instructions"))
    rows |= {"kernel-surface", "network"}

    missing = [row for row in spec.required if row not in rows]
    if missing:
        raise Refusal(
            "promise-not-held",
            "this machine cannot enforce what the plan requires",
            context=", ".join(missing),
            hint="paddock doctor says which layer is missing, and what to do",
        )
    return (*facts, *((row, "held", "") for row in sorted(rows)))


def execute(
    programs: tuple[str, ...], argv: tuple[str, ...], environment: dict[str, str], *, searched: bool
) -> "NoReturn":
    """Executes the first of `programs` that can be; `searched` says that these are where its name was looked for.

    Refusals: command-not-found (127), command-not-executable (126).
    """
    program, error = _execute(programs, argv, environment)
    if searched and error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.lexists(program):
        raise _not_found(argv[0], programs)
    raise _not_executed(program, error)


def prepare(spec: JailSpec, held: set[str], *, signals: bool = True) -> "Prepared":
    """A Landlock domain on top of what is held already, the ledger's line of it, and the rows that it adds.

    Args:
        spec: of the jail.
        held: rows that hold without it.
        signals: further commands are out of each other's reach. Without it, something else must keep those in it from
            the processes of the machine.
    """
    abi = landlock.abi()
    grants = (*spec.grants, *((path, access, source) for source, path, access in spec.binds))
    if spec.mounts:
        # A root of our own shows only what is granted, so `ls /` tells nothing else.
        grants = layout.gathered((*grants, ("/", "rwx" if spec.root else "l", "the jail's own root")))
    network = spec.net == "open" or "network" in held
    domain = landlock.made(grants, abi=abi, network=network, scope_signals=signals or "visibility" not in held)
    _, _, rules, handled_fs, handled_net, scopes, skipped = domain
    if spec.worktree in skipped:
        raise Refusal("worktree-missing", f"{spec.worktree} no longer exists", hint="was it removed in the meantime?")
    rows = {"reads", "deny-inside-allow", "toolchains"}
    if abi >= 3 or "metadata" in held:  # truncate(2) by path: a right from ABI 3 on, else read-only mounts
        rows.add("writes")
    if scopes & landlock.SCOPE_SIGNAL or "visibility" in held:
        rows.add("signals")
    rights = f"rights fs={handled_fs:#x} net={handled_net:#x} scopes={scopes:#x}"
    absent = f", {len(skipped)} grants absent" if skipped else ""
    return domain, ("landlock", "layer", f"ABI {abi}, {rules} rules, {rights}{absent}"), rows


def _prove() -> None:
    """Asks for what the domain just entered forbids: see `launcher.ledger.audit`. Nothing happens but a record."""
    try:
        os.kill(os.getppid(), 0)
    except OSError:
        return


def _execute(programs: tuple[str, ...], argv: tuple[str, ...], environment: dict[str, str]) -> tuple[str, OSError]:
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


def change_directory(path: str) -> None:
    """Into the plan's directory, without following a link that an agent may have put there since."""
    try:
        descriptor = walk.open_canonical(path, os.O_PATH | os.O_DIRECTORY)
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
            hint="allow more: --limit open_files=64" if few else "it may have been removed or replaced in the meantime",
        ) from None


def _beginning(program: str) -> bytes:
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, 256)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _interpreter(program: str) -> str:
    """What a script's first line names (execve(2)); empty for anything else."""
    first = _beginning(program).partition(b"\n")[0]
    words = first[2:].split()
    return os.fsdecode(words[0]) if first.startswith(b"#!") and words else ""


def _not_executed(program: str, error: OSError) -> Refusal:
    """126 or 127, after POSIX: what is not there, and what is there but cannot be executed."""
    interpreter = _interpreter(program)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        named = f"the interpreter that its first line names, {interpreter}," if interpreter else "it, or its loader,"
        return Refusal(
            "command-not-found",
            f"{program} cannot be started",
            context=f"{named} does not exist inside the jail",
            hint=f"paddock explain {interpreter or program}",
            exit_code=EXIT_NOT_FOUND,
        )
    context = error.strerror or str(error)
    if interpreter:
        context += f"; its first line names the interpreter {interpreter}"
    hint = f"paddock explain {interpreter or program}"
    if error.errno == errno.ENOEXEC and _beginning(program).startswith(b"\x7fELF"):
        context = "it is a programme for another architecture, or damaged"
    elif error.errno == errno.ENOEXEC:
        context = "the kernel does not know its format, and it has no #! line"
        hint = f"start it through its interpreter, as in: paddock run -- sh {program}"
    elif error.errno == errno.E2BIG:
        hint = "arguments and environment together are too long"
    return Refusal(
        "command-not-executable",
        f"{program} cannot be executed",
        context=context,
        hint=hint,
        exit_code=EXIT_NOT_EXECUTABLE,
    )
