"""Process groups: without a PID namespace a jail's processes can name those of the caller's session, and join them.

Whoever is a member can have the whole group stopped by the terminal (SIGTTIN), or hung up when it is orphaned with a
stopped member (setpgid(2)). So a process may join the groups that the jail has made, and not the one that it was
started in either: the caller's pipeline is in it.

Launch path of the backend landlock+guard: see launcher/jail/syscalls.py.
"""

import errno

from launcher.jail import processes
from launcher.jail.guard.call import Call
from launcher.jail.guard.rules import Refused, Rules
from launcher.lean import os


def join(call: Call, rules: Rules) -> None:
    """setpgid(pid, pgid) with a group that is named; the caller is answered here.

    Both arguments are numbers in registers, so what the kernel carries out is what was judged.

    Raises:
        Refused: EPERM: the group is none of the jail's.
    """
    del rules
    group = call.integer(1)
    if not _of_the_jail(group, call.integer(0) or call.tgid()):
        raise Refused(errno.EPERM, target=f"process group {group}")
    call.check()
    call.listener.let_go(call.identity)


def _of_the_jail(group: int, member: int) -> bool:
    if group < 0:
        return True  # EINVAL, says the kernel
    if group == os.getpgrp():
        return False
    if group == member:
        return True  # it becomes a leader; the kernel allows that for the caller and its children only
    return any(_group(pid) == group for pid in processes.descendants(os.getpid()))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
