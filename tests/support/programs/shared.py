"""Attacks on memory, semaphores, queues, keys and terminals that other processes of the user share."""

import ctypes
import errno
import fcntl
import multiprocessing.shared_memory
import os
import termios

from tests.support.programs.harness import Given, Programme, checked, libc, syscall
from tests.support.programs.reads import content, fresh

PROGRAMME, TERMINALS = Programme(), Programme()
attack, watched, twin = PROGRAMME.attack, PROGRAMME.watched, PROGRAMME.twin

IPC_CREAT, IPC_RMID = 0o1000, 0
SEM_SETVAL = 16
TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS = 0x5412, 0x541C, 0x5423, 0x541D


@attack
def list_shared_memory(given: Given) -> list[str]:
    names = os.listdir("/dev/shm")
    assert given["name"] in names, names
    return names


@attack
def read_shared_memory(given: Given) -> bytes:
    return content(f"/dev/shm/{given['name']}")


@attack
def write_shared_memory(given: Given) -> None:
    with open(f"/dev/shm/{given['name']}", "r+") as file:
        file.write("spoilt")


@attack
def remove_shared_memory(given: Given) -> None:
    os.unlink(f"/dev/shm/{given['name']}-spare")


@attack
def attach_by_key(given: Given) -> None:
    syscall("shmget", given["key"], 0, 0)


@attack
def attach_by_number(given: Given) -> bytes:
    address = syscall("shmat", given["memory"], 0, 0)
    return ctypes.string_at(address, 16)


@attack
def set_a_semaphore(given: Given) -> None:
    syscall("semctl", given["semaphore"], 0, SEM_SETVAL, 7)


@attack
def find_a_semaphore(given: Given) -> None:
    syscall("semget", given["key"], 1, 0)


@attack
def take_a_message(given: Given) -> bytes:
    buffer = ctypes.create_string_buffer(200)
    syscall("msgrcv", given["queue"], buffer, 190, 0, 0o4000)
    return buffer.raw


@attack
def send_a_message(given: Given) -> None:
    syscall("msgsnd", given["queue"], (1).to_bytes(8, "little") + b"planted", 7, 0o4000)


@attack
def open_a_queue(given: Given) -> None:
    syscall("mq_open", given["posix"].encode(), os.O_RDWR, 0, 0)


@attack
def remove_a_queue(given: Given) -> None:
    syscall("mq_unlink", given["posix"].encode())


@attack
def see_the_tables(given: Given) -> str:
    found = ""
    for name in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{name}") as file:
            found += "".join(line for line in file if str(given["key"]) in line.split())
    assert found, "nothing listed"
    return found


@attack
def read_a_key(given: Given) -> None:
    syscall("keyctl", 11, -3, 0, 0)


@attack
def add_a_key(given: Given) -> None:
    syscall("add_key", b"user", b"paddock", b"x", 1, -3)


@attack
def ask_for_a_key(given: Given) -> None:
    syscall("request_key", b"user", b"paddock", 0, -3)


@twin
def named_shared_memory(given: Given) -> None:
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    again = multiprocessing.shared_memory.SharedMemory(memory.name)
    assert memory.buf is not None
    assert again.buf is not None
    memory.buf[0] = 7
    assert again.buf[0] == 7
    again.close()
    memory.close()
    memory.unlink()


@twin
def a_named_semaphore(given: Given) -> None:
    libc.sem_open.restype = ctypes.c_void_p
    name = f"/own-{os.getpid()}".encode()
    assert libc.sem_open(name, os.O_CREAT, 0o600, 1), os.strerror(ctypes.get_errno())
    checked(libc.sem_unlink(name))


@twin
def a_memory_file(given: Given) -> None:
    descriptor = os.memfd_create("own")
    os.write(descriptor, b"x")
    assert os.pread(descriptor, 1, 0) == b"x"


OWN_IPC = Programme()


