"""The first process of bubblewrap's PID namespace: a programme of some 250 bytes that only has to be there.

bubblewrap has to execute something. A shell or an interpreter would have to exist inside the jail. bubblewrap's own
first process runs without the system call filter and in reach of the command's ptrace(2), so the filter could be walked
around. This programme says that it has started (one NUL on standard output), waits for a byte on standard input, makes
itself untouchable (prctl(2), PR_SET_DUMPABLE), says so, closes every descriptor and sleeps. It is started with SIGCHLD
ignored: what it inherits from dead parents is reaped by the kernel (wait(2)). It needs nothing of the jail's file
system, and may do nothing that the command may not.

Launch path: `os` only.
"""

import errno

from launcher.lean import os
from policy.errors import Refusal

_BASE = 0x10000  # above vm.mmap_min_addr everywhere
_HEADERS = 64 + 56
_MFD_EXEC = 0x10  # memfd_create(2), Linux 6.3

# The machine's number in an ELF header (elf(5)), and the programme of the text above. What it writes is at its end;
# what it reads goes onto the stack.
_CODE = {
    "x86_64": (
        62,
        "bf01000000 488d3557000000 ba01000000 b801000000 0f05"  # write(1, end, 1)
        "31ff 4889e6 b800000000 0f05"  # read(0, stack, 1)
        "bf04000000 31f6 b89d000000 0f05"  # prctl(PR_SET_DUMPABLE, 0)
        "bf01000000 488d3525000000 ba01000000 b801000000 0f05"  # write(1, end, 1)
        "31ff beffffffff 31d2 b8b4010000 0f05"  # close_range(0, ~0, 0)
        "b822000000 0f05 ebf7"  # pause(), again and again
        "00",
    ),
    "aarch64": (
        183,
        "200080d2 a1030010 220080d2 080880d2 010000d4"  # write(1, end, 1)
        "000080d2 e1030091 e80780d2 010000d4"  # read(0, stack, 1)
        "800080d2 010080d2 e81480d2 010000d4"  # prctl(PR_SET_DUMPABLE, 0)
        "200080d2 01020010 220080d2 080880d2 010000d4"  # write(1, end, 1)
        "000080d2 01008012 020080d2 883680d2 010000d4"  # close_range(0, ~0, 0)
        "000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"  # ppoll(0, 0, 0, 0), again and again
        "00",
    ),
}


def program(machine: str) -> bytes:
    """The keeper as an ELF file with one read-only segment.

    Raises:
        Refusal: machine-unsupported.
    """
    if machine not in _CODE:
        raise Refusal("machine-unsupported", f"the bubblewrap backend does not know {machine}")
    number, text = _CODE[machine]
    code = bytes.fromhex(text)
    size = _HEADERS + len(code)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian, version 1
        + _fields((2, 2), (number, 2), (1, 4))  # executable
        + _fields((_BASE + _HEADERS, 8), (64, 8), (0, 8), (0, 4))  # entry, program headers, no sections
        + _fields((64, 2), (56, 2), (1, 2), (64, 2), (0, 2), (0, 2))
    )  # fmt: skip
    segment = _fields((1, 4), (5, 4), (0, 8), (_BASE, 8), (_BASE, 8), (size, 8), (size, 8), (0x10000, 8))
    return header + segment + code


def descriptor(machine: str) -> int:
    """The keeper as a file in memory, executable by its descriptor, which the caller owns. Close-on-exec."""
    try:
        fd = os.memfd_create("paddock-keeper", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("paddock-keeper", os.MFD_CLOEXEC)  # an older kernel, where every such file can be executed
    os.write(fd, program(machine))
    return fd


def _fields(*values: tuple[int, int]) -> bytes:
    return b"".join(value.to_bytes(size, "little") for value, size in values)
