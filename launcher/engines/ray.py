"""A Ray cluster performs rows: each is a task of bytes, performed by the Paddock of the node that it runs on.

What comes home is bytes, bounded and checked as JSON here: no object of Ray's is made of what a command wrote.
"""

import json
import os
import platform
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from launcher.engines import base, row
from launcher.engines.base import Mirror, Part
from launcher.engines.row import Cause, Job, Outcome
from launcher.session import places
from launcher.vcs import written
from policy.errors import Refusal
from policy.pasted import quoted

_READY = 180.0
"""Seconds for a node to say that it is ready: its doctor takes some."""

_MOST_SAID = 1 << 20


def version() -> str:
    """Of the Paddock that runs here."""
    return metadata.version("paddock-launcher")


# On a node: functions of bytes, which Ray finds in the node's own Paddock.


def ready(asked: bytes) -> bytes:
    """What a node says before its first row: its versions, what it has of the bases, and whether its jails hold.

    Args:
        asked: JSON: `prefix` of what a killed driver may have left, `stores` by the name of their mirror.
    """
    question = json.loads(asked)
    said: dict[str, Any] = {
        "version": version(), "host": platform.node(), "token": os.environ.get("RAY_AUTH_MODE") == "token",
        "refusal": None, "left": [], "known": {},
    }  # fmt: skip
    try:
        said["left"] = row.sweep(question["prefix"])
        for name, stores in question["stores"].items():
            mirror = Mirror(name)
            said["known"][name] = {store: mirror.commits(store) for store in stores}
        _doctor()
    except Refusal as refusal:
        said["refusal"] = refusal.as_dict()
    return json.dumps(said).encode("utf-8", "replace")


