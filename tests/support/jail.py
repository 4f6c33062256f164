"""Running commands in the jail of `tests/support/jailed.py`."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import install
from tests.support.identity import Who, Word
from tests.support.install import Installed

PROGRAM = Path(__file__).with_name("jailed.py")

# Names for what an attack met: "ok", or the errno's name.
ATTEMPT = """
import ctypes, errno, json, os, socket, sys
def attempt(call, *words, **options):
    try:
        call(*words, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok"
"""


@dataclass(frozen=True)
class Jail:
    """Commands in a jail around `worktree`, as one user.

    Args:
        who: acts.
        installed: the sources under test.
        outside: a directory of that user which no jail is granted.
        worktree: the writable tree.
        python: an interpreter that exists inside too.
    """

    who: Who
    installed: Installed
    outside: Path
    worktree: Path
    python: Path

    def command(self, argv: Sequence[Word], **spec: object) -> list[str]:
        """The words that run `argv` in a jail as `spec` says (see `jailed.py`), as this user."""
        return self.who.command(self.words(argv, **spec))

    def words(self, argv: Sequence[Word], **spec: object) -> list[str]:
        """The same without a change of user in front."""
        program = self.outside / "jailed.py"
        program.write_text(PROGRAM.read_text())
        number = len(list(self.outside.glob("spec-*.json")))
        file = self.outside / f"spec-{number}.json"
        base = {"argv": list(map(str, argv)), "worktree": str(self.worktree)}
        file.write_text(json.dumps(base | spec, default=str))
        return [str(self.installed.python), "-I", str(program), str(file)]

    def run(self, argv: Sequence[Word], **spec: object) -> "subprocess.CompletedProcess[str]":
        """Runs `argv` in a jail to its end, with nothing to read."""
        return self.who.run(self.words(argv, **spec), cwd=self.worktree)

    def attack(self, code: str, *words: Word, **spec: object) -> Any:  # noqa: ANN401  # whatever JSON the attack says
        """What Python `code` in a jail leaves in the variable `result`; it has `attempt` and `words`."""
        program = f"{ATTEMPT}\nwords = sys.argv[1:]\n{code}\nprint(json.dumps(result))\n"
        ended = self.run([self.python, "-I", "-S", "-c", program, *words], **spec)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def facts(self, **spec: object) -> dict[str, list[tuple[str, str]]]:
        """What the layer reports for a jail: row -> (verdict, detail) of each entry."""
        report = self.outside / "report.json"
        ended = self.run(["true"], report=report, **spec)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, list[tuple[str, str]]] = {}
        for row, verdict, detail in json.loads(report.read_text()):
            found.setdefault(row, []).append((verdict, detail))
        return found


def make(who: Who, installed: Installed, place: Path) -> Jail:
    """A jail whose worktree and outside are new directories in `place`, which belongs to `who`."""
    for name in ("outside", "worktree"):
        (place / name).mkdir()
    who.give(place)
    return Jail(who, installed, place / "outside", place / "worktree", install.base_python())


def filled(jail: Jail, name: str, *, inside: bool = False) -> Path:
    """A new directory `name` with the file `file` in it, outside of the worktree or inside."""
    directory = (jail.worktree if inside else jail.outside) / name
    directory.mkdir(parents=True)
    (directory / "file").write_text("content\n")
    jail.who.give(directory)
    return directory
