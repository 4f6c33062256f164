"""A programme for tests: runs a command in a jail of namespaces and processes only, without Landlock and seccomp.

What holds in it is held by these layers. It reads one JSON file: argv, worktree, and optionally namespaces (bool), cwd,
grants, links, denied, read_only, handoff, limits, net, exempt, report (file that is told the facts, as JSON), pid_file,
fault (see `_faulty`), start_timeout.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from launcher.jail import enter, hygiene
from launcher.jail.spec import JailSpec
from launcher.session import terminal
from policy.errors import Refusal

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/passwd")


def jail_spec(wanted: dict[str, Any]) -> JailSpec:
    grants = [(wanted["worktree"], "rwx", "worktree")]
    links = []
    for path in (*SYSTEM, sys.base_prefix):
        if Path(path).is_symlink():
            links.append((path, str(Path(path).readlink())))
        elif Path(path).exists():
            grants.append((path, "rx", "system"))
    return JailSpec(
        tuple(wanted["argv"]),
        worktree=wanted["worktree"],
        cwd=wanted.get("cwd", ""),
        grants=(*grants, *map(tuple, wanted.get("grants", ()))),
        links=(*links, *map(tuple, wanted.get("links", ()))),
        denied=tuple(map(tuple, wanted.get("denied", ()))),
        read_only=tuple(map(tuple, wanted.get("read_only", ()))),
        handoff=tuple(map(tuple, wanted.get("handoff", ()))),
        limits=tuple(map(tuple, wanted.get("limits", ()))),
        exempt=tuple(wanted.get("exempt", ())),
        net=wanted.get("net", "none"),
        namespaces=wanted.get("namespaces", True),
        filter=b"none",
    )


def _faulty(fault: str | None) -> None:
    """What can go wrong in a worker: it hangs, it dies without a word, it is at fault."""
    if fault == "hang":
        os.read(os.pipe()[0], 1)
    elif fault == "die":
        os._exit(3)
    elif fault == "error":
        raise ZeroDivisionError("made up")


class Reports(terminal.Listener):
    """Keeps what the jail's processes report."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def on_report(self, facts: tuple[Any, ...]) -> None:
        self.facts += facts


def main(wanted: dict[str, Any]) -> int:
    spec = jail_spec(wanted)
    if "pid_file" in wanted:
        Path(wanted["pid_file"]).write_text(str(os.getpid()))

    def without_landlock_and_seccomp(spec: JailSpec, **_: object) -> NoReturn:
        os.chdir(spec.cwd)
        hygiene.close_inherited()
        hygiene.no_new_privs()
        hygiene.drop_all()
        os.execvp(spec.argv[0], spec.argv)

    enter.enter = without_landlock_and_seccomp
    hygiene.take_streams = lambda streams: _faulty(wanted.get("fault"))
    reports = Reports()
    try:
        code = terminal.supervise(spec, reports, start_timeout=wanted.get("start_timeout", 60.0))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        code = refusal.exit_code
    if "report" in wanted:
        Path(wanted["report"]).write_text(json.dumps(reports.facts))
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
