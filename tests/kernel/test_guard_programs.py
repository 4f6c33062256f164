"""Everyday programmes where the guard changes modes, owners, times and attributes for them, and the report of it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support import guarded, install
from tests.support.features import need
from tests.support.guarded import Guarded
from tests.support.identity import Who
from tests.support.install import Installed


@pytest.fixture
def jail(user: Who, installed: Installed, public_dir: Path) -> Guarded:
    """A jail of the backend landlock+guard, of an ordinary user: root has no capability there either."""
    need("landlock")
    return guarded.at(user, installed, public_dir)


PROGRAMS = {
    "git init and commit": """
        git init -q new && cd new && git config user.name n && git config user.email e@example.invalid &&
        echo x > file && git add file && git commit -q -m first && git config --global --list >/dev/null;
        git -C . log --oneline | grep -q first""",
    "git clone": "git init -q source && git clone -q source copy 2>/dev/null && cd copy && git config a.b c",
    "cp -a": "mkdir d && touch -d 2001-01-01 d/f && chmod 640 d/f && cp -a d e && test ! e/f -nt d/f",
    "tar xp": """
        mkdir d && touch -d 2001-01-01 d/f && chmod 754 d/f && ln -s f d/l && tar cf t.tar d && rm -r d &&
        tar xpf t.tar && test "$(stat -c %a,%Y d/f)" = "754,$(date -d 2001-01-01 +%s)" """,
    "install": "echo x > f && install -m 755 -D f a/b/f && test -x a/b/f",
    "rename and link between directories": """
        mkdir a b && touch a/f && $PYTHON -c 'import os; os.rename("a/f", "b/f"); os.link("b/f", "a/g")'""",
    "touch, chmod -R": "mkdir -p a/b && touch a/b/c && chmod -R go-rwx a && touch -h -d 2001-01-01 a",
    "sed -i": "echo a > f && chmod 640 f && sed -i s/a/b/ f && test $(stat -c %a f) = 640",
    "git apply": """
        printf -- '--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n' > p && echo a > f && chmod 755 f && git apply p &&
        grep -q b f && test -x f""",
    "a virtual environment": "$PYTHON -m venv --without-pip v && v/bin/python -c 'import sys; assert sys.prefix'",
    "mkfifo, mktemp": "mkfifo -m 600 p && mktemp -p . >/dev/null && mktemp -d >/dev/null",
    "python's shutil": 'echo x > f && $PYTHON -c \'import shutil; shutil.copy2("f", "g"); shutil.copystat("f", "g")\'',
    "zip": "echo x > f && $PYTHON -m zipfile -c z.zip f && mkdir o && $PYTHON -m zipfile -e z.zip o && test -f o/f",
}


def test_everyday_programs_work_and_the_report_says_held(jail: Guarded) -> None:
    """Tools that set modes, owners and times do their work in the worktree without a complaint.

    The rows that the guard holds are reported as held, those of a mount namespace as not held.
    """
    lines = [f"export PYTHON={install.base_python()}"]
    for number, script in enumerate(PROGRAMS.values()):
        quoted = shlex.quote(f"exec 2>&1; {script}")
        lines.append(f"mkdir {number}; echo {number}:; (cd {number}; sh -ec {quoted} || echo ended with $?)")
    report = jail.outside / "report.json"
    ended = jail.run(["sh", "-c", "\n".join(lines)], "--report", report)
    said = re.split(r"^\d+:\n", ended.stdout, flags=re.MULTILINE)[1:]
    assert dict(zip(PROGRAMS, said, strict=True)) == dict.fromkeys(PROGRAMS, ""), ended.stderr
    assert ended.returncode == 0, ended.stderr
    # A repository that was made is told where a session has lasted a while, as on a busy machine.
    complaints = [
        line for line in ended.stderr.splitlines() if not line.startswith(("paddock: warning:", "paddock: created "))
    ]
    assert complaints == []
    verdicts = guarded.facts(json.loads(report.read_text()))
    held = {row for row, verdict in verdicts.items() if verdict == "held"}
    assert held >= {"metadata", "unix-sockets", "terminals", "network", "survival"}
    assert set(verdicts) - held == {"handoff", "visibility", "shared-memory"}
