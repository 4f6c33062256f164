"""README's first console session, and its recording, are what happens when somebody types them."""

import html
import re
import shutil
from pathlib import Path

import pytest

from tests.support import manual, recording
from tests.support.examples import HOME
from tests.support.features import need
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed

_MADE = r"""
set -e
mkdir -p ~/.ssh ~/src/project
echo key > ~/.ssh/id_ed25519
cd ~/src/project
git -c init.defaultBranch=main init -q
git config user.name Tester
git config user.email tester@example.invalid
printf 'test:\n\t@echo OK\n' > Makefile
echo 'spaces only' > parser.py
git add .
git commit -qm 'project: First.'
"""


def session(home: str) -> tuple[list[str], str]:
    """The lines that the user of README types, and what is shown between them."""
    text = manual.README.read_text(encoding="utf-8")
    (block, *_) = re.findall(r"(?ms)^```console\n(.*?)^```$", text)
    lines = block.replace(HOME, home).splitlines()
    typed = [re.sub(r"  +# .*", "", line[2:]) for line in lines if line.startswith("$ ")]
    return typed, "".join(f"{line}\n" for line in lines if not line.startswith("$ "))


def plain(shown: str) -> str:
    """`shown` without what differs from run to run, and between a shell that reads a script and one at a terminal."""
    shown = re.sub(r"(?m)^bash: line \d+: ", "bash: ", shown)
    return re.sub(r"\b[0-9a-f]{10,12}\b", "COMMIT", shown)


@AS_A_USER
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_first_session_of_readme_is_what_happens(who: Who, installed: Installed) -> None:
    """Line by line: the work is done, the three ways out are denied in these words, and the commit is on the branch."""
    need("userns")
    assert who.run(["bash", "-c", _MADE]).returncode == 0
    typed, expected = session(str(who.home))
    start = next(number for number, line in enumerate(typed) if line.endswith("paddock run -- bash"))
    outside, inside = typed[: start + 1], typed[start + 1 :]
    assert len(inside) >= 5
    # Without a terminal curl would show its progress; and the edit is not in README.
    script = ["echo tabs >> parser.py", *(re.sub(r"^curl ", "curl -sS ", line) for line in inside)]
    ended = who.run(
        ["bash", "-c", "exec 2>&1\n" + "\n".join(outside)],
        stdin="".join(f"{line}\n" for line in script),
        env={"PATH": f"{installed.paddock.parent}:{who.path}"},
    )
    assert plain(ended.stdout) == plain(expected)
    commit = who.run(["git", "log", "-1", "--format=%s", "agent/tabs"], cwd=Path(who.home, "src/project"))
    assert commit.stdout == "parser: Accept tabs.\n"


def test_the_recording_on_the_front_page_is_what_happens(installed: Installed) -> None:
    """Each of its commands ends as the recording says, and shows the same words (`make recording` draws it anew)."""
    need("userns")
    shown = recording.TARGET.read_text(encoding="utf-8")
    lines = recording.recorded(installed.paddock.parent)
    typed = [line for line in lines if line.startswith("$ ")]
    assert len(typed) == len(recording.SCENE)

    def words(text: str) -> str:
        return re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}|[0-9a-f]{7,}|\d{4}-\d\d-\d\d", "#", text)

    drawn = words(html.unescape(re.sub(r"<[^>]*>", "", shown))).split("\n")
    assert [line for line in lines if line and words(line)[: recording.COLUMNS] not in drawn] == []
