"""Runs inside the jail: the attacks of one row, each in a process of its own, with what became of them as JSON.

Imports nothing of Paddock and nothing outside the standard library: it runs under the system's own interpreter.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

Given = dict[str, Any]
Act = Callable[[Given], object]
PlacedAct = Callable[[Given, str], object]

ATTACK, TWIN = "attack", "twin"
HANGS_AFTER = 60

# name: (x86-64, aarch64), from the kernel's unistd headers; aarch64 lacks what is None.
NUMBERS: dict[str, tuple[int, int | None]] = {
    **{"io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "mount": (165, 40)},
    **{"umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429)},
    **{"open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432)},
    **{"fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268), "name_to_handle_at": (303, 264)},
    **{"open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "kexec_load": (246, 104)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89)},
    **{"quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171)},
    **{"syslog": (103, 116), "vhangup": (153, 58), "sethostname": (170, 161), "setdomainname": (171, 162)},
    **{"kcmp": (312, 272), "clone3": (435, 435), "clone": (56, 220), "unshare": (272, 97), "personality": (135, 92)},
    **{"tgkill": (234, 131), "tkill": (200, 130), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"ioprio_set": (251, 30), "ioprio_get": (252, 31), "migrate_pages": (256, 238), "move_pages": (279, 239)},
    **{"process_madvise": (440, 440), "rt_sigqueueinfo": (129, 138), "renameat2": (316, 276), "fchmodat2": (452, 452)},
    **{"openat2": (437, 437), "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "semctl": (66, 191)},
    **{"semop": (65, 193), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "mq_open": (240, 180)},
    **{"mq_unlink": (241, 181), "iopl": (172, None), "modify_ldt": (154, None), "setpriority": (141, 140)},
    **{"file_setattr": (469, 469), "getpid": (39, 172), "ioctl": (16, 29), "capset": (126, 91)},
    **{"process_mrelease": (448, 448), "swapon": (167, 224), "reboot": (169, 142), "getpriority": (140, 141)},
}

libc = ctypes.CDLL(None, use_errno=True)


class Attempt(NamedTuple):
    """One act and how it is judged: `claims` says that coming back without an error means success."""

    name: str
    act: Act
    kind: str
    claims: bool


class Programme:
    """The acts of one row, in the order of their definition.

    Args:
        directories: a placed act gets a directory of its own, named like it, below each place; else the place itself.
    """

    def __init__(self, *, directories: bool = False) -> None:
        self.attempts: list[Attempt] = []
        self.placed: dict[str, PlacedAct] = {}
        self._directories = directories

    def attack(self, act: Act) -> Act:
        """An act that must be denied: to come back without an error is to get through."""
        self.attempts.append(Attempt(act.__name__, act, ATTACK, True))
        return act

    def watched(self, act: Act) -> Act:
        """An attack whose effect only the outside can see; what it meets inside proves nothing."""
        self.attempts.append(Attempt(act.__name__, act, ATTACK, False))
        return act

    def twin(self, act: Act) -> Act:
        """An act that must be allowed."""
        self.attempts.append(Attempt(act.__name__, act, TWIN, True))
        return act

    def pair(self, act: PlacedAct) -> PlacedAct:
        """The same act, denied at every place in `given["attack"]` and allowed at every one in `given["twin"]`."""
        self.placed[act.__name__] = act
        return act

    def all_of(self, given: Given) -> list[Attempt]:
        """Everything to be tried; placed acts are named ``act@place``. `given["only"]` and `["leave"]` choose."""
        found = [] if given.get("placed_only") else list(self.attempts)
        for kind in (ATTACK, TWIN):
            for place, where in given.get(kind, {}).items():
                for name, act in self.placed.items():
                    here = f"{where}/{name}" if self._directories else str(where)
                    found.append(Attempt(f"{name}@{place}", _at(act, here), kind, not given.get("watched")))
        left = given.get("leave", ())
        return [attempt for attempt in found if attempt.name not in left and attempt.name.partition("@")[0] not in left]


def _at(act: PlacedAct, here: str) -> Act:
    return lambda given: act(given, here)


def syscall(name: str, *arguments: object) -> int:
    """Makes a system call by number; integers are passed in 64 bits.

    Raises:
        OSError: as the kernel says; ENOSYS where this machine's architecture lacks the call.
    """
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    if number is None:
        raise OSError(errno.ENOSYS, name)
    return checked(
        libc.syscall(number, *(ctypes.c_long(word) if isinstance(word, int) else word for word in arguments))
    )


def checked(result: int) -> int:
    """`result` of a C function; OSError from errno when it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def in_child(act: Callable[[], object]) -> int:
    """A new process that runs `act` and ends; its id."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid


def tried(attempt: Attempt, given: Given) -> dict[str, object]:
    """Runs an attempt in a process of its own, so that whatever it ruins or is killed by stays there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run(attempt.act, given, writing)
    os.close(writing)
    said = b""
    while not said.endswith(b"\n") and (block := os.read(reading, 1 << 20)):
        said += block
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answer: dict[str, object] = {"name": attempt.name, "kind": attempt.kind, "claims": attempt.claims}
    if said.endswith(b"\n"):
        more: dict[str, object] = json.loads(said)
        return answer | more
    return answer | {
        "state": "hung" if code == -signal.SIGALRM else "denied",
        "detail": f"ended with {code}",
        "value": "",
    }


def _run(act: Act, given: Given, writing: int) -> None:
    answer = {"state": "done", "detail": "", "value": ""}
    try:
        signal.alarm(HANGS_AFTER)
        value = act(given)
        answer["value"] = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    except OSError as error:
        answer |= {"state": "denied", "detail": errno.errorcode.get(error.errno or 0, str(error))}
    except AssertionError as error:
        answer |= {"state": "denied", "detail": f"not so: {error}"}
    except BaseException:
        answer |= {"state": "broken", "detail": traceback.format_exc()}
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(writing, data) :]
    os._exit(0)


def main() -> None:
    """Reads the facts from the file in argv[1] and prints one JSON list of answers."""
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    names = [name for name in os.listdir(listing) if name not in (str(listing), str(listing + 1))]
    os.close(listing)
    # libffi, which ctypes uses, keeps its own file open where it is newer than 3.4.
    inherited = [name for name in names if "/libffi.so" not in os.readlink(f"/proc/self/fd/{name}")]
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape") as file:
        given: Given = json.load(file)
    given["open at start"] = inherited
    given["parent"] = os.getppid()
    for number in (signal.SIGUSR1, signal.SIGIO):  # what attacks send to their own process group
        signal.signal(number, signal.SIG_IGN)
    answers = []
    for words in given["programme"].split(","):
        module, _, name = words.partition(":")
        programme: Programme = getattr(import_module(f"tests.support.programs.{module}"), name or "PROGRAMME")
        answers += [tried(attempt, given) for attempt in programme.all_of(given)]
    print(json.dumps(answers))