def _doctor() -> None:
    words = [sys.executable, "-I", "-m", "launcher", "doctor"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", timeout=_READY, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()[-3:]
        raise Refusal("node-unfit", "its jails do not hold what they should", context="\n".join(lines),
                      hint="run there: paddock doctor")  # fmt: skip


def performed(job: bytes, bases: bytes, wanted: str, packs: list[Any]) -> bytes:
    """Performs a row on a node: takes in what it starts from, if it is not there, and goes on as everywhere.

    Args:
        job: a `Job` as JSON; the row's repository is the name of its mirror.
        bases: JSON: the parts, in the order of `packs`.
        wanted: version of the Paddock that asks.
        packs: references to the packs, fetched by need.
    """
    asked = Job.model_validate_json(job)
    begun = time.time()
    try:
        if wanted != version():
            raise _other_version(platform.node(), version(), wanted)
        mirror = Mirror(asked.row.repository)
        for (store, digits, commits), pack in zip(json.loads(bases), packs, strict=True):
            part = Part(store, digits, tuple(commits))
            if not mirror.has(part):
                import ray

                mirror.take(part, ray.get(pack))
    except Refusal as refusal:
        return row.written(row.failed(asked, Cause.REFUSED, refusal, begun))
    except Exception as error:
        return row.written(row.failed(asked, Cause.ENGINE, error, begun))
    own = asked.row.model_copy(update={"repository": mirror.root})
    return row.perform(asked.model_copy(update={"row": own}).model_dump_json().encode())


def swept(prefix: str) -> bytes:
    """Removes what rows of a batch have left on a node; what could not be, as JSON."""
    return json.dumps(row.sweep(prefix)).encode("utf-8", "replace")


def _other_version(node: str, found: str, wanted: str) -> Refusal:
    return Refusal("node-version", f"the node {node} has Paddock {found}, and this machine {wanted}",
                   hint="install the same version on both")  # fmt: skip


# Here: the driver.


def check_token() -> None:
    """Refuses a cluster that anybody can use who reaches its ports, commands in its jails among them.

    Raises:
        Refusal: ray-without-token, ray-token-open.
    """
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    hint = (
        "ray get-auth-token --generate; chmod 600 ~/.ray/auth_token   # and a copy on every node\n"
        "export RAY_AUTH_MODE=token   # before `ray start` on every node, and here"
    )
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise Refusal("ray-without-token", "a Ray cluster without token authentication is not used",
                      context="RAY_AUTH_MODE is not token: anyone who reaches a port of Ray runs commands on its nodes",
                      hint=hint)  # fmt: skip
    if os.environ.get("RAY_AUTH_TOKEN"):
        raise Refusal("ray-token-open", "the token of the Ray cluster is in the environment",
                      context="RAY_AUTH_TOKEN is set, for every process below", hint=hint)  # fmt: skip
    try:
        found = os.lstat(path)
    except OSError as error:
        raise Refusal("ray-without-token", f"there is no token at {path}", context=error.strerror or "",
                      hint=hint) from None  # fmt: skip
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Refusal("ray-token-open", f"{path} is not a file that this user alone can read",
                      hint=f"chmod 600 {quoted(path)}")  # fmt: skip
    if tree := written.agents_tree(path):
        raise Refusal("ray-token-open", f"{path} can be written by commands in jails",
                      context=f"they can write {tree}", hint="move it: RAY_AUTH_TOKEN_PATH")  # fmt: skip


class Ray:
    """The engine `ray`; see `launcher.engines.driver.Engine`."""

    name = "ray"

    def __init__(self, address: str | None, parallel: int | None) -> None:
        """Joins a cluster.

        Args:
            address: of its head; None for the one that runs on this machine.
            parallel: rows that are handed over at the same time; twice as many as there are processors by default.

        Raises:
            Refusal: ray-missing, ray-unreachable, and as `check_token`.
        """
        check_token()
        # Ray has its workers import from the driver's current directory, which may be a tree of an agent's.
        os.chdir(places.made(places.places(os.environ).state))
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        try:
            import ray
        except ImportError as error:
            raise Refusal("ray-missing", "the package ray is not installed", context=str(error),
                          hint="install Paddock with it: paddock-launcher[ray]") from None  # fmt: skip
        self._ray = ray
        try:
            ray.init(
                address=address or "auto", log_to_driver=False, configure_logging=False, include_dashboard=False,
                _skip_env_hook=True,
            )  # fmt: skip
        except Exception as error:
            raise Refusal("ray-unreachable", f"no Ray cluster can be joined at {address or 'this machine'}",
                          context=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                          hint="ray start --head on one node; --address HOST:PORT; the same token everywhere",
                          ) from None  # fmt: skip
        self._machine = platform.node()
        self._perform = ray.remote(max_retries=0)(performed)
        self._bases: dict[str, tuple[bytes, list[Any]]] = {}
        self._running: dict[Any, tuple[Job, float]] = {}
        processors = int(ray.cluster_resources().get("CPU", 1))
        self.room = parallel or 2 * max(1, processors)

    def prepare(self, jobs: list[Job], prefix: str) -> list[str]:
        """See `Engine`. Refusals: node-version, node-unfit, ray-without-token, row-too-wide, as of `base`."""
        self._check_sizes(jobs)
        commits: dict[str, dict[str, None]] = {}
        for job in jobs:
            commits.setdefault(job.row.repository, {})[job.row.commit] = None
        parts = {repository: base.parts(repository, tuple(oids)) for repository, oids in commits.items()}
        stores = {self._mirror(repository): [part.store for part in found] for repository, found in parts.items()}
        answers = self._everywhere(ready, json.dumps({"prefix": prefix, "stores": stores}).encode())
        for said in answers.values():
            self._check(said)
        for repository, found in parts.items():
            name = self._mirror(repository)
            packs = []
            for part in found:
                have = [set(said["known"].get(name, {}).get(part.store, ())) for said in answers.values()]
                known = tuple(sorted(set.intersection(*have)))
                lacks = any(not set(part.commits) <= each for each in have)
                packs.append(self._ray.put(base.packed(repository, part, known) if lacks else b""))
            self._bases[repository] = (json.dumps(found).encode(), packs)
        return [f"{said['host']}: {line}" for said in answers.values() for line in said["left"]]

    def submit(self, job: Job) -> None:
        """See `Engine`."""
        asked = job.row
        sent = job.model_copy(update={"row": asked.model_copy(update={"repository": self._mirror(asked.repository)})})
        parts, packs = self._bases[asked.repository]
        task = self._perform.options(
            num_cpus=asked.cpus, memory=asked.memory or None, resources=dict(asked.resources), name=job.session
        )  # fmt: skip
        reference = task.remote(sent.model_dump_json().encode(), parts, version(), packs)
        self._running[reference] = (job, time.time())

    def next(self, seconds: float) -> Outcome | None:
        """See `Engine`."""
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not done:
            return None
        job, begun = self._running.pop(done[0])
        try:
            outcome = row.read_outcome(_bytes(self._ray.get(done[0])))
            if (outcome.key, outcome.attempt) != (job.key, job.attempt):
                raise ValueError("it is the result of another row")
        except Exception as error:
            return row.failed(job, self._cause(error), _short(error), begun)
        return outcome.model_copy(update={"number": job.number, "id": job.row.id, "commit": job.row.commit})

    def cancel(self) -> None:
        """See `Engine`."""
        for reference in list(self._running):
            self._ray.cancel(reference)

    def close(self, prefix: str) -> list[str]:
        """See `Engine`."""
        try:
            if self._running:
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_READY)
            answers = self._everywhere(swept, prefix)
            return [f"{node}: {line}" for node, lines in answers.items() for line in lines]
        except Refusal as refusal:
            return [refusal.message]
        finally:
            self._ray.shutdown()

    def _mirror(self, repository: str) -> str:
        return base.name_of(repository, self._machine)

    def _everywhere(self, function: Callable[..., bytes], argument: bytes | str) -> dict[str, Any]:
        """What a function answers on each node, by the node's name."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        asked = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                where = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
                task = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=where)(function)
                asked[f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"] = task.remote(argument)
        found = {}
        for name, reference in asked.items():
            try:
                answer = _bytes(self._ray.get(reference, timeout=_READY))
                found[name] = json.loads(answer) if len(answer) <= _MOST_SAID else None
            except Exception as error:
                hint = f"install Paddock {version()} there, in the Python that Ray uses"
                why = _short(error).context
                raise Refusal(
                    "node-unfit", f"the node {name} does not answer as Paddock", context=why, hint=hint
                ) from None
        return found

    def _check(self, said: dict[str, Any]) -> None:
        host = said["host"]
        if said["version"] != version():
            raise _other_version(host, said["version"], version())
        if not said["token"]:
            raise Refusal("ray-without-token", f"the node {host} has joined Ray without token authentication",
                          hint="there: export RAY_AUTH_MODE=token; ray stop; ray start ...")  # fmt: skip
        if why := said["refusal"]:
            raise Refusal("node-unfit", f"the node {host} cannot run rows: {why['message']}",
                          context=str(why["context"]), hint=str(why["hint"]))  # fmt: skip

    def _check_sizes(self, jobs: list[Job]) -> None:
        """Refuses rows that no node could ever take: Ray would wait for such a node."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for job in jobs:
            wanted = {"CPU": job.row.cpus, "memory": float(job.row.memory), **job.row.resources}
            if not any(all(node.get(name, 0) >= number for name, number in wanted.items()) for node in nodes):
                told = ", ".join(f"{name}={number:g}" for name, number in wanted.items() if number)
                raise Refusal("row-too-wide", f"line {job.number}: no node of the cluster has {told}",
                              hint="ray status; lower cpus, memory or resources of the row")  # fmt: skip

    def _cause(self, error: Exception) -> Cause:
        of = self._ray.exceptions
        if isinstance(error, of.TaskCancelledError):
            return Cause.CANCELLED
        lost = (of.WorkerCrashedError, of.NodeDiedError, of.ObjectLostError, of.OutOfMemoryError, of.RaySystemError)
        return Cause.NODE if isinstance(error, lost) else Cause.ENGINE


def _bytes(answer: object) -> bytes:
    if not isinstance(answer, bytes):
        raise TypeError("a node has answered something other than bytes")
    return answer


def _short(error: Exception) -> Refusal:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return Refusal("ray-failed", f"the task failed with {type(error).__name__}", context="\n".join(lines[-4:])[:2000])
