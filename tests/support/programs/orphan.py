"""Has the kernel send SIGHUP and SIGCONT to a whole process group, of which this programme is a member.

That is what happens to a group in which a process is stopped when its last member with a parent in another group of
the session ends (setpgid(2), orphaned groups).
"""

import ctypes
import os
import signal

PR_SET_CHILD_SUBREAPER = 36

libc = ctypes.CDLL(None)


def leave_orphaned() -> None:
    """In a process that has left the group: its child, the only bridge, ends and leaves a stopped process behind."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    told, tell = os.pipe()
    left, leave = os.pipe()
    bridge = os.fork()
    if bridge == 0:
        stopped = os.fork()
        if stopped == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(stopped, os.WUNTRACED)
        os.write(tell, b".")
        os.read(left, 1)
        os._exit(0)
    os.setpgid(0, 0)
    os.read(told, 1)
    os.write(leave, b".")
    os.waitpid(bridge, 0)
    os._exit(0)


signal.signal(signal.SIGHUP, signal.SIG_IGN)
keeper = os.fork()
if keeper == 0:
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    outside = os.fork()
    if outside == 0:
        leave_orphaned()
    os.waitpid(outside, 0)
    os._exit(0)
os.waitpid(keeper, 0)
print("orphaned", flush=True)
