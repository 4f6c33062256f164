"""A day's use of the installed command, each verb of it, and everything that it prints, in one file for reading.

`python -m tests.support.day` prints it; `python -m tests.support.texts`, what no day shows.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher import cli
from tests.support import identity, warmed
from tests.support.paddock import BEGUN, LAUNCH

PREPARE, _, DAY = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").partition("\n\n")
"""What is there in the morning, and then the command lines; one that begins with `tty` runs at a terminal."""

_PLAIN = re.compile(
    r"(?:cd (?P<cwd>[~/][\w/-]*) && )?(?P<env>(?:\w+=\w+ )*)"
    r"paddock (?P<words>(?P<verb>[a-z]+)(?:[\w ./:~@=,-]|'[^']*')*)"
)
"""What no shell is needed for."""


def lived(paddock: Path) -> str:
    """All that is typed and printed in a day.

    Args:
        paddock: directory of the installed command.
    """
    with tempfile.TemporaryDirectory(prefix="paddock-day-", dir="/var/tmp") as place:
        home = os.path.realpath(place)
        run = f"{home}/run"
        os.mkdir(run, 0o700)
        environment = {"HOME": home, "PATH": f"{paddock}:{home}/.local/bin:/usr/local/bin:/usr/bin:/bin",
                       "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": run, "TERM": "xterm"}  # fmt: skip
        subprocess.run(["bash", "-ec", PREPARE], env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        said: list[str] = []
        who = (identity.root if os.geteuid() == 0 else identity.user)(Path(home))
        for line in DAY.strip().splitlines():
            typed = line.removeprefix("tty ")
            plain = _PLAIN.fullmatch(line)
            if plain and plain["verb"] in cli.VERBS and plain["verb"] not in BEGUN:
                told = [re.sub("^~", home, word) for word in shlex.split(plain["words"])]
                cwd = re.sub("^~", home, plain["cwd"] or "~/src/project")
                more = dict(each.split("=") for each in plain["env"].split())
                call = warmed.launch if plain["verb"] in LAUNCH else warmed.run
                ended = call(who, paddock / "python", told, cwd=Path(cwd), env=environment | more)
                said.append(shown(typed, ended.stdout + ended.stderr, ended.returncode, home))
                continue
            words = ["script", "-qec", typed, "/dev/null"] if typed != line else ["bash", "-c", typed]
            done = subprocess.run(
                words,
                cwd=f"{home}/src/project",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
            output = done.stdout.decode("utf-8", "replace").replace("\r\n", "\n")
            said.append(shown(typed, output, done.returncode, home))
    return "\n".join(said)


def shown(typed: str, output: str, status: int, home: str) -> str:
    """A command line, what it printed, and its status where that is none of success."""
    return f"$ {typed}\n{output.replace(home, '/home/me')}" + (f"[status {status}]\n" if status else "")


def main() -> None:
    """Prints the day."""
    print(lived(Path(sys.executable).parent))


if __name__ == "__main__":
    main()
