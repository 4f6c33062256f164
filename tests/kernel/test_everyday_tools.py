"""Everyday work with shells, files, compilers and git runs in a jail as it does without one."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.programs.scene import Scene

MEBIBYTE = 1 << 20


SHELL = {
    "here-document": ("cat <<END\nhello\nEND", "hello\n"),
    "here-string": ('read -r a b <<<"one two"; echo $b', "two\n"),
    "background jobs": ("for i in 1 2 3; do (sleep 0.05; exit $i) & done; wait; echo $?", "0\n"),
    "wait for one": ("(exit 7) & wait $!; echo $?", "7\n"),
    "process substitution": ("diff <(echo a) <(echo b) | wc -l", "4\n"),
    "traps": ("trap 'echo bye' EXIT; trap 'echo usr1' USR1; kill -USR1 $$; echo on", "usr1\non\nbye\n"),
    "time": ("{ time true; } 2>&1 | grep -c real", "1\n"),
    "coprocess": ("coproc cat; echo hi >&${COPROC[1]}; read -r x <&${COPROC[0]}; echo $x; kill $COPROC_PID", "hi\n"),
    "named pipe": ("mkfifo p; echo through >p & cat p; rm p", "through\n"),
    "sort with temporary files": ("seq 50000 | sort -R -S 100K | sort -n -S 100K | tail -n 1", "50000\n"),
    "edit in place": ("echo old >f; sed -i s/old/new/ f; cat f", "new\n"),
    "archive": ("mkdir d; echo x >d/a; ln -s a d/l; tar czf d.tgz d; rm -r d; tar xzf d.tgz; readlink d/l", "a\n"),
    "copy with attributes": ("mkdir e; echo x >e/a; chmod 751 e/a; cp -a e g; stat -c %a g/a", "751\n"),
    "links": ("echo x >h1; ln h1 h2; ln -s h1 h3; stat -c %h h1; cat h3", "2\nx\n"),
    "find": ("mkdir -p k/l; touch k/l/m; find k -name m -newermt 2000-01-01 -exec echo {} +", "k/l/m\n"),
    "pipeline of many": ("yes | head -n 100000 | tr y n | uniq -c | tr -s ' '", " 100000 n\n"),
    "long names": ("n=$(printf 'x%.0s' $(seq 255)); echo long >$n; cat $n; rm $n", "long\n"),
    "odd names": ("touch $'a\\nb' '-rf' ' c'; ls | wc -l", None),
    "deep directories": ("d=$(printf 'd-%s/' $(seq 200)); mkdir -p $d; cd $d; echo x >f; cat f", "x\n"),
    "locale": ("export LC_ALL=C.UTF-8; printf '\\u00e4' | wc -m", "1\n"),
    "temporary files": ("f=$(mktemp); echo t >$f; cat $f; d=$(mktemp -d /tmp/x.XXXXXX) && rmdir $d; rm $f", "t\n"),
    "home": ("mkdir -p ~/.config/tool; echo h >~/.config/tool/a; cat ~/.config/tool/a", "h\n"),
    "devices": ("head -c 8 /dev/urandom | wc -c; echo x >/dev/null; head -c 4 /dev/zero | wc -c", "8\n4\n"),
    "standard streams by name": (
        "{ echo out >/dev/stdout; echo in | cat /dev/stdin; echo x >/dev/stderr; } 2>&1 | cat",
        "out\nin\nx\n",
    ),
    "own limits": ("ulimit -n 256; ulimit -n", "256\n"),
    "mode and time": (
        "touch q; chmod 600 q; touch -d 2001-01-01 q; stat -c '%a %y' q | cut -c1-14",
        "600 2001-01-01\n",
    ),
    "umask": ("umask 027; touch u; stat -c %a u", "640\n"),
    "kill of a child": ("sleep 60 & kill $!; wait $! 2>/dev/null; echo $?", "143\n"),
    "timeout": ("timeout 0.1 sleep 60; echo $?", "124\n"),
    "xargs in parallel": ("seq 16 | xargs -P 8 -n 1 echo | sort -n | tail -n 1", "16\n"),
    "nohup and setsid": ("setsid -w echo s; nohup echo n 2>/dev/null", "s\nn\n"),
    "lock": ("flock lock echo locked", "locked\n"),
    "user": (
        "whoami >/dev/null; id -un >/dev/null; hostname >/dev/null; date >/dev/null; uname >/dev/null; echo ok",
        "ok\n",
    ),
    "git": (
        """
        set -e
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main own; cd own
        echo 1 >f; git add f; git commit -qm one; git checkout -qb side; echo 2 >g; git add g; git commit -qm two
        git checkout -q main; git merge -q --no-ff -m merged side; git config user.name me; git gc -q
        cd ..; git clone -q own copy; git -C copy log --oneline | wc -l
        """,
        "3\n",
    ),
    "processors": (
        "test $(nproc) -ge 1; free >/dev/null; df . >/dev/null; uptime >/dev/null; ps >/dev/null; echo ok",
        "ok\n",
    ),
}


@ROOT_ONCE
def test_shells_and_core_tools(scene: Scene) -> None:
    """Each piece of shell work says in the jail what it says everywhere."""
    work = scene.area / "work"
    work.mkdir()
    for number, (code, _) in enumerate(SHELL.values()):
        (work / str(number)).mkdir()
        (work / f"{number}.sh").write_text(f"{code}\n")
    scene.own(work)
    loop = f"for n in $(seq 0 {len(SHELL) - 1}); do (cd $n && bash ../$n.sh 2>errors); echo ===; done"
    ended = scene.run(["bash", "-c", loop], cwd=work)
    said = ended.stdout.split("===\n")
    assert len(said) == len(SHELL) + 1, ended.stdout + ended.stderr
    wrong = {}
    for number, ((name, (_, wanted)), text) in enumerate(zip(SHELL.items(), said, strict=False)):
        # Some tools write beside standard output; what matters is asserted, and the complaint is shown.
        errors = (work / str(number) / "errors").read_text()
        if wanted is not None and text != wanted:
            wrong[name] = (text, errors)
    assert not wrong


@pytest.mark.parametrize("scene_of_user", [promises.BUBBLEWRAP], indirect=True)  # a programme more in between
def test_much_passes_through_pipes(scene_of_user: Scene) -> None:
    """What goes in at standard input comes out at standard output, byte by byte, a thousand times what a pipe holds."""
    scene = scene_of_user
    size, block = 64 * MEBIBYTE, MEBIBYTE
    pattern = os.urandom(block)
    wanted = hashlib.blake2b()
    script = (
        "import hashlib, sys\nfound = hashlib.blake2b()\n"
        "while block := sys.stdin.buffer.read(1 << 20): found.update(block)\nprint(found.hexdigest())"
    )
    reader = subprocess.Popen([base_python(), "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process = scene.start(["cat"], stdin=subprocess.PIPE, stdout=reader.stdin, stderr=subprocess.PIPE)
    assert reader.stdin is not None
    reader.stdin.close()
    assert process.stdin is not None
    for _ in range(size // block):
        process.stdin.write(pattern)
        wanted.update(pattern)
    process.stdin.close()
    assert reader.stdout is not None
    assert reader.stdout.read().decode().strip() == wanted.hexdigest()
    assert (process.wait(60), reader.wait(60)) == (0, 0)
    assert process.stderr is not None
    process.stderr.close()
    reader.stdout.close()


@AS_A_USER
def test_a_reader_that_leaves_ends_the_writer(scene: Scene) -> None:
    """SIGPIPE works through the jail: `yes | head` ends."""
    process = scene.start(["yes"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(30) == 128 + 13


MAKEFILE = """
CFLAGS = -O1 -g -Wall
all: hello libshared.so
hello: main.o part.o
\t$(CC) -o $@ $^ -lm
libshared.so: part.c
\t$(CC) -shared -fPIC -o $@ $^
check: all
\t./hello
main.o part.o: part.h
"""
MAIN = r"""
#include <stdio.h>
#include <math.h>
#include "part.h"
int main(int count, char **words) { printf("%d %.0f\n", part(count), sqrt(49.0)); return 0; }
"""


def c_project(scene: Scene) -> Path:
    """A small C project in the worktree."""
    place = scene.area / "project"
    place.mkdir()
    (place / "Makefile").write_text(MAKEFILE)
    (place / "main.c").write_text(MAIN)
    (place / "part.c").write_text('#include "part.h"\nint part(int n) { return n + 41; }\n')
    (place / "part.h").write_text("int part(int n);\n")
    return scene.own(place)


GDB = ("break part", "run", "print n", "set variable n = 1", "continue")
TOOLS = {
    "make": (("make", "gcc"), "make -j4 check", ("42 7\n",)),
    "gdb": (
        ("gdb", "make", "gcc"),
        " ".join(["gdb -q -nx -batch", *(f"-ex '{command}'" for command in GDB), "./hello"]),
        ("$1 = 1", "42 7", "exited normally"),
    ),
    "strace": (
        ("strace",),
        "strace -f -e trace=execve -o trace sh -c 'true; /bin/true; /bin/echo hi'; grep -c 'execve(' trace",
        ("hi\n3\n",),
    ),
    "script": (
        ("script",),
        "script -qec 'tty; echo on a terminal' typescript >shown; echo $?; cat shown; echo recorded; cat typescript",
        ("0\n/dev/pts/", "recorded\nScript started", "on a terminal"),
    ),
    "children": (("sleep",), "for i in $(seq 200); do sleep 0.5 & done; wait; echo done", ("done\n",)),
}
"""Name -> what it needs, a line of bash(1) in a project of C, and what that says: make -j runs gcc, the linker and the
result; of that a breakpoint is met, a variable read and changed; all calls of a shell and its children are shown; a
shell runs on a new terminal and is recorded; and many processes side by side are no trouble.
"""


@AS_A_USER
def test_tools_that_start_and_follow_others(scene: Scene) -> None:
    """What builds, debugs, traces, records and has many children at once."""
    there = [name for name, (needed, *_) in TOOLS.items() if all(map(shutil.which, needed))]
    lines = "\n".join(f"({TOOLS[name][1]}) 2>&1; echo ===" for name in there)
    ended = scene.run(["bash", "-c", lines], cwd=c_project(scene))
    said = dict(zip(there, ended.stdout.replace("\r", "").split("===\n"), strict=False))
    assert {name: text for name, text in said.items() if any(word not in text for word in TOOLS[name][2])} == {}
    assert list(said) == there, ended
    if missing := TOOLS.keys() - said.keys():
        pytest.skip(f"there is nothing for {', '.join(missing)}; all else was tried")


@AS_A_USER
def test_git_reads_in_a_linked_worktree(scene: Scene) -> None:
    """With --git readonly what only reads works; the index of the main repository stays."""
    (scene.repo.one / "README.md").write_text("changed\n")
    scene.own(scene.repo.one / "README.md")
    index = scene.repo.main / ".git/worktrees/one/index"
    before = index.read_bytes()
    program = """
    set -e
    git log --oneline --stat | head -n 1
    git diff --stat
    git status --short
    git blame README.md >/dev/null
    git grep -n hello
    git show HEAD:src/hello.py
    git archive HEAD | tar tf - | wc -l
    git submodule status
    git -C library log --oneline
    git branch --show-current
    git rev-parse --show-toplevel
    """
    ended = scene.run(["sh", "-c", program], "--git", "readonly", cwd=scene.repo.one)
    assert ended.returncode == 0, ended.stderr
    for word in ("main: First.", "1 file changed", " M README.md", "src/hello.py:1:", "upstream: First.", "one\n"):
        assert word in ended.stdout
    assert index.read_bytes() == before
    assert (
        ended.stderr.replace(
            "paddock: warning: no user namespaces here: see `paddock doctor` for what is not held\n", ""
        )
        == ""
    )
