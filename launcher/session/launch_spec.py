"""From a Plan to the JailSpec of its launch: the one place where they meet.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import hygiene, layout
from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.session.state import Session


def jail_spec(plan: Plan, arguments: tuple[str, ...] = (), environment: "Mapping[str, str] | None" = None) -> JailSpec:
    """The jail of a bound Plan; what belongs to one session is left at its defaults."""
    return JailSpec(
        tuple(plan.argv(arguments)),
        environment,
        program=plan.program,
        worktree=plan.worktree,
        cwd=plan.cwd,
        grants=plan.grants,
        binds=plan.binds,
        links=plan.links,
        denied=plan.denied,
        read_only=plan.read_only,
        handoff=plan.handoff,
        net=plan.net,
        limits=plan.limits,
        required=plan.required,
        namespaces=plan.backend == promises.NAMESPACES,
        landlock=plan.backend != promises.BUBBLEWRAP,
        guard=plan.backend == promises.GUARD,
        about=(plan.worktree, plan.command, plan.backend, plan.net, plan.provider),
    )


def of_session(spec: JailSpec, session: "Session", support: tuple[object, ...], backend: str) -> JailSpec:
    """The spec with what the session and the machine give: private directories, the caller's terminal, bubblewrap.

    Args:
        spec: from `jail_spec`.
        session: open.
        support: of `cache.Entry`.
        backend: of the Plan.
    """
    if not promises.has_mounts(backend):
        terminal = layout.terminal_name()
        # Exactly the caller's own; the rest of /dev/pts stays closed.
        more = ((terminal, "rwi", "the caller's terminal"),) if terminal else ()
        return spec.replace(grants=(*spec.grants, *more))
    bwrap = ""
    if backend == promises.BUBBLEWRAP:
        from launcher.jail import probe

        known = probe.Support.from_data(support)
        bwrap = known.bubblewrap if known is not None else ""
        if not bwrap:
            raise Refusal("bubblewrap-failed", "bubblewrap could not build the jail", context="where it is, is unknown")
    nested = [path for path, _, source in spec.grants if source == promises.NESTED]
    # Paddock's state is denied, and the private home lies in it; so may granted submodules of hidden ones.
    exempt = (*(session.slots[name] for name in ("home", "git") if name in session.slots), *nested)
    return spec.replace(exempt=exempt, private=session.private, bwrap=bwrap)


def environment(
    plan: Plan, environ: "Mapping[str, str] | Mapping[bytes, bytes]", given: dict[str, str]
) -> dict[str, str]:
    """The environment of the command, from nothing: what the plan lets pass, then what it sets, then `given`.

    Args:
        plan: bound (`Plan.bind`); env_pass names variables, or all that begin with PREFIX as `PREFIX_*`.
        environ: the caller's environment, `os.environ` or `os.environb`.
        given: values that the caller named explicitly; they win.

    Raises:
        Refusal: a name to be set is empty or holds "=" or NUL, or a value holds NUL: execve(2) would read another
            variable than was meant.
    """
    names = {name for name in plan.env_pass if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in plan.env_pass if name.endswith("*"))
    result: dict[str, str] = {}
    for raw, value in environ.items():
        name = os.fsdecode(raw)
        if name in names or (prefixes and name.startswith(prefixes)):
            result[name] = os.fsdecode(value)
    for name, value in (*plan.env_set, *given.items()):
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Refusal("environment-invalid", f"{name!r} cannot be set in an environment")
        result[name] = value
    return result


def needs_more_than_rlimits(plan: Plan) -> bool:
    """Whether a limit of the plan takes more than rlimits. What the default configuration sets does not."""
    for name, value in plan.limits:
        if name in ("memory", "disk", "cpu_time"):
            return True
        if name == "processes" and value < hygiene.FAR:
            # An ordinary user's are counted per user namespace, for free.
            return os.geteuid() == 0 or plan.backend != promises.NAMESPACES
    return False
