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

from launcher.jail import capabilities, hygiene, init, status
from launcher.jail.namespaces import enter, layout
from launcher.session import terminal
from policy.errors import Refusal
from policy.plan import VERSION, Plan

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/passwd")


def plan(spec: dict[str, Any]) -> Plan:
    grants = [(spec["worktree"], "rwx", "worktree")]
    links = []
    for path in (*SYSTEM, sys.base_prefix):
        if Path(path).is_symlink():
            links.append((path, str(Path(path).readlink())))
        elif Path(path).exists():
            grants.append((path, "rx", "system"))
    defaults: dict[str, Any] = dict.fromkeys(Plan.FIELDS, "")
    for name in (
        "arguments",
        "denied",
        "read_only",
        "handoff",
        "handoff_patterns",
        "domains",
        "env_pass",
        "env_set",
        "limits",
        "required",
    ):
        defaults[name] = ()
    defaults |= {"version": VERSION, "arguments_at": -1, "warnings": (), "net": "none", "cwd": spec["worktree"]}
    defaults |= {
        "worktree": spec["worktree"],
        "grants": (*grants, *map(tuple, spec.get("grants", ()))),
        "links": (*links, *map(tuple, spec.get("links", ()))),
    }
    for name in ("denied", "read_only", "handoff", "limits"):
        defaults[name] = tuple(map(tuple, spec.get(name, ())))
    for name in ("cwd", "net"):
        defaults[name] = spec.get(name, defaults[name])
    return Plan(**defaults)


def _faulty(fault: str | None) -> None:
    """What can go wrong in a worker: it hangs, it dies without a word, it is at fault."""
    if fault == "hang":
        os.read(os.pipe()[0], 1)
    elif fault == "die":
        os._exit(3)
    elif fault == "error":
        raise ZeroDivisionError("made up")


def main(spec: dict[str, Any]) -> int:
    wanted = plan(spec)
    namespaces = spec.get("namespaces", True)
    operations = layout.prepare(wanted, tuple(spec.get("exempt", ()))) if namespaces else ()
    uid, gid = os.geteuid(), os.getegid()
    facts: list[Any] = []
    if "pid_file" in spec:
        Path(spec["pid_file"]).write_text(str(os.getpid()))

    def start() -> NoReturn:
        os.chdir(wanted.cwd)
        hygiene.close_inherited()
        hygiene.no_new_privs()
        capabilities.drop_all()
        os.execvp(spec["argv"][0], spec["argv"])

    def worker(status_fd: int, launcher_pidfd: int) -> NoReturn:
        _faulty(spec.get("fault"))
        if namespaces:
            status.send_report(status_fd, enter.enter(wanted, operations, uid=uid, gid=gid))
        init.run_init(status_fd, launcher_pidfd, start, pid_namespace=namespaces)

    try:
        code = terminal.supervise(
            worker,
            namespaces=enter.flags(wanted) if namespaces else 0,
            on_report=facts.extend,
            start_timeout=spec.get("start_timeout", 60.0),
        )
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        code = refusal.exit_code
    if "report" in spec:
        Path(spec["report"]).write_text(json.dumps(facts))
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
