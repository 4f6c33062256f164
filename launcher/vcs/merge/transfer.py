"""Taking commits from one trusted store to another of the same submodule, offline."""

import subprocess

from launcher.vcs.git import Git, GitFailed, kill

_INDEX = ("index-pack", "--stdin", "--fix-thin", "--strict")
_PACK = ("pack-objects", "--revs", "--thin", "--stdout", "-q", "--delta-base-offset")


def transfer(source: Git, target: Git, commit: str) -> None:
    """Copies `commit` and what `target` lacks of its history.

    Raises:
        GitFailed: `source` does not have all of it, or git failed. Then `target` has no more than loose ends, which
            nothing refers to.
    """
    tips = sorted(set(target.run("for-each-ref", "--format=%(objectname)").out.split()))
    asked = b"".join(tip + b"\n" for tip in tips)
    lines = source.run("cat-file", "--batch-check", input=asked).out.splitlines() if tips else []
    common = [line.split(b" ")[0] for line in lines if not line.endswith(b" missing")]
    wanted = commit.encode() + b"\n" + b"".join(b"^" + tip + b"\n" for tip in common)
    pipe = subprocess.PIPE
    packing = source.start(*_PACK, stdin=pipe, stdout=pipe)
    try:
        indexing = target.start(*_INDEX, stdin=packing.stdout, stderr=pipe)
        try:
            assert packing.stdin is not None
            assert packing.stdout is not None
            assert indexing.stderr is not None
            packing.stdout.close()  # index-pack alone reads it, so pack-objects notices when that dies
            try:
                packing.stdin.write(wanted)
                packing.stdin.close()
            except BrokenPipeError:
                pass  # its exit status tells
            err = indexing.stderr.read()
            statuses = packing.wait(source.timeout), indexing.wait(target.timeout)
        finally:
            kill(indexing)
    finally:
        kill(packing)
    if any(statuses):
        why = f"exit status {statuses[1]}, pack-objects {statuses[0]}"
        raise GitFailed("git-failed", _INDEX, target.git_dir, why, status=statuses[1], err=err)
