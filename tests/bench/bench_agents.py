"""How long real agents take to start in a jail: `python -m tests.bench.bench_agents [ROUNDS [AGENT...]]`, ratios to a
bare start.

An agent has started when it has answered `session/new`, which is when a user can type. Two times are compared: that of
the whole command, and the agent's own, from the moment in which it is executed. The target for the latter is 1.1; the
former also has Paddock's own start, the same for every agent. Needs the agents (`make agents`).
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import agent_packages, agent_scene, install
from tests.support.agent_scene import Agent, Scene

_MARK = "executed at"
_STARTER = f"""#!/bin/bash
echo "{_MARK} $EPOCHREALTIME" >&2
exec '%s' "$@"
"""
"""Stands for an agent on PATH, and says when it hands over to it."""


class Times(NamedTuple):
    """Seconds until an agent has answered `session/new`."""

    whole: float
    own: float


class Way(NamedTuple):
    """How an agent is started."""

    argv: Sequence[str]
    env: Mapping[str, str]


def started(way: Way, cwd: Path, login: str) -> Times:
    """Starts an agent, waits until it has answered `session/new`, and ends it.

    Raises:
        RuntimeError: it refused something, or ended.
    """
    calls: list[tuple[str, dict[str, Any]]] = [("initialize", {"protocolVersion": 1, "clientCapabilities": {}})]
    if login:
        calls.append(("authenticate", {"methodId": login}))
    calls.append(("session/new", {"cwd": str(cwd), "mcpServers": []}))
    begin = time.time()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            way.argv, cwd=cwd, env=way.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
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
                raise RuntimeError(f"{way.argv} ended at {method}")
            if "error" in answer:
                raise RuntimeError(f"{way.argv} refused {method}: {answer['error']}")
        end = time.time()
        process.stdin.close()
        for _line in process.stdout:
            continue
        errors.seek(0)
        said = errors.read().decode()
    executed = float(next(line for line in said.splitlines() if line.startswith(_MARK)).split()[-1])
    return Times(end - begin, end - executed)


def ways(scene: Scene, agent: Agent, starters: Path) -> tuple[Way, Way]:
    """An agent bare and in a jail, each by way of the starter."""
    name = agent.command[0]
    program = agent_packages.programs() / name
    starters.mkdir()
    (starters / name).write_text(_STARTER % program)
    (starters / name).chmod(0o755)
    env = scene.who.environment(scene.environment | agent.environment)
    env["PATH"] = f"{starters}:{env['PATH']}"
    granted = ("--ro", str(agent_packages.directory()))  # of the starter's own directory Paddock learns by itself
    return (
        Way(scene.who.command(agent.command), env | {"NO_PROXY": "127.0.0.1"}),
        Way(scene.who.command(scene.words(*granted, "--", *agent.command)), env),
    )


def measured(make: Callable[[Scene], Agent], rounds: int) -> str:
    """One agent's line of the table."""
    place = Path(tempfile.mkdtemp(prefix="bench-", dir=install.public_root(Path("/var/tmp"))))
    place.chmod(0o755)
    try:
        with agent_scene.scene(place, install.install()) as scene:
            agent = make(scene)
            found = ways(scene, agent, place / "starters")
            taken: tuple[list[Times], ...] = ([], [])
            for number in range(-1, rounds):  # the first one unpacks, and makes the state that later ones find
                for way, times in zip(found, taken, strict=True):
                    seconds = started(way, scene.worktree, agent.login)
                    if number >= 0:
                        times.append(seconds)
    finally:
        shutil.rmtree(place)
    bare, jailed = (Times(*map(statistics.median, zip(*times, strict=True))) for times in taken)
    words = " ".join(agent.command[:2])
    columns = [
        f"{before * 1e3:6.0f} ms  {after * 1e3:6.0f} ms  {after / before:6.2f}"
        for before, after in zip(bare, jailed, strict=True)
    ]
    return f"{words:18}  " + "    ".join(columns)


def main() -> None:
    """Prints one line for each agent."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    wanted = sys.argv[2:]
    if why := agent_packages.missing():
        sys.exit(why)
    title = f"{'bare':>9}  {'in a jail':>9}  {'ratio':>6}"
    print(f"{'':18}  {'the whole command':^28}    {'the agent alone':^28}")
    print(f"{'':18}  {title}    {title}   (medians of {rounds} starts, by turns)")
    for make in agent_scene.AGENTS:
        if not wanted or make.__name__ in wanted:
            print(measured(make, rounds), flush=True)


if __name__ == "__main__":
    main()
