"""The recording on the front page: commands that really ran, and what they said, as an animated SVG.

`make recording` runs them in a repository of its own with a home of its own, whose paths are shown as a user's.
"""

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.manual import ROOT

TARGET = ROOT / "docs/recording.svg"

SCENE = (
    ("paddock run --new tabs -- sh -c 'echo tab >>parser; git commit -qam \"parser: Tabs.\"'", 0),
    ("paddock run -- cat ~/.ssh/id_ed25519", 1),
    ("paddock run -- sh -c 'echo gotcha >.git/hooks/pre-commit'; ls .git/hooks/pre-commit", 2),
    ("paddock run -- python3 -c \"import urllib.request as r; r.urlopen('http://example.org')\" 2>&1 | tail -1", 0),
    ("paddock why ~/.ssh/id_ed25519", 1),
    ("paddock run --review -- sh -c 'git log --oneline -1; echo x >parser'", 2),
    ("paddock merge tabs", 0),
)
"""Lines that are typed, and the exit status that each must have."""

_PREPARE = """
mkdir -p ~/.ssh ~/src/project && echo secret >~/.ssh/id_ed25519
git config --global user.name Me && git config --global user.email me@example.org
git config --global init.defaultBranch main
cd ~/src/project && git init -q && echo spaces >parser && git add parser && git commit -qm 'parser: First.'
"""
_ABSENT = "it looks as if it were not there (ENOENT)"
_WIDTH, _LINE = 960, 19
COLUMNS = 110
_COLOURS = {"$": "#e6e6e6", "paddock:": "#7fd1b9"}


def recorded(paddock: Path) -> list[str]:
    """The session's lines: each that was typed behind a dollar sign, and what came of it.

    Args:
        paddock: directory of the installed command.

    Raises:
        RuntimeError: a command ended otherwise than the scene says.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="paddock-recording-", dir="/var/tmp") as place:
        home = os.path.realpath(place)
        environment = {"HOME": home, "PATH": f"{paddock}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

        def run(line: str) -> "subprocess.CompletedProcess[str]":
            where = f"cd ~/src/project && {line}"
            return subprocess.run(["bash", "-c", where], env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=120, check=False)  # fmt: skip

        subprocess.run(["bash", "-ec", _PREPARE], env=environment, check=True, timeout=60)
        for typed, status in SCENE:
            done = run(typed)
            if done.returncode != status:
                raise RuntimeError(f"{typed}: status {done.returncode}, not {status}: {done.stdout}")
            lines += [f"$ {typed}", *of_a_home(done.stdout.replace(home, "/home/me")).splitlines(), ""]
    return lines


def of_a_home(text: str) -> str:
    """What `paddock why` says of a home that is in no temporary directory, of which a jail has its own."""
    return re.sub(r"(the jail's view: )/(?:var/)?tmp is the session's own: .*", r"\1" + _ABSENT, text)


def picture(lines: list[str]) -> str:
    """The lines as an SVG, in which they appear one after the other; without animation they are all there."""
    rows = [line[at : at + COLUMNS] for line in lines for at in range(0, max(len(line), 1), COLUMNS)]
    height = _LINE * len(rows) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img" '
        'aria-label="A terminal: an agent\'s commit is harvested and merged, and what it must not touch is refused">',
        "<style>text{font:14px monospace;white-space:pre;animation:show .01s both}"
        "@keyframes show{from{opacity:0}}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#1d2430"/>',
    ]
    delay = 0.0
    for number, row in enumerate(rows):
        delay += 0.9 if row.startswith("$ ") else 0.12
        colour = next((shade for mark, shade in _COLOURS.items() if row.startswith(mark)), "#aab4c3")
        out.append(
            f'<text x="16" y="{_LINE * number + 28}" fill="{colour}" style="animation-delay:{delay:.2f}s">'
            f"{html.escape(row)}</text>"
        )
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(picture(recorded(Path(sys.executable).parent)), encoding="utf-8")
    print(TARGET.relative_to(ROOT))
