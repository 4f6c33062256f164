"""Swaps a directory for a symbolic link that leads out, and a file for one, as fast as it can.

Arguments: a directory, how many times, where the links lead. Ends by itself; says `ready` when it has begun.
"""

import ctypes
import os
import sys

RENAME_EXCHANGE = 2
AT_FDCWD = -100


def main() -> None:
    """In the directory: ``way/file`` is the true file, ``way2`` a link to the outside; ``name`` and ``name2`` alike."""
    os.chdir(sys.argv[1])
    count, outside = int(sys.argv[2]), sys.argv[3]
    os.symlink(outside, "way2")
    os.symlink(f"{outside}/file", "name2")
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    print("ready", flush=True)
    for number in range(count):
        one, other = (b"way", b"way2") if number % 2 else (b"name", b"name2")
        # Two at a time, so that each link stands as often as what it takes the place of.
        for _ in range(1 + number % 4 // 2):
            # A file that was replaced by a tool meanwhile is a file all the same.
            renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)


if __name__ == "__main__":
    main()
