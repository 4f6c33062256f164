"""`paddock service SUBCOMMAND`: the service as a unit of systemd."""

import json
import os
import pwd
import sys
from pathlib import Path

from launcher.ledger import switching
from launcher.service import units
from launcher.service.units import File, Manager, Place, Scope, State, command, edit_line, place_for, render, scope_of
from launcher.session import messages
from policy.errors import Refusal, printable

_PATTERNS = {Scope.SYSTEM: ("paddock@*.socket", "paddock@*.service"), Scope.USER: ("paddock.socket", "paddock.service")}


def service_install(*, system: bool, user: bool, users: list[str], now: bool, root: str | None, dry_run: bool) -> int:
    """Exit status 0 when everything is in place."""
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    sockets = _sockets(scope, users or [], now=now)
    own = command()
    found = units.look(render(scope, own, place.units, place.temporary_files))
    if dry_run:
        return _show(found, sockets)
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
                "the units are in place, but no service manager is running here to enable them",
                context="there is no systemd, or no session of it for this user (XDG_RUNTIME_DIR)",
                hint=f"systemctl{user} enable --now {' '.join(sockets)}",
            )
        print("no service manager is running here; it will find the units when it starts")
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
    """Switches the audit on now. Where that fails the services run without it, and report it."""
    try:
        manager.call("start", "paddock-audit.service")
    except Refusal as refusal:
        messages.say(f"paddock: warning: kernel audit was not switched on: {printable(refusal.context)}")


def service_uninstall(*, system: bool, user: bool, root: str | None, dry_run: bool) -> int:
    """Exit status 0 when all of Paddock's files were removed, 1 when edited ones stay."""
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    found = [] if place.packaged else units.look(render(scope, command(), place.units, place.temporary_files))
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


def service_stop(*, system: bool, user: bool, keep: bool) -> int:
    """Exit status 0 when nothing runs any more."""
    scope = scope_of(system=system, user=user)
    manager = Manager(scope, os.environ)
    if not manager.runs():
        raise Refusal(
            "service-manager", "no service manager is running here", hint="to stop a service in the foreground: Ctrl-C"
        )
    names = sorted(manager.units(*_PATTERNS[scope]), key=lambda name: not name.endswith(".socket"))
    for name in names:
        if keep and name.endswith(".service"):
            manager.call("kill", "--kill-who=main", "--signal=SIGUSR1", name)
    if names:
        manager.call("stop", *names)
    print(f"stopped    {' '.join(names) or 'nothing: no service is running'}")
    return 0


def _fate(file: File, *, done: bool = False) -> str:
    if file.state is State.MISSING:
        return "missing"
    if file.state in units.KEPT:
        return f"kept ({file.state.value})"
    return "removed" if done else "would be removed"


def _show(found: list[File], sockets: list[str]) -> int:
    for file in found:
        print(f"### {printable(str(file.path))}: {file.state.value}")
        print(file.rendered.content)
    for socket in sockets:
        print(f"### {socket} would be enabled and started")
    return 0


def _sockets(scope: Scope, names: list[str], *, now: bool) -> list[str]:
    """The socket units to be enabled."""
    if scope is Scope.USER:
        if names:
            raise Refusal("usage", "--for needs --system", hint="paddock service install --user --now")
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
            "a service never runs agents as root",
            context="its unit has one capability, and root's jails need others",
            hint="run agents as an ordinary user: --for USER",
        )


def _be_root() -> None:
    if os.geteuid() != 0:
        raise Refusal(
            "service-needs-root",
            "only root installs units for the system's service manager",
            context=f"you are user {os.geteuid()}",
            hint=f"sudo {Path(sys.executable).parent / 'paddock'} service install --system, or --user without root",
        )


def service_status(*, system: bool, user: bool, root: str | None, as_json: bool) -> int:
    """Exit status 0 when all files are as this version would write them, else 1."""
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    found = units.look(render(scope, command(), place.units, place.temporary_files))
    manager = Manager(scope, os.environ)
    runs = root is None and manager.runs()
    patterns = ("paddock@*", "paddock-audit.service") if scope is Scope.SYSTEM else ("paddock.*",)
    live = manager.units(*patterns) if runs else {}
    _, present, usable, why, remedy = switching.describe_audit()
    whole = all(file.state is State.CURRENT for file in found)
    if as_json:
        document = {
            "scope": scope.value,
            "files": [{"path": str(file.path), "state": file.state.value} for file in found],
            "manager": runs,
            "units": live,
            "audit": {"present": present, "readable_here": usable, "why": why},
        }
        print(json.dumps(document, indent=2))
        return 0 if whole else 1
    _print(scope, found, live, runs=runs)
    if scope is Scope.USER:
        print("audit: not available to user units; available with paddock service install --system")
    elif why:
        print(f"audit, as seen from here: {why}" + (f" ({remedy})" if remedy else ""))
    return 0 if whole else 1


def _print(scope: Scope, found: list[File], units: dict[str, dict[str, str]], *, runs: bool) -> None:
    for file in found:
        print(f"{file.state.value:<9} {printable(str(file.path))}")
    if any(file.state in (State.MISSING, State.OUTDATED) for file in found):
        print(f"paddock service install --{scope.value} puts them in place")
    if not runs:
        print(f"no {scope.value} service manager is running here")
    for name, shown in units.items():
        state = f"{shown.get('ActiveState', '?')} ({shown.get('SubState', '?')})"
        pid = shown.get("MainPID", "0")
        detail = [f"pid {pid}"] if pid != "0" else []
        detail += [text] if (text := shown.get("StatusText", "")) else []
        print(f"{name:<28} {printable(state):<24} {printable(', '.join(detail))}".rstrip())


def service_enable_audit() -> int:
    """Switches the kernel's audit on; exit status 0 when it is on."""
    print("kernel audit was switched on" if switching.enable() else "kernel audit is already on")
    return 0
