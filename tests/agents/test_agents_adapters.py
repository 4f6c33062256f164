"""Other programmes' own loops over our sandbox (`launcher.adapters`), and what their commands can do to the machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.kernel.conftest import user_paddock
from tests.kernel.test_root import pattern
from tests.support import agent_packages, install
from tests.support.features import need
from tests.support.identity import Word
from tests.support.install import Installed
from tests.support.paddock import Paddock

__all__ = ("pattern", "user_paddock")

MINI = "launcher.adapters.mini_swe_agent.PaddockEnvironment"
_LOOP = """
import json, sys
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
settings, commands = json.loads(sys.argv[1])
env = get_environment(settings)
model = DeterministicModel(outputs=[make_output("", [{"command": each}], 0) for each in commands])
agent = DefaultAgent(model, env, system_template="{{system}}", instance_template="{{task}}", cost_limit=0)
ended = agent.run("Do your work.")
if hasattr(env, "box"):
    env.cleanup()
print(json.dumps([ended, [each["extra"] for each in agent.messages if "returncode" in each.get("extra", {})]]))
"""
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Attacked(NamedTuple):
    """What commands of an agent aim at: all of the user's, outside of the worktree."""

    secret: Path
    outside: Path
    worktree: Path
    victim: "subprocess.Popen[bytes]"
    listener: socket.socket

    def commands(self) -> dict[str, str]:
        """Attack -> the command. Two leave something that writes on and on, and the last is ended at its timeout."""
        beat = "setsid sh -c 'while :; do echo x >>{}; sleep 0.02; done' >/dev/null 2>&1 &"
        return {
            "reads": f"cat {self.secret}",
            "writes": f"echo x >{self.outside}/written",
            "kills": f"kill -9 {self.victim.pid}",
            "connects": f"bash -c '</dev/tcp/127.0.0.1/{self.listener.getsockname()[1]}'",
            "plants": "printf '#!/bin/sh\\n' >\"$(git rev-parse --git-path hooks)/pre-commit\"",
            "stays": f"{beat.format('stays')} sleep 0.1",
            "outlives": f"{beat.format('outlives')} sleep 60",
        }

    def succeeded(self, outputs: Mapping[str, str]) -> set[str]:
        """The attacks that were held by nothing, by what the machine looks like, not by what commands say."""
        sizes = [self._sizes()]
        time.sleep(0.3)
        sizes.append(self._sizes())
        self.listener.setblocking(False)
        try:
            self.listener.accept()[0].close()
            connected = True
        except BlockingIOError:
            connected = False
        found = {
            "reads": "precious" in outputs["reads"],
            "writes": (self.outside / "written").exists(),
            "kills": self.victim.poll() is not None,
            "connects": connected,
            "plants": bool(list(self.worktree.parent.rglob("hooks/pre-commit"))),
            **{name: sizes[0][name] != sizes[1][name] for name in sizes[0]},
        }
        return {name for name, done in found.items() if done}

    def _sizes(self) -> dict[str, int]:
        paths = {name: self.worktree / name for name in ("stays", "outlives")}
        return {name: path.stat().st_size if path.exists() else -1 for name, path in paths.items()}


@contextmanager
def attacked(paddock: Paddock) -> Iterator[Attacked]:
    """Its processes are ended afterwards, and what attacks have left."""
    secret = paddock.who.home / "secret"
    secret.write_text("precious")
    outside = paddock.place / "outside"
    outside.mkdir()
    paddock.who.give(secret)
    paddock.who.give(outside)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        victim = subprocess.Popen(paddock.who.command(["sleep", "100"]))
        try:
            yield Attacked(secret, outside, paddock.worktree, victim, listener)
        finally:
            victim.kill()
            victim.wait()
            _end_beats(paddock.worktree)


def _end_beats(worktree: Path) -> None:
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cwd").resolve() == worktree:
                os.kill(int(each.name), signal.SIGKILL)
        except OSError:
            continue


def mini(paddock: Paddock, kind: str, commands: list[str], **settings: object) -> tuple[dict[str, Any], list[Any]]:
    """mini-swe-agent's loop with a model that says these commands: how it ended, and what each command gave."""
    need("agents")
    words: list[Word] = [paddock.installed.python, "-P", "-c", _LOOP]
    environment = {"environment_class": kind, "cwd": str(paddock.worktree), **settings}
    ended = paddock.who.run(
        [*words, json.dumps([environment, commands])],
        cwd=paddock.worktree,
        env={**paddock.env, **mini_environment(paddock)},
    )
    assert ended.returncode == 0, ended.stderr
    result, outputs = json.loads(ended.stdout)
    return result, outputs


