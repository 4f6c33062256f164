"""Looks for a text, given backwards, in all that a process can read: environments, memory, files. Says where it was.

Files that nobody has touched since long before this one was written cannot hold what was made up for it.
"""

import os
import stat
import sys

WANTED = sys.argv[1][::-1].encode()
SINCE = os.stat(__file__).st_ctime - 300  # nothing can turn back the time of a change
SKIPPED = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys", "/nix", "/opt")
looked = 0


def look(path: str) -> None:
    global looked
    try:
        with open(path, "rb") as file:
            before = b""
            while block := file.read(1 << 20):
                if WANTED in before + block:
                    print("found in", path)
                before = block[-len(WANTED) :]
        looked += 1
    except (OSError, ValueError):
        return


def memory(pid: str) -> None:
    """Of another process: this one holds the text itself."""
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as file:
            for line in maps:
                span, rights = line.split()[:2]
                start, end = (int(part, 16) for part in span.split("-"))
                if "r" not in rights or end - start > 256 << 20:
                    continue
                try:
                    file.seek(start)
                    if WANTED in file.read(end - start):
                        print("found in the memory of", pid)
                        return
                except (OSError, OverflowError, ValueError):
                    continue
    except OSError:
        return


for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        look(f"/proc/{pid}/{name}")
    if int(pid) not in (os.getpid(), os.getppid()):
        memory(pid)
for top, directories, names in os.walk("/"):
    if top.startswith(SKIPPED) or top.startswith("/proc"):
        directories.clear()
        continue
    for name in names:
        path = os.path.join(top, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size < 64 << 20 and found.st_ctime > SINCE:
            look(path)
print("looked at", looked, "files")
