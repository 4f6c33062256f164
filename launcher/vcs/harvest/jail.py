"""A git command in a minimal jail (`jail.confined`), to read objects that an agent wrote.

The command never gets the agent's git directory as its own: neither configuration nor refs nor hooks of it are looked
at. It works in an empty repository of ours and borrows the agent's object directory by environment, so that bytes of
objects are all it parses.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterable
from typing import IO, NamedTuple

from launcher.jail import confined
from launcher.vcs.git import Git, Object, executable, hardened_environment, in_gits_words, parsed_objects
from launcher.vcs.jailed_git import start
from launcher.vcs.private.copied_settings import quoted
from launcher.vcs.private.record import pin
from policy.errors import EXIT_REFUSED, Refusal, in_rows

# What holds an agent's work while it is harvested.

KEPT = "nothing is lost: the work stays in the private git directory; to see it: paddock run -- git log"


def pinned(git: Git, worktree_id: str, base: str) -> str:
    """The commit that holds what a private git directory borrows, whatever the user does with his refs; "" for none.

    Args:
        worktree_id: names the pin.
        base: what it is set to when the user has removed it.
    """
    held = git.ref(pin(worktree_id))
    if not held and base:
        git.run("update-ref", "-m", "paddock: harvest", pin(worktree_id), base)
    return held or base


_MOST_SAID = 4000
_MEMORY = 4 << 30


class Reading(NamedTuple):
    """What a jailed command may read.

    Attributes:
        skeleton: an empty bare repository of ours (see `skeleton.make`).
        objects: the agent's object directory, looked through by `gather.check_agent_objects`.
        stores: object directories of trusted repositories, which hold what the agent's borrow.
    """

    skeleton: str
    objects: str
    stores: tuple[str, ...]


class Jailed:
    """A git command that runs in a jail. A context manager: at its end the command has ended."""

    def __init__(
        self,
        words: tuple[str, ...],
        reading: Reading,
        *,
        stdin: bytes | IO[bytes] = b"",
        writes: bool = False,
        patience: float = 900,
    ) -> None:
        """Starts `git WORDS...`.

        Args:
            reading: what it may read.
            writes: it adds to `reading.objects`, in place of reading there.
            patience: seconds until it is killed.

        Refusals: git-missing.
        """
        environment = hardened_environment(()) | {
            "GIT_DIR": reading.skeleton,
            "GIT_OBJECT_DIRECTORY": reading.objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(quoted, reading.stores)),
        }
        own = (reading.objects,)
        spec: confined.Spec = (
            reading.skeleton,
            (executable(words, reading.objects), *words),
            (tuple(dict.fromkeys((reading.skeleton, *reading.stores, *own))), own if writes else (), ()),
            tuple(environment.items()),
            (("memory", _MEMORY), *(() if writes else (("file_size", 1 << 20),)), ("open_files", 1024)),
        )
        given = os.memfd_create("paddock-stdin", os.MFD_CLOEXEC)
        self._said = os.memfd_create("paddock-stderr", os.MFD_CLOEXEC)
        try:
            if isinstance(stdin, bytes):
                with os.fdopen(os.dup(given), "wb") as file:
                    file.write(stdin)
                os.lseek(given, 0, os.SEEK_SET)
            source = given if isinstance(stdin, bytes) else stdin
            self.process = start(spec, stdin=source, stdout=subprocess.PIPE, stderr=self._said)
        except BaseException:
            os.close(self._said)
            raise
        finally:
            os.close(given)

        self._patience = patience
        self._timer = threading.Timer(patience, self.process.kill)
        self._timer.daemon = True

    def __enter__(self) -> "Jailed":
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        # The helper's death ends all that is in the jail.
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._said)

    def check(self, what: str) -> None:
        """Waits for the command's end.

        Args:
            what: what it was to do, for the message.

        Refusals: harvest-unreadable when it failed or took too long; what the jail refused.
        """
        status = self.process.wait()
        if status == 0:
            return
        if status == -signal.SIGKILL:
            raise Refusal("harvest-unreadable", f"{what} took longer than {self._patience:.0f} seconds", hint=KEPT)
        said = os.pread(self._said, _MOST_SAID, max(0, os.fstat(self._said).st_size - _MOST_SAID))
        text = said.decode("utf-8", "replace")
        refusal = confined.refusal_in(text) if status == EXIT_REFUSED else None
        if refusal is not None:
            raise refusal
        lines = in_gits_words(said, 6)
        raise Refusal(
            "harvest-unreadable",
            f"{what} failed",
            context=in_rows(*lines, f"git ended with status {status} in its jail"),
            hint=KEPT,
        )


def objects(reading: Reading, names: Iterable[str], what: str) -> list[Object]:
    """What each name stands for, in their order; `what`: as for `Jailed.check`."""
    asked = "".join(f"{name}\n" for name in names).encode()
    with Jailed(("cat-file", "--batch-check"), reading, stdin=asked) as jailed:
        assert jailed.process.stdout is not None
        answers = jailed.process.stdout.read()
        jailed.check(what)
    return list(parsed_objects(answers))