def mini_environment(paddock: Paddock) -> dict[str, str]:
    """Variables that it starts with: no greeting, no questions, its files in a place of the test's."""
    return {
        "PYTHONPATH": str(agent_packages.library("mini-swe-agent")),
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(paddock.who.home / "mini"),
    }


@pytest.mark.parametrize(
    ("kind", "holes"),
    [
        (MINI, set()),
        ("bubblewrap", {"kills", "connects", "stays", "outlives"}),
        ("local", {"reads", "writes", "kills", "connects", "plants", "stays", "outlives"}),
    ],
)
def test_what_mini_swe_agents_commands_can_do(user_paddock: Paddock, kind: str, holes: set[str]) -> None:
    """Nothing in our jail; its own environments, on the same machine, show what each attack is."""
    if kind == "bubblewrap":
        need("bubblewrap")
    with attacked(user_paddock) as aims:
        commands = aims.commands()
        ended, results = mini(user_paddock, kind, [*commands.values(), _SUBMIT], timeout=1)
        assert ended == {"exit_status": "Submitted", "submission": ""}
        outputs = {name: result["raw_output"] for name, result in zip(commands, results, strict=True)}
        assert aims.succeeded(outputs) == holes


def test_mini_swe_agents_command_takes_our_environment(user_paddock: Paddock) -> None:
    """The command line of docs/library.md: commits are harvested, a timeout says so, the answer is recorded."""
    need("agents")
    script = (
        "echo made >made; git add made; git commit -qm Made.; pwd",
        "sleep 60",
        "no-such-command",
        f"{_SUBMIT}; git log -1 --format=%s",
    )
    outputs = [{"role": "assistant", "content": "", "extra": {"actions": [{"command": each}]}} for each in script]
    settings = user_paddock.place / "settings.yaml"  # JSON is YAML
    settings.write_text(
        json.dumps(
            {
                "agent": {"agent_class": "default", "system_template": "Work.", "instance_template": "{{task}}"},
                "model": {"model_class": "deterministic", "model_name": "scripted", "outputs": outputs},
            }
        )
    )
    record = user_paddock.who.home / "record.json"
    words: list[Word] = [
        *(user_paddock.installed.python, "-P", "-m", "minisweagent", "--environment-class", MINI, "-c", settings),
        *("-c", "environment.timeout=1", "-c", 'environment.options=["--net", "none"]', "-t", "Do it.", "-o", record),
    ]
    env = {**user_paddock.env, **mini_environment(user_paddock)}
    ended = user_paddock.who.run(words, cwd=user_paddock.worktree, env=env)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(record.read_text())
    assert said["info"]["submission"] == "Made.\n"
    assert said["info"]["config"]["environment"]["options"] == ["--net", "none"]
    results = [each["extra"] for each in said["messages"] if "returncode" in each.get("extra", {})]
    assert [(each["raw_output"], each["returncode"], each["exception_info"]) for each in results] == [
        (f"{user_paddock.worktree}\n", 0, ""),
        ("", -1, "the command was ended after 1 seconds"),
        ("bash: line 1: no-such-command: command not found\n", 127, ""),
    ]
    log = user_paddock.who.run(["git", "log", "-1", "--format=%s"], cwd=user_paddock.worktree)
    assert log.stdout == "Made.\n"
    ended = user_paddock.who.run([*words, "-c", "environment.cwb=/"], cwd=user_paddock.worktree, env=env)
    assert ended.returncode == 1
    assert "cwb" in ended.stderr


