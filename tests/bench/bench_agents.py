"""How long real agents take to start in a jail: `python -m tests.bench.bench_agents [ROUNDS]`, ratios to a bare start.

An agent has started when it has answered `session/new`, which is when a user can type. The target is a ratio of 1.1.
Needs the agents (`make agents`).
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import acp_agents, agent_packages, agent_scene, install
from tests.support.acp_agents import Agent
from tests.support.agent_scene import Scene


def started(argv: Sequence[str], cwd: Path, env: Mapping[str, str], login: str) -> float:
    """Seconds from the start of an agent until it has answered `session/new`; then it is ended.

    Raises:
        RuntimeError: it refused something, or ended.
    """
    calls: list[tuple[str, dict[str, Any]]] = [("initialize", {"protocolVersion": 1, "clientCapabilities": {}})]
    if login:
        calls.append(("authenticate", {"methodId": login}))
    calls.append(("session/new", {"cwd": str(cwd), "mcpServers": []}))
    begin = time.perf_counter()
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, (method, params) in enumerate(calls):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer.get("id") == number and "method" not in answer:
                    break
            else:
                raise RuntimeError(f"{argv} ended at {method}")
            if "error" in answer:
                raise RuntimeError(f"{argv} refused {method}: {answer['error']}")
        seconds = time.perf_counter() - begin
        process.stdin.close()
        for _line in process.stdout:
            continue
    return seconds


def ways(scene: Scene, agent: Agent) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Command line and environment of an agent, bare and in a jail."""
    env = scene.who.environment(scene.environment | agent.environment)
    return {
        "bare": (scene.who.command(agent.command), env | {"NO_PROXY": "127.0.0.1"}),
        "paddock run": (scene.who.command(scene.words("--", *agent.command)), env),
    }


def main() -> None:
    """Prints one line for each agent."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    if why := agent_packages.missing():
        sys.exit(why)
    print(f"{'':20}  {'bare':>9}  {'in a jail':>9}  {'ratio':>6}   (medians of {rounds} starts, by turns)")
    for make in acp_agents.AGENTS:
        place = Path(tempfile.mkdtemp(prefix="bench-", dir=install.public_root(Path("/var/tmp"))))
        place.chmod(0o755)
        with agent_scene.scene(place, install.install()) as scene:
            agent = make(scene)
            found = ways(scene, agent)
            taken: dict[str, list[float]] = {name: [] for name in found}
            for number in range(-1, rounds):  # the first one unpacks, and makes the state that later ones find
                for name, (argv, env) in found.items():
                    seconds = started(argv, scene.worktree, env, agent.login)
                    if number >= 0:
                        taken[name].append(seconds)
            bare, jailed = (statistics.median(times) for times in taken.values())
            words = " ".join(agent.command[:2])
            print(f"{words:20}  {bare * 1e3:6.0f} ms  {jailed * 1e3:6.0f} ms  {jailed / bare:6.2f}", flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
