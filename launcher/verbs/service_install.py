"""`paddock service install` and `paddock service uninstall`."""

import os
import pwd
import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher.service import units
from launcher.service.units import File, Manager, Place, Scope, State, command, edit_line, place_for, render, scope_of
from launcher.session import messages
from launcher.verbs import typer_verb
from policy.errors import Refusal, printable

EXAMPLES = (
    ("paddock service install --user --now", "your own supervisor; its socket listens from now on"),
    ("sudo paddock service install --system --for alice --now", "alice's supervisor, which hears the kernel's audit"),
    ("paddock service install --system --dry-run", "print the units; nothing is changed"),
    ("paddock service install --system --root image", "into the file system of an image"),
)
UNINSTALL_EXAMPLES = (
    ("paddock service uninstall --user", "end your supervisor and remove its units"),
    ("sudo paddock service uninstall --system", "for all users"),
)

STOP_EXAMPLES = (
    ("paddock service stop", "sessions are ended in order, their work is harvested"),
    ("paddock service stop --keep", "sessions go on; systemctl --user start paddock.socket, and they are found again"),
)
_PATTERNS = {Scope.SYSTEM: ("paddock@*.socket", "paddock@*.service"), Scope.USER: ("paddock.socket", "paddock.service")}

System = Annotated[bool, typer.Option("--system", help="For the machine's service manager (as root).")]
User = Annotated[bool, typer.Option("--user", help="For your own service manager.")]
Root = Annotated[
    str | None,
    typer.Option("--root", metavar="DIR", help="Work below DIR, as in an image; no service manager is told."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def install(argv: list[str]) -> int:
    """Exit status 0 when everything is in place."""
    return typer_verb.run("service install", _install, argv, examples=EXAMPLES)


def uninstall(argv: list[str]) -> int:
    """Exit status 0 when nothing of ours is left, 1 when edited files were kept."""
    return typer_verb.run("service uninstall", _uninstall, argv, examples=UNINSTALL_EXAMPLES)


def stop(argv: list[str]) -> int:
    """Exit status 0 when nothing runs any more."""
    return typer_verb.run("service stop", _stop_services, argv, examples=STOP_EXAMPLES)


def _install(
    system: System = False,
    user: User = False,
    names: Annotated[
        list[str] | None, typer.Option("--for", metavar="USER", help="With --system: enable this user's socket.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Enable the socket, and listen from now on.")] = False,
    root: Root = None,
    dry_run: DryRun = False,
) -> int:
    """Puts the systemd units in place. Doing it again changes nothing.

    Files that you have edited are kept, and nothing is written then: changes belong in drop-ins (systemctl edit).
    """
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    sockets = _sockets(scope, names or [], now=now)
    own = command()
    found = units.look(render(scope, own, place.units, place.temporary_files))
    if dry_run:
        return _show(found)
    units.refuse_kept(found, edit_line(scope))
    if scope is Scope.SYSTEM and root is None:
        _be_root()
    if scope is Scope.SYSTEM:
        units.check_trusted(own)
    for file in found:
        if file.state is not State.CURRENT:
            units.write(file)
        print(f"{'unchanged' if file.state is State.CURRENT else 'written'}  {printable(str(file.path))}")
    sys.stdout.flush()
    if root is not None:
        return 0
    _tell(place, sockets, changed=any(file.state is not State.CURRENT for file in found))
    return 0


def _tell(place: Place, sockets: list[str], *, changed: bool) -> None:
    manager = Manager(place.scope, os.environ)
    user = " --user" if place.scope is Scope.USER else ""
    if not manager.runs():
        if sockets:
            raise Refusal(
                "service-manager",
                "the units are in place, but no service manager runs here that could enable them",
                context="there is no systemd, or no session of it for this user (XDG_RUNTIME_DIR)",
                hint=f"systemctl{user} enable --now {' '.join(sockets)}",
            )
        print("no service manager runs here; it will find the units when it starts")
        return
    if changed:
        manager.call("daemon-reload")
    if place.scope is Scope.SYSTEM:
        manager.make_directories(str(place.temporary_files / "paddock.conf"))
        manager.call("enable", "paddock-audit.service")
        _start_audit(manager)
    if sockets:
        manager.call("enable", "--now", *sockets)
        print(f"enabled    {' '.join(sockets)}")
    else:
        example = "paddock.socket" if user else "paddock@USER.socket"
        print(f"next: systemctl{user} enable --now {example}")


def _start_audit(manager: Manager) -> None:
    """Switches the audit on now. Where that is not possible the services run all the same, and say what they lack."""
    try:
        manager.call("start", "paddock-audit.service")
    except Refusal as refusal:
        messages.say(f"paddock: warning: the kernel's audit was not switched on: {printable(refusal.context)}")


def _uninstall(system: System = False, user: User = False, root: Root = None, dry_run: DryRun = False) -> int:
    """Stops the services, which end their sessions in order, and removes the units. Edited files are kept."""
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    found = units.look(render(scope, command(), place.units, place.temporary_files))
    if dry_run:
        for file in found:
            print(f"{_fate(file)}  {printable(str(file.path))}")
        return 0
    if scope is Scope.SYSTEM and root is None:
        _be_root()
    manager = Manager(scope, os.environ)
    live = root is None and manager.runs()
    if live:
        _stop(manager)
    for file in found:
        if file.state not in (*units.KEPT, State.MISSING):
            units.remove(file)
        print(f"{_fate(file, done=True)}  {printable(str(file.path))}")
    if live:
        manager.call("daemon-reload")
    return 1 if any(file.state in units.KEPT for file in found) else 0


def _stop(manager: Manager) -> None:
    """Sockets first, or a client would start the service again."""
    patterns = ("paddock@*", "paddock-audit.service") if manager.scope is Scope.SYSTEM else ("paddock.*",)
    running = sorted(manager.units(*patterns), key=lambda name: not name.endswith(".socket"))
    for name in running:
        manager.call("disable", "--now", name)
    if manager.scope is Scope.SYSTEM and "paddock.slice" in manager.units("paddock.slice"):
        manager.call("stop", "paddock.slice")


def _stop_services(
    system: System = False,
    user: User = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave sessions alone; the next service finds them.")] = False,
) -> int:
    """Stops the services that run, and their sockets. Sessions are ended in order, and their work is harvested."""
    scope = scope_of(system=system, user=user)
    manager = Manager(scope, os.environ)
    if not manager.runs():
        raise Refusal("service-manager", "no service manager runs here", hint="a service in the foreground: Ctrl-C")
    names = sorted(manager.units(*_PATTERNS[scope]), key=lambda name: not name.endswith(".socket"))
    for name in names:
        if keep and name.endswith(".service"):
            manager.call("kill", "--kill-who=main", "--signal=SIGUSR1", name)
    if names:
        manager.call("stop", *names)
    print(f"stopped    {' '.join(names) or 'nothing: no service runs'}")
    return 0


def _fate(file: File, *, done: bool = False) -> str:
    if file.state is State.MISSING:
        return "missing"
    if file.state in units.KEPT:
        return f"kept ({file.state.value})"
    return "removed" if done else "would be removed"


def _show(found: list[File]) -> int:
    for file in found:
        print(f"### {printable(str(file.path))}: {file.state.value}")
        print(file.rendered.content)
    return 0


def _sockets(scope: Scope, names: list[str], *, now: bool) -> list[str]:
    """The socket units to be enabled."""
    if scope is Scope.USER:
        if names:
            raise Refusal("usage", "--for goes with --system", hint="paddock service install --user --now")
        return ["paddock.socket"] if now else []
    if now != bool(names):
        raise Refusal(
            "usage",
            "--now and --for USER go together: the system has one service per user",
            hint="paddock service install --system --for USER --now",
        )
    for name in names:
        _known(name)
    return [f"paddock@{name}.socket" for name in names]


def _known(name: str) -> None:
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise Refusal("service-user", f"there is no user {name}", hint="paddock service install --help") from None
    if uid == 0:
        raise Refusal(
            "service-user",
            "no service runs agents as root",
            context="the unit has one capability, and jails of root take others",
            hint="give agents to an ordinary user: --for USER",
        )


def _be_root() -> None:
    if os.geteuid() != 0:
        raise Refusal(
            "service-needs-root",
            "only root installs units for the system's service manager",
            context=f"you are user {os.geteuid()}",
            hint=f"sudo {Path(sys.executable).parent / 'paddock'} service install --system, or --user without root",
        )
