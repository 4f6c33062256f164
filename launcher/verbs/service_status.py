"""`paddock service status`, and what `paddock-audit.service` calls at boot."""

import json
import os

from launcher.ledger import switching
from launcher.service import units as files
from launcher.service.units import File, Manager, Scope, State, command, place_for, render, scope_of
from launcher.verbs import typer_verb
from launcher.verbs.service_install import Root, System, User
from launcher.verbs.worktree_common import Json
from policy.errors import Refusal, printable

EXAMPLES = (
    ("paddock service status --system", "the units of the machine, and every user's service"),
    ("paddock service status --user --json", "your own, for programmes"),
)


def status(argv: list[str]) -> int:
    """Exit status 0 when all files are as this version would write them, else 1."""
    return typer_verb.run("service status", _status, argv, examples=EXAMPLES)


def _status(system: System = False, user: User = False, root: Root = None, as_json: Json = False) -> int:
    """Shows which units are in place and what runs.

    A file is missing, current, outdated (of another version: install again), edited, foreign or masked.
    """
    scope = scope_of(system=system, user=user)
    place = place_for(scope, root)
    found = files.look(render(scope, command(), place.units, place.temporary_files))
    manager = Manager(scope, os.environ)
    runs = root is None and manager.runs()
    patterns = ("paddock@*", "paddock-audit.service") if scope is Scope.SYSTEM else ("paddock.*",)
    units = manager.units(*patterns) if runs else {}
    _, present, usable, why, remedy = switching.describe_audit()
    whole = all(file.state is State.CURRENT for file in found)
    if as_json:
        document = {
            "scope": scope.value,
            "files": [{"path": str(file.path), "state": file.state.value} for file in found],
            "manager": runs,
            "units": units,
            "audit": {"present": present, "readable_here": usable, "why": why},
        }
        print(json.dumps(document, indent=2))
        return 0 if whole else 1
    _print(scope, found, units, runs=runs)
    if scope is Scope.USER:
        print("audit: not available to user units; paddock service install --system has it")
    elif why:
        print(f"audit, as seen from here: {why}" + (f" ({remedy})" if remedy else ""))
    return 0 if whole else 1


def _print(scope: Scope, found: list[File], units: dict[str, dict[str, str]], *, runs: bool) -> None:
    for file in found:
        print(f"{file.state.value:<9} {printable(str(file.path))}")
    if any(file.state in (State.MISSING, State.OUTDATED) for file in found):
        print(f"paddock service install --{scope.value} puts them in place")
    if not runs:
        print(f"no service manager of the {scope.value} runs here")
    for name, shown in units.items():
        state = f"{shown.get('ActiveState', '?')} ({shown.get('SubState', '?')})"
        pid = shown.get("MainPID", "0")
        detail = [f"pid {pid}"] if pid != "0" else []
        detail += [text] if (text := shown.get("StatusText", "")) else []
        print(printable(f"{name:<28} {state:<24} {', '.join(detail)}".rstrip()))


def enable_audit(argv: list[str]) -> int:
    """Switches the kernel's audit on; exit status 0 when it is on.

    Args:
        argv: must be empty.
    """
    if argv:
        raise Refusal("usage", "paddock service enable-audit takes no words", hint="paddock service --help")
    print("the kernel's audit was switched on" if switching.enable() else "the kernel's audit is on already")
    return 0
