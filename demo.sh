#!/usr/bin/env bash
# Makes a real repository with two worktrees and a submodule, works in one of them inside a jail, and then tries to get
# out. Everything lives in a temporary directory that is removed at the end; a fake home stands in for yours.
# `paddock` comes from PATH. Exit status 0 only if all work was done and every attempt to get out was denied.
set -euo pipefail

demo=$(mktemp -d "${TMPDIR:-/tmp}/paddock-demo.XXXXXX")
trap 'chmod -R u+rwX "$demo" 2>/dev/null; rm -rf "$demo"' EXIT
unset XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME "${!GIT_@}" "${!PADDOCK_@}"
export HOME=$demo/home GIT_CONFIG_NOSYSTEM=1 PYTHONDONTWRITEBYTECODE=1 DEPLOY_TOKEN=hunter2-not-for-agents
mkdir -p "$HOME/.ssh"
echo "-----BEGIN OPENSSH PRIVATE KEY----- (a fake one)" >"$HOME/.ssh/id_ed25519"
git config --global user.name "Demo User"
git config --global user.email demo@example.org
git config --global init.defaultBranch main
git config --global protocol.file.allow always

if [[ -t 1 ]]; then bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'; else bold='' green='' red='' plain=''; fi
failed=0

title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }

# quoted WORD...: the words as they can be pasted, in quotes where they need any.
quoted() {
    local word line=''
    for word; do
        [[ $word =~ ^[A-Za-z0-9_./:=@%+,-]+$ ]] || word=${word@Q}
        line+=" $word"
    done
    printf '%s' "${line# }"
}

# works WHAT COMMAND...: must succeed inside the jail.
works() {
    local what=$1
    shift
    printf '%s$ paddock run -- %s%s\n' "$bold" "$(quoted "$@")" "$plain"
    if paddock run -- "$@" 2>&1 | sed 's/^/    /'; then
        printf '  %sworks%s   %s\n' "$green" "$plain" "$what"
    else
        printf '  %sFAILED%s  %s\n' "$red" "$plain" "$what"
        failed=1
    fi
}

# denied WHAT COMMAND...: must fail inside the jail, and must not print a secret or leave anything behind.
denied() {
    local what=$1 output
    shift
    printf '%s$ paddock run -- %s%s\n' "$bold" "$(quoted "$@")" "$plain"
    if output=$(paddock run -- "$@" 2>&1); then
        printf '%s\n' "$output" | sed 's/^/    /'
        printf '  %sNOT DENIED%s  %s\n' "$red" "$plain" "$what"
        failed=1
    else
        printf '%s\n' "${output:-($1: nothing printed, and a status that is not 0)}" | sed 's/^/    /'
        printf '  %sdenied%s  %s\n' "$green" "$plain" "$what"
    fi
}

title "A repository with a submodule, and a worktree for each of two agents"
git init --quiet "$demo/library"
echo "def answer(): return 42" >"$demo/library/library.py"
git -C "$demo/library" add . && git -C "$demo/library" commit --quiet --message "library"
git init --quiet "$demo/project"
cd "$demo/project"
git submodule --quiet add "$demo/library" library
mkdir tests
cat >tests/test_answer.py <<'END'
import sys, unittest
sys.path.insert(0, "library")
from library import answer

class TestAnswer(unittest.TestCase):
    def test_answer(self):
        self.assertEqual(answer(), 42)
END
cat >hello.c <<'END'
#include <stdio.h>
int main(void) { puts("hello from a jail"); return 0; }
END
printf 'hello: hello.c\n\t$(CC) -o $@ $<\n' >Makefile
printf 'hello\n__pycache__/\n' >.gitignore
git add . && git commit --quiet --message "project"
for agent in agent-1 agent-2; do
    git worktree add --quiet -b "$agent" "../$agent"
    git -C "../$agent" submodule --quiet update --init
done
echo "what agent-2 is working on" >../agent-2/secret-plan.txt
cd ../agent-1
git worktree list | sed "s#$demo#...#; s/^/    /"

title "Everyday work inside agent-1's jail"
works "an interpreter" python3 -c 'import sys; print("python", sys.version.split()[0])'
works "the tests, submodule included" python3 -B -m unittest discover -s tests
if command -v make >/dev/null && command -v cc >/dev/null; then
    works "a build" sh -c 'make --silent && ./hello'
fi
works "a shell pipeline, home and temp of its own" sh -c \
    'git log --oneline | tee "$TMPDIR/log" | wc -l && echo note >"$HOME/note" && cat "$HOME/note"'
works "a commit, which is harvested when the session ends" sh -c \
    'echo "work of agent-1" >work.txt && git add work.txt && git commit --quiet -m "Add work of agent-1" && git status'
if [[ $(git log -1 --format=%s) != "Add work of agent-1" ]]; then
    printf '  %sNOT HARVESTED%s  %s\n' "$red" "$plain" "the commit is not on the branch outside"
    failed=1
fi

title "Getting out"
ln -s "$HOME/.ssh/id_ed25519" innocent-link
denied "another agent's worktree" cat "$demo/agent-2/secret-plan.txt"
denied "the home directory's keys" cat "$HOME/.ssh/id_ed25519"
denied "password hashes" cat /etc/shadow
denied "traversal with .." cat ../agent-2/secret-plan.txt
denied "a symbolic link out" cat innocent-link
denied "writing outside" sh -c "echo gotcha >'$demo/project/gotcha'"
denied "a secret in the environment" sh -c 'printenv DEPLOY_TOKEN || { echo "(printenv: not set)"; exit 1; }'
denied "the network" python3 -c \
    'import socket; socket.create_connection(("192.0.2.1", 443), timeout=3)'
denied "git's hooks of the main repository" sh -c "echo evil >'$demo/project/.git/hooks/pre-commit'"
rm innocent-link
[[ ! -e $demo/project/gotcha ]] || { echo "something was written outside"; failed=1; }

title "Why, and what would allow it"
paddock why "$HOME/.ssh/id_ed25519" | sed "s#$demo#...#g; s/^/    /" || true

if ((failed)); then
    title "Something is wrong: see above"
    exit 1
fi
title "All work was done, and every way out was closed. Next: $(command -v paddock) doctor"