def test_tasks_end_as_in_mini_swe_agents_own_environments(tmp_path: Path) -> None:
    """Outputs, statuses, answers, files and commits of five; the bench has twenty."""
    need("agents")
    need("bubblewrap")
    need("userns")
    words = [sys.executable, "-m", "tests.bench.bench_adapters", "5"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ended = subprocess.run(words, cwd=install.ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 tasks, 20 commands: the same results\n" in ended.stdout


def harbor_python(installed: Installed, tmp_path: Path) -> Path:
    """A Python with Harbor and Paddock."""
    need("harbor")
    need("userns")
    newer = agent_packages.newer_python()
    assert newer is not None
    subprocess.run([newer, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (packages / "harbor.pth").write_text(str(agent_packages.library("harbor", newer)))
    with zipfile.ZipFile(installed.wheel) as wheel:
        wheel.extractall(packages)
    return tmp_path / "env/bin/python"


def harbor(tasks: Path, image: Path, installed: Installed, tmp_path: Path) -> Path:
    """Harbor's own command runs tasks by their solutions; the directory with what it has recorded."""
    words: list[Word] = [
        harbor_python(installed, tmp_path),
        "-P",
        "-c",
        "from harbor.cli.main import app; app()",
        "run",
        "-a",
        "oracle",
        "-y",
    ]
    words += [
        "--env",
        "launcher.adapters.harbor:PaddockEnvironment",
        "--ek",
        f"root={image}",
        "-p",
        tasks,
        "-o",
        tmp_path,
    ]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "100"}
    ended = subprocess.run(
        [*words, "--job-name", "job"], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return tmp_path / "job"


def test_harbor_runs_tasks_by_their_network_policy(pattern: Path, installed: Installed, tmp_path: Path) -> None:
    """Two layouts: an image's name with files beside it, and a Dockerfile. What is outside is out of reach in both."""
    (tmp_path / "secret").write_text("precious")
    policies = {
        "no-network": 'network_mode = "no-network"\nworkdir = "/app"\ndocker_image = "an-image"\nmemory_mb = 512',
        "allowlist": 'network_mode = "allowlist"\nallowed_hosts = ["good.example", "2001:db8::/32"]',
        "public": 'network_mode = "public"',
    }
    victim = subprocess.Popen(["/bin/sleep", "100"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        solution = f"""#!/bin/bash
            kill -9 {victim.pid}; bash -c 'kill -STOP $$' left-by-{victim.pid} &
            pwd >answer; ls >>answer; cat {tmp_path}/secret; echo x >{tmp_path}/written
            (: </dev/tcp/127.0.0.1/{listener.getsockname()[1]}) 2>/dev/null && echo reached >>answer
            ln -s {tmp_path}/secret /logs/verifier/link; exit 0
        """
        test = "#!/bin/bash\ncat /app/answer >/logs/verifier/answer; echo 1 >/logs/verifier/reward.txt\n"
        for name, policy in policies.items():
            task = tmp_path / "tasks" / name
            for folder, script, text in (("solution", "solve.sh", solution), ("tests", "test.sh", test)):
                (task / folder).mkdir(parents=True)
                (task / folder / script).write_text(text)
            (task / "environment").mkdir()
            (task / "instruction.md").write_text("Do it.")
            (task / "task.toml").write_text(f"[environment]\n{policy}\n")
            if name == "no-network":
                (task / "environment/given").touch()
            else:
                (task / "environment/Dockerfile").write_text("FROM an-image\nWORKDIR /app\n")
        job = harbor(tmp_path / "tasks", pattern, installed, tmp_path)
    assert victim.poll() is None
    victim.kill()
    victim.wait()
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]  # None of a zombie
    assert not [words for words in commands if f"left-by-{victim.pid}" in words]
    assert not (tmp_path / "written").exists()
    answers = {path.parent.parent.name.partition("__")[0]: path.read_text() for path in job.rglob("verifier/answer")}
    assert answers == {
        "no-network": "/app\nanswer\ngiven\n",
        "allowlist": "/app\nanswer\n",
        "public": "/app\nanswer\nreached\n",
    }
    assert "precious" not in "".join(path.read_text() for path in job.rglob("agent/*.txt"))
    assert list(job.rglob("verifier/link")) == []


_HOOKS = """
import asyncio, json, logging, os, sys, tempfile
from pathlib import Path
from harbor.models.task.config import EnvironmentConfig, HealthcheckConfig
from harbor.models.trial.paths import TrialPaths
import launcher.adapters.harbor as adapter
image, place = sys.argv[1:]
found = {}
BEAT = "trap '' TERM INT HUP; setsid sh -c 'while :; do echo x >>/beat; sleep 0.02; done' >/dev/null 2>&1 & sleep 100"

async def raised(name, action):
    try:
        found[name] = await action
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

async def still(env):  # whether nothing writes on
    sizes = []
    for _ in range(2):
        sizes.append((await env.exec("cat /beat | wc -c; rm -f /beat")).stdout)
        await asyncio.sleep(0.3)
    return sizes[0] != "0\\n" and sizes[1] == "0\\n"

async def main():
    env = adapter.PaddockEnvironment(
        Path(place, "environment"), "task", "task__1__env", TrialPaths(Path(place, "trial")),
        EnvironmentConfig(workdir="/app", env={"TASK": "task"}), root=image, persistent_env={"KEPT": "kept"},
    )
    await env.start(False)
    await raised("timeout", env.exec(BEAT, timeout_sec=1))
    found["still after a timeout"] = await still(env)
    await raised("cancelled", asyncio.wait_for(env.exec(BEAT), 1))
    found["still after it was cancelled"] = await still(env)
    found["no timeout"] = (await env.exec("sleep 0.2; echo through", timeout_sec=0)).stdout
    found["status"] = (await env.exec("exit 7")).return_code
    found["nowhere"] = (await env.exec("true", cwd="/nowhere")).return_code != 0
    several = await asyncio.gather(*(env.exec(f"sleep 0.2; echo {number}") for number in range(3)))
    found["together"] = [each.stdout for each in several]

    with env.scoped_exec_env({"KEPT": "scoped", "MORE": "more"}):
        found["scoped"] = (await env.exec("echo $KEPT $MORE $OWN", env={"OWN": "own"})).stdout
    found["kept"] = (await env.exec("echo $KEPT $MORE")).stdout
    with env.with_default_user("root"):
        found["root"] = (await env.exec("echo yes")).stdout
    with env.with_default_user("agent"):
        await raised("another user", env.exec("true"))

    check = dict(interval_sec=0.1, timeout_sec=5, start_period_sec=0, start_interval_sec=0.1, retries=2)
    await raised("healthy", env.run_healthcheck(HealthcheckConfig(command="test -d /app", **check)))
    await raised("ill", env.run_healthcheck(HealthcheckConfig(command="false", **check)))
    await raised("slow", env.run_healthcheck(HealthcheckConfig(command="sleep 100", **{**check, "timeout_sec": 1})))

    await env.exec("mkdir -p /out/sub; echo one >/out/one; echo two >'/out/sub/t w o'; mkfifo /out/fifo")
    await env.exec(f"echo x >/out/-T; ln -s /etc/passwd /out/link; ln -s .. /out/up; ln -s {place}/aim /out/aim")
    found["kinds"] = [await env.is_dir("/out"), await env.is_file("/out"), await env.is_file("/out/one")]
    for name, download in (
        ("whole", lambda to: env.download_dir("/out", to)),
        ("without", lambda to: env.download_dir_with_exclusions(source_dir="/out", target_dir=to, exclude=["sub"])),
        ("chosen", lambda to: env.download_dir_filtered(source_dir="/out", target_dir=to, include=["*o*"])),
    ):
        to = Path(place, name)
        await raised(name, download(to))
        inside = [path for path in sorted(to.rglob("*")) if not path.is_dir()]
        found[name + " holds"] = [str(path.relative_to(to)) for path in inside]
        top = to.resolve()
        found[name + " leaves"] = [str(path) for path in to.rglob("*") if not path.resolve().is_relative_to(top)]
    await raised("one", env.download_file("/out/link", Path(place, "passwd")))
    found["passwd"] = Path(place, "passwd").exists()

    await env.ensure_dirs(["/logs/a b"])
    await env.exec("echo x >'/logs/a b/x'; mkdir -p /logs/own; ln -s /app /logs/led")
    await env.empty_dirs(["/logs/a b", "/logs/led"])
    await env.reset_dirs(remove_dirs=["/logs/own"], create_dirs=["/logs/own"], chmod_dirs=["/logs/own"])
    found["directories"] = (await env.exec("ls '/logs/a b' /logs/own /logs/led | wc -w; cd /app && echo there")).stdout
    await env.prepare_logs_for_host()
    await env.stop(True)
    await env.stop(False)
    await raised("stopped", env.exec("true"))

asyncio.run(main())
print(json.dumps(found))
"""


def test_harbors_hooks_over_our_environment(pattern: Path, installed: Installed, tmp_path: Path) -> None:
    """Timeouts and cancelled tasks end all of a command and spare the sandbox; what Harbor builds on `exec` works."""
    (tmp_path / "environment").mkdir()
    (tmp_path / "aim").write_text("precious")
    words: list[Word] = [harbor_python(installed, tmp_path), "-P", "-c", _HOOKS, pattern, tmp_path]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    # Harbor's own filter is Python's: how it refuses the link, and what came before, differ between its releases.
    assert found.pop("without").split(":")[0] in ("AbsoluteLinkError", "LinkOutsideDestinationError")
    assert set(found.pop("without holds")) <= {"one"}
    assert found.pop("one").startswith("Refusal: paddock: cannot read /out/link in the sandbox [file-unreadable]")
    assert found == {
        "timeout": "RuntimeError: Command timed out after 1 seconds", "still after a timeout": True,
        "cancelled": "TimeoutError: ", "still after it was cancelled": True,
        "no timeout": "through\n", "status": 7, "nowhere": True, "together": ["0\n", "1\n", "2\n"],
        "scoped": "scoped more own\n", "kept": "kept\n", "root": "yes\n",
        "another user": "ValueError: there is one user in a Paddock sandbox: no command can run as 'agent'",
        "healthy": None, "ill": "HealthcheckError: Healthcheck failed after 2 consecutive retries: false",
        "slow": "RuntimeError: Command timed out after 1 seconds",
        "kinds": [True, False, True],
        "whole": None, "whole holds": ["-T", "one", "sub/t w o"], "whole leaves": [],
        "without leaves": [],
        "chosen": None, "chosen holds": ["one", "sub/t w o"], "chosen leaves": [],
        "passwd": False, "directories": "4\nthere\n",
        "stopped": "RuntimeError: the environment is not started",
    }  # fmt: skip
