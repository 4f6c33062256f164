"""mini-swe-agent's own loop on 20 tasks, through our sandbox and through its environments, with a scripted model.

`python -m tests.bench.bench_adapters [TASKS]` needs `make agents` and bwrap(1). In turn for each task; the figures are
milliseconds for one command. It fails when a command, an answer or what lies in the repository afterwards differs.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support import agent_packages

KINDS = {
    "local (subprocess)": {"environment_class": "local"},
    "Paddock": {"environment_class": "launcher.adapters.mini_swe_agent.PaddockEnvironment"},
    "bubblewrap": {"environment_class": "bubblewrap"},
}
_TESTER = "tester@example.invalid"
_ENV = {
    "LC_ALL": "C.UTF-8",
    **{f"GIT_{who}_{what}": _TESTER for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
_PYTHON = "/usr/bin/python3 -IB"
_FIRST = """
mkdir lib
cat >lib/calc.py <<'X'
def total(values):
    result = 0
    for value in values[1:]:
        result += value
    return result
X
cat >check.py <<'X'
import sys
sys.path.insert(0, "lib")
import calc
assert calc.total([1, 2, 3]) == 6, calc.total([1, 2, 3])
print("passed")
X
printf 'all:\\n\\t@echo built\\n' >Makefile
seq 1 200 >numbers
printf 'b;2\\na;1\\nc;3\\n' >table.csv
"""

# Tasks, separated by an empty line: commands, and at last what shows the answer.
_TASKS = rf"""
{_PYTHON} check.py 2>&1 | tail -1
sed -i 's/values\[1:\]/values/' lib/calc.py
{_PYTHON} check.py
git diff

cat lib/calc.py
sed -n 2,3p lib/calc.py
grep -rn total .
git status --short

make
printf 'all:\n\t@echo built again\n' >Makefile
make
make nothing
git diff --stat

awk '{{sum += $1}} END {{print sum}}' numbers
sed -i '$d' numbers
wc -l numbers
tail -1 numbers

sort -t';' -k2 table.csv >sorted.csv
cut -d';' -f1 sorted.csv
cat sorted.csv

git add -A
git commit -qm 'More.' --allow-empty
git log --format=%s
git rev-list --count HEAD

git switch -qc feature
echo x >new
git add new
git commit -qm 'A branch.'
git log -1 --format=%s

echo one >a
mv a b
ln -s b c
chmod 600 b
stat -c %a b
cat c

false
exit 7
(bash -c 'kill -TERM $$'; echo $?) 2>/dev/null
bash -c no-such-command
cat missing
echo done

echo out; echo err >&2; echo out
(echo a; exit 3)
true && echo yes || echo no
echo streams

printf 'grüße\n' >text
cat text
printf '\377\n'
wc -c text
cat text

seq 1 20000
yes x | head -c 200000 | wc -c
seq 1 100000 | tail -1
head -2 numbers

X=1; echo $X
echo ${{X:-unset}}
export Y=2; bash -c 'echo $Y'
cd lib && pwd | sed 's/.*\///'
ls

mkdir -p deep/er/still
touch deep/er/still/f
find . -path ./.git -prune -o -type f -print | sort
find deep | sort

{_PYTHON} -c 'import json; print(json.dumps({{"a": [1, 2]}}))' >o.json
{_PYTHON} -m json.tool o.json
cat o.json

tar --mtime=@0 -cf all.tar lib
tar -tf all.tar
rm -r lib
tar -xf all.tar
git diff --quiet -- lib
ls lib

cp check.py copy.py
diff check.py copy.py
echo more >>copy.py
diff check.py copy.py
cmp -s check.py copy.py; echo $?

for i in 1 2 3; do echo $i & wait; done
seq 3 | xargs -P3 -n1 echo | sort
(sleep 0.01; echo late) | cat
echo parallel

git stash list
echo y >>numbers
git stash -q
tail -1 numbers
git stash pop -q
tail -1 numbers

{_PYTHON} -c 'raise SystemExit(4)'
git apply --check /dev/null
sh -c 'echo $0' name
rm lib/calc.py
git diff --stat
"""
TASKS = [task.splitlines() for task in _TASKS.strip().split("\n\n")]
_PARTS = ("commands", "answer", "files", "commits")


def made(place: Path) -> Path:
    """A small repository."""
    place.mkdir()
    script = f"git init -q -b main . {_FIRST} git add -A && git commit -qm First."
    subprocess.run(["bash", "-ec", script], cwd=place, env={**os.environ, **_ENV}, check=True)
    return place


def worked(kind: dict[str, str], place: Path, commands: list[str]) -> tuple[list[float], tuple[object, ...]]:
    """One task: seconds for each command, and what came of it, as `_PARTS`."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments import get_environment
    from minisweagent.models.test_models import DeterministicModel, make_output

    commands[-1] = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; {commands[-1]}"
    env = get_environment({**kind, "cwd": str(made(place)), "env": _ENV})
    model = DeterministicModel(outputs=[make_output("", [{"command": each}], 0) for each in commands])
    agent = DefaultAgent(model, env, system_template="{{system}}", instance_template="{{task}}", cost_limit=0)
    times: list[float] = []
    execute = env.execute

    def timed(action: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        try:
            result: dict[str, Any] = execute(action)
            return result
        finally:
            times.append(time.perf_counter() - begun)

    env.execute = timed
    ended = agent.run("Do your work.")
    if hasattr(env, "cleanup"):
        env.cleanup()
    extras = [message.get("extra", {}) for message in agent.messages]
    results = [(extra["raw_output"], extra["returncode"]) for extra in extras if "raw_output" in extra]
    paths = [path for path in sorted(place.rglob("*")) if path.is_file() and ".git" not in path.parts]
    files = {path.relative_to(place): path.read_bytes() for path in paths}
    log = subprocess.run(["git", "log", "--all", "--format=%s"], cwd=place, capture_output=True, check=True).stdout
    return times, (results, ended, files, log)


def main() -> int:
    """Prints all of it; the exit status says whether the results were the same."""
    tasks = TASKS[: int(sys.argv[1])] if len(sys.argv) > 1 else TASKS
    os.environ["MSWEA_SILENT_STARTUP"] = "1"
    sys.path.insert(0, str(agent_packages.library("mini-swe-agent")))
    taken: dict[str, list[float]] = {name: [] for name in KINDS}
    whole = dict.fromkeys(KINDS, 0.0)
    other = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = f"{top}/configuration"
        for commands in tasks:
            results = []
            for name, kind in KINDS.items():
                place = Path(top, "task")
                begun = time.perf_counter()
                times, result = worked(kind, place, list(commands))
                whole[name] += time.perf_counter() - begun
                taken[name] += times
                shutil.rmtree(place)
                results.append(result)
                for part, here, first in zip(_PARTS, result, results[0], strict=True):
                    if here != first:
                        other += 1
                        print(f"{name}: {commands[0]}: other {part}:\n  {here}\n  {first}")
    said = f"{other} differences" if other else "the same results"
    print(f"{len(tasks)} tasks, {sum(map(len, tasks))} commands: {said}")
    print(f"{'':20} {'median':>8} {'best':>8} {'worst':>8}   ms for a command; s for all, with making and closing")
    base = statistics.median(taken[next(iter(KINDS))])
    for name, times in taken.items():
        median = statistics.median(times)
        columns = " ".join(f"{seconds * 1000:8.2f}" for seconds in (median, min(times), max(times)))
        print(f"{name:20} {columns}  {median / base:4.1f} x {whole[name]:8.2f}")
    return other


if __name__ == "__main__":
    sys.exit(main() != 0)