@OWN_IPC.twin
def own_objects(given: Given) -> None:
    """Where there is an IPC namespace, System V objects can be made and used in it."""
    memory = syscall("shmget", 0, 4096, IPC_CREAT | 0o600)
    syscall("shmat", memory, 0, 0)
    semaphore = syscall("semget", 0, 1, IPC_CREAT | 0o600)
    syscall("semctl", semaphore, 0, IPC_RMID, 0)
    queue = syscall("msgget", 0, IPC_CREAT | 0o600)
    syscall("msgsnd", queue, (1).to_bytes(8, "little") + b"hello", 5, 0)


# Terminals. Standard input is a terminal of the caller's and the controlling one; given["other"] is another's.


@TERMINALS.attack
def open_the_other(given: Given) -> None:
    os.open(given["other"], os.O_RDWR | os.O_NOCTTY)


@TERMINALS.attack
def open_the_other_for_reading(given: Given) -> None:
    os.open(given["other"], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)


@TERMINALS.attack
def open_the_other_through_a_link(given: Given) -> None:
    link = fresh(given, "tty")
    os.symlink(given["other"], link)
    os.open(link, os.O_WRONLY | os.O_NOCTTY)


@TERMINALS.attack
def open_the_other_by_a_path_descriptor(given: Given) -> None:
    os.open(f"/proc/self/fd/{os.open(given['other'], os.O_PATH)}", os.O_WRONLY | os.O_NOCTTY)


@TERMINALS.attack
def open_the_other_by_its_owner(given: Given) -> None:
    os.open(f"/proc/{given['pid']}/fd/0", os.O_WRONLY | os.O_NOCTTY)


@TERMINALS.attack
def open_the_other_by_a_name_of_its_own(given: Given) -> None:
    os.mknod(fresh(given, "node"), 0o020600, given["device"])


@TERMINALS.attack
def change_the_mode_of_the_other(given: Given) -> None:
    os.chmod(given["other"], 0o622)


@TERMINALS.attack
def open_a_console(given: Given) -> None:
    for name in ("/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/vcsa1", "/dev/ttyS0", "/dev/hvc0"):
        try:
            os.open(name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            continue
        return
    raise OSError(errno.ENOENT, "none")


def _pushed(name: str, request: int, argument: bytes = b"x") -> None:
    def act(given: Given) -> None:
        syscall("ioctl", 0, request, ctypes.create_string_buffer(argument, 16))

    act.__name__ = name
    TERMINALS.attack(act)


_pushed("push_a_key", TIOCSTI)
_pushed("push_a_key_with_high_bits", TIOCSTI | 1 << 32)
_pushed("push_a_key_with_all_high_bits", TIOCSTI | 0xFFFFFFFF << 32)
_pushed("paste", TIOCLINUX, b"\3")
_pushed("paste_with_high_bits", TIOCLINUX | 1 << 40, b"\3")
_pushed("change_the_line_discipline", TIOCSETD, (1).to_bytes(4, "little"))
_pushed("take_the_console", TIOCCONS)


def _pushed_to(name: str, path: str) -> None:
    def act(given: Given) -> None:
        syscall("ioctl", os.open(path, os.O_RDWR), TIOCSTI, ctypes.create_string_buffer(b"y", 2))

    act.__name__ = name
    TERMINALS.attack(act)


_pushed_to("push_a_key_to_the_controlling_terminal", "/dev/tty")
_pushed_to("push_a_key_by_the_descriptor", "/proc/self/fd/0")


@TERMINALS.twin
def use_the_own(given: Given) -> None:
    assert os.isatty(0)
    termios.tcgetattr(0)
    assert os.get_terminal_size(0).columns == 91
    with open("/dev/tty", "wb", buffering=0) as terminal:
        terminal.write(b"hello from the jail\n")


@TERMINALS.twin
def ask_how_much_can_be_read(given: Given) -> None:
    fcntl.ioctl(0, termios.FIONREAD, bytes(4))


NEW = Programme()


@NEW.twin
def make_a_new_terminal(given: Given) -> None:
    ours, theirs = os.openpty()
    os.write(theirs, b"x")
    assert os.read(ours, 1) == b"x"
    assert os.ttyname(theirs).startswith("/dev/pts/")
