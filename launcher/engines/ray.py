"""A Ray cluster performs rows: each is a task of bytes, performed by the Paddock of the node that it runs on.

What comes home is bytes, bounded and checked as JSON here: no object of Ray's is made of what a command wrote.
"""

import asyncio
import contextlib
import io
import json
import os
import platform
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

from launcher import programmes
from launcher.engines import base, row, ticket
from launcher.engines.base import Mirror, Part
from launcher.engines.row import Cause, Job, Outcome
from launcher.session import places
from launcher.vcs import written
from policy.errors import Refusal, Rows, in_rows
from policy.pasted import quoted

_READY = 180.0
"""Seconds for a node to say that it is ready: its doctor takes some."""

_LOOK = 2.0
"""Seconds between two looks at which nodes there are."""

_AHEAD = 8
"""Frames that a node may be ahead of the driver: what an agent writes without end waits in its pipe, not here."""

_MOST_SAID = 1 << 20
_NODE = "ray.io/node-id"
"""Label that Ray gives each node (Ray 2.52)."""


class _Node(NamedTuple):
    """A node of the cluster: Ray's id of it, what people call it, and how many processors Ray gives out there."""

    id: str
    name: str
    processors: float


class _Packed(NamedTuple):
    """A pack of a part in Ray's object store, for nodes that have all `known` commits; None where none was needed."""

    known: frozenset[str]
    reference: Any


def version() -> str:
    """Of the Paddock that runs here."""
    return metadata.version("paddock-launcher")


# On a node: functions of bytes, which Ray finds in the node's own Paddock.


def ready(asked: bytes) -> bytes:
    """What a node says before its first row: its versions, what it has of the bases, and whether its jails hold.

    Args:
        asked: JSON: stores by the name of their mirror.
    """
    question = json.loads(asked)
    said: dict[str, Any] = {
        "version": version(), "host": platform.node(), "token": os.environ.get("RAY_AUTH_MODE") == "token",
        "refusal": None, "left": [], "known": {},
    }  # fmt: skip
    try:
        said["left"] = row.sweep(None)  # another node may have the same home, and rows of this batch
        for name, stores in question.items():
            mirror = Mirror(name)
            said["known"][name] = {store: mirror.commits(store) for store in stores}
        _doctor()
    except Refusal as refusal:
        said["refusal"] = refusal.as_dict()
    return json.dumps(said).encode("utf-8", "replace")


def known(asked: bytes) -> bytes:
    """The commits that a node's mirror has; JSON: ``[mirror, stores]``, and a list of each store's."""
    name, stores = json.loads(asked)
    mirror = Mirror(name)
    return json.dumps([mirror.commits(store) for store in stores]).encode()


def _doctor() -> None:
    words = programmes.paddock("doctor")
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", timeout=_READY, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()[-3:]
        raise Refusal("node-unfit", "its jails do not hold what they should", context=in_rows(*lines),
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
        based = _based(asked, bases, wanted, packs)
    except Refusal as refusal:
        return row.written(row.failed(asked, Cause.REFUSED, refusal, begun))
    except Exception as error:
        return row.written(row.failed(asked, Cause.ENGINE, error, begun))
    return row.perform(based.model_dump_json().encode())


def _based(asked: Job, bases: bytes, wanted: str, packs: list[Any]) -> Job:
    """The job with a repository that is here, and has what it starts from."""
    if wanted != version():
        raise _other_version(platform.node(), version(), wanted)
    mirror = Mirror(asked.row.repository)
    for (store, digits, commits), pack in zip(json.loads(bases), packs, strict=True):
        part = Part(store, digits, tuple(commits))
        if not mirror.has(part):
            import ray

            mirror.take(part, ray.get(pack))
    return asked.model_copy(update={"row": asked.row.model_copy(update={"repository": mirror.root})})


def ticketed(job: bytes, bases: bytes, wanted: str, packs: list[Any], names: list[str], post: Any) -> Iterator[bytes]:  # noqa: ANN401  # an actor's handle
    """Performs a ticket on a node; see `ticket.performed`.

    Args:
        job, bases, wanted, packs: as for `performed`.
        names: as for `ticket.performed`.
        post: the run's `Post`.
    """
    import ray

    asked = Job.model_validate_json(job)

    def stop() -> bool:
        try:
            return bool(ray.get(post.asked.remote(asked.session)))
        except ray.exceptions.RayError:  # the driver has gone: this process will be ended
            time.sleep(1)
            return False

    try:
        based = _based(asked, bases, wanted, packs)
    except Refusal as refusal:
        yield ticket.REFUSED + json.dumps(refusal.as_dict()).encode()
        return
    yield from ticket.performed(based, names, stop)


class Post:
    """Beside the driver: says which of its tickets are to stop."""

    def __init__(self) -> None:
        """None is."""
        self._stops: dict[str, asyncio.Event] = {}

    async def asked(self, session: str) -> bool:
        """Whether a ticket is to stop; waits a while for that."""
        event = self._stops.setdefault(session, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), 5)
        return event.is_set()

    async def stop(self, session: str) -> None:
        """It is to stop."""
        self._stops.setdefault(session, asyncio.Event()).set()

    async def over(self, session: str) -> None:
        """It has ended."""
        self._stops.pop(session, None)


def swept(prefix: str) -> bytes:
    """Removes what rows of a batch have left on a node, and mirrors that are old; what could not be, as JSON."""
    return json.dumps([*row.sweep(prefix), *base.prune(base.KEPT_DAYS)[1]]).encode("utf-8", "replace")


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
    """The engine `ray`; see `launcher.engines.driver.Engine`.

    Attributes:
        module: Ray's own.
    """

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
        self._ray = self.module = ray
        self._out = contextlib.ExitStack()
        # Ray prints to standard output what befalls its nodes, between lines of JSON too.
        self._out.enter_context(contextlib.redirect_stdout(io.StringIO()))
        try:
            ray.init(
                address=address or "auto", log_to_driver=False, configure_logging=False, include_dashboard=False,
                _skip_env_hook=True,
            )  # fmt: skip
        except Exception as error:
            self._out.close()
            raise Refusal("ray-unreachable", f"no Ray cluster can be joined at {address or 'this machine'}",
                          context=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                          hint="ray start --head on one node; --address HOST:PORT; the same token everywhere",
                          ) from None  # fmt: skip
        self._machine = platform.node()
        self._perform = ray.remote(max_retries=0)(performed)
        self._parts: dict[str, list[Part]] = {}
        self._packs: dict[str, list[_Packed]] = {}
        self._asked = b""
        self._fit: dict[str, _Node] = {}
        """The nodes that perform rows, by their ids."""
        self._seen: set[str] = set()
        self._asking: dict[Any, tuple[_Node, float]] = {}
        self._next_look = 0.0
        self._held: list[Job] = []
        """Rows for which there was no node."""
        self._cancelled = False
        self._running: dict[Any, tuple[Job, float, frozenset[str]]] = {}
        self._lock = threading.Lock()
        self._of_tickets: dict[tuple[str, str, frozenset[str]], tuple[bytes, list[Any]]] = {}
        self._post: Any = None
        self._parallel = parallel
        self.room = parallel or 1
        self.notes: list[str] = []

    def prepare(self, jobs: list[Job], prefix: str) -> list[str]:
        """See `Engine`. A node that is lost before it has answered is none.

        Raises:
            Refusal: node-version, node-unfit, node-lost, ray-without-token, row-too-wide, as of `base`.
        """
        del prefix  # a node tells by locks what a killed driver has left
        self._check_sizes(jobs)
        commits: dict[str, dict[str, None]] = {}
        for job in jobs:
            commits.setdefault(job.row.repository, {})[job.row.commit] = None
        self._parts = {repository: base.parts(repository, tuple(oids)) for repository, oids in commits.items()}
        stores = {self._mirror(repository): [part.store for part in found] for repository, found in self._parts.items()}
        self._asked = json.dumps(stores).encode()
        asked = {self._on(node, ready, self._asked): node for node in self._alive()}
        self._seen = {node.id for node in asked.values()}
        answers = {}
        for reference, node in asked.items():
            try:
                answers[node] = self._answer(node.name, reference)
                self._check(answers[node])
            except Refusal as refusal:
                if refusal.reference != "node-lost":
                    raise
                self.notes.append(refusal.message)
        if not answers:
            raise Refusal("node-lost", "no node of the cluster has answered", hint="ray status")
        self._pack(list(answers.values()))
        self._take_on(answers)
        return [f"{said['host']}: {line}" for said in answers.values() for line in said["left"]]

    def submit(self, job: Job) -> None:
        """See `Engine`."""
        if not self._fit:
            self._held.append(job)
            return
        parts = json.dumps(self._parts[job.row.repository]).encode()
        packs = [each.reference for each in self._packs[job.row.repository]]
        task = self._perform.options(**self._options(job))
        reference = task.remote(self._sent(job), parts, version(), packs)
        self._running[reference] = (job, time.time(), frozenset(self._fit))

    def _sent(self, job: Job) -> bytes:
        own = job.row.model_copy(update={"repository": self._mirror(job.row.repository)})
        return job.model_copy(update={"row": own}).model_dump_json().encode()

    def _options(self, job: Job) -> dict[str, Any]:
        asked = job.row
        return {
            "num_cpus": asked.cpus, "memory": asked.memory or None, "resources": dict(asked.resources),
            "name": job.session,
            # A node that joins meanwhile gets no row before it has answered.
            "label_selector": {_NODE: f"in({','.join(sorted(self._fit))})"},
        }  # fmt: skip

    def ticket(self, job: Job, names: list[str]) -> "Performing":
        """Hands a ticket over. May be called by several threads.

        Refusals: row-too-wide, node-lost: there is none, as of `base`.
        """
        self._check_sizes([job])
        with self._lock:
            if not self._fit:
                raise Refusal("node-lost", "the cluster has no node that is fit", hint="ray status")
            if self._post is None:
                from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

                here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
                self._post = self._ray.remote(Post).options(num_cpus=0, scheduling_strategy=here).remote()
            nodes = frozenset(self._fit)
            where = (job.row.repository, job.row.commit, nodes)
            if where not in self._of_tickets:
                self._of_tickets[where] = self._base(job.row.repository, job.row.commit)
            parts, packs = self._of_tickets[where]
            task = self._ray.remote(max_retries=0, num_returns="streaming", _generator_backpressure_num_objects=_AHEAD)(
                ticketed
            ).options(**self._options(job))
            frames = task.remote(self._sent(job), parts, version(), packs, names, self._post)
        return Performing(self, frames, self._post, job.session, nodes)

    def _base(self, repository: str, commit: str) -> tuple[bytes, list[Any]]:
        """The parts of a base as JSON, and references to their packs, each with what not all nodes have."""
        found = base.parts(repository, (commit,))
        asked = json.dumps([self._mirror(repository), [part.store for part in found]]).encode()
        answers = []
        for reference, name in {self._on(node, known, asked): node.name for node in self._fit.values()}.items():
            with contextlib.suppress(Refusal):  # that of a node which is lost
                answers.append(self._answer(name, reference))
        packs = []
        for number, part in enumerate(found):
            have = [set(said[number]) for said in answers] or [set()]
            lacks = any(not set(part.commits) <= each for each in have)
            there = tuple(sorted(set.intersection(*have)))
            packs.append(self._ray.put(base.packed(repository, part, there)) if lacks else None)
        return json.dumps(found).encode(), packs

    def look(self) -> list[str]:
        """Sees which nodes there are, for who hands over tickets; returns the notes on that."""
        with self._lock:
            self._look()
            notes, self.notes = self.notes, []
        return notes

    def next(self, seconds: float) -> Outcome | None:
        """See `Engine`."""
        if time.monotonic() >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + _LOOK
        if self._cancelled and self._held:
            return row.failed(self._held.pop(), Cause.CANCELLED, Refusal("row-cancelled", "the batch was ended"), 0.0)
        if not self._running:
            time.sleep(seconds)
            return None
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if not done:
            return self._stranded()
        job, begun, _ = self._running.pop(done[0])
        try:
            outcome = row.read_outcome(_bytes(self._ray.get(done[0])))
            if (outcome.key, outcome.attempt) != (job.key, job.attempt):
                raise ValueError("it is the result of another row")
        except Exception as error:
            return row.failed(job, self._cause(error), _short(error), begun)
        return outcome.model_copy(update={"number": job.number, "id": job.row.id, "commit": job.row.commit})

    def _look(self) -> None:
        """Sees which nodes there are: those that have joined are asked, and perform rows once they have answered."""
        alive = self._alive()
        for lost in self._fit.keys() - {node.id for node in alive}:
            self.notes.append(f"the node {self._fit.pop(lost).name} is lost")
            self._take_on(())
        for node in alive:
            if node.id not in self._seen:
                self._seen.add(node.id)
                self._asking[self._on(node, ready, self._asked)] = (node, time.monotonic())
        if self._asking:
            done, _ = self._ray.wait(list(self._asking), num_returns=len(self._asking), timeout=0)
            late = [each for each, (_, since) in self._asking.items() if time.monotonic() - since > _READY]
            for reference in {*done, *late}:
                self._join(self._asking.pop(reference)[0], reference)
        if self._fit:
            held, self._held = self._held, []
            for job in held:
                self.submit(job)

    def _join(self, node: _Node, reference: Any) -> None:  # noqa: ANN401  # a reference of Ray's
        try:
            said = self._answer(node.name, reference, 0.1)
            self._check(said)
            self._pack([said])
        except Refusal as refusal:
            self.notes.append(f"no row for the node {node.name}, which has joined: {refusal.message}")
            return
        self.notes += [f"not removed: {said['host']}: {line}" for line in said["left"]]
        self.notes.append(f"the node {node.name} has joined")
        self._take_on([node])

    def _take_on(self, nodes: Iterable[_Node]) -> None:
        self._fit.update((node.id, node) for node in nodes)
        processors = int(sum(node.processors for node in self._fit.values()))
        self.room = self._parallel or 2 * max(1, processors)

    def _stranded(self) -> Outcome | None:
        """A row that waits for nodes which are all gone: Ray would wait for ever."""
        for reference, (job, begun, nodes) in self._running.items():
            if time.time() - begun > _LOOK and self.are_gone(nodes):
                del self._running[reference]
                self._ray.cancel(reference)
                lost = Refusal("node-lost", "every node is gone that could have performed the row")
                return row.failed(job, Cause.NODE, lost, begun)
        return None

    def cancel(self) -> None:
        """See `Engine`."""
        self._cancelled = True
        for reference in list(self._running):
            self._ray.cancel(reference)

    def close(self, prefix: str) -> list[str]:
        """See `Engine`."""
        left = []
        try:
            if self._running:
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_READY)
            nodes = [node for node in self._alive() if node.id in self._fit]
            for reference, name in {self._on(node, swept, prefix): node.name for node in nodes}.items():
                try:
                    left += [f"{name}: {line}" for line in self._answer(name, reference)]
                except Refusal as refusal:
                    left.append(refusal.message)
        finally:
            self._ray.shutdown()
            self._out.close()
        return left

    def _pack(self, answers: list[Any]) -> None:
        """Packs what nodes need of the bases, but for what is packed already.

        Args:
            answers: of nodes, as `ready` gives them.
        """
        for repository, parts in self._parts.items():
            packs = self._packs.setdefault(repository, [_Packed(frozenset(), None) for _ in parts])
            for number, part in enumerate(parts):
                have = [set(said["known"].get(self._mirror(repository), {}).get(part.store, ())) for said in answers]
                lacking = [each for each in have if not set(part.commits) <= each]
                before = packs[number]
                if lacking and (before.reference is None or not all(before.known <= each for each in lacking)):
                    known = frozenset(set.intersection(*lacking))
                    known &= known if before.reference is None else before.known
                    pack = base.packed(repository, part, tuple(sorted(known)))
                    packs[number] = _Packed(known, self._ray.put(pack))

    def are_gone(self, nodes: frozenset[str]) -> bool:
        """Whether none of these nodes is there any more."""
        return nodes.isdisjoint(node.id for node in self._alive())

    def _alive(self) -> list[_Node]:
        return [
            _Node(
                node["NodeID"], f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})", node["Resources"].get("CPU", 0)
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def _mirror(self, repository: str) -> str:
        return base.name_of(repository, self._machine)

    def _on(self, node: _Node, function: Callable[..., bytes], argument: bytes | str) -> Any:  # noqa: ANN401
        """Has a node answer; Ray's reference to the answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        task = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=where)(function)
        return task.remote(argument)

    def _answer(self, name: str, reference: Any, seconds: float = _READY) -> Any:  # noqa: ANN401  # JSON
        """What a node has answered. Refusals: node-lost, node-unfit."""
        try:
            answer = _bytes(self._ray.get(reference, timeout=seconds))
            return json.loads(answer) if len(answer) <= _MOST_SAID else None
        except Exception as error:
            if self._cause(error) is Cause.NODE:
                raise Refusal("node-lost", f"the node {name} was lost before it answered") from None
            raise Refusal(
                "node-unfit", f"the node {name} does not answer as Paddock", context=Rows(_short(error).context),
                hint=f"install Paddock {version()} there, in the Python that Ray uses",
            ) from None  # fmt: skip

    def _check(self, said: dict[str, Any]) -> None:
        host = said["host"]
        if said["version"] != version():
            raise _other_version(host, said["version"], version())
        if not said["token"]:
            raise Refusal("ray-without-token", f"the node {host} has joined Ray without token authentication",
                          hint="there: export RAY_AUTH_MODE=token; ray stop; ray start ...")  # fmt: skip
        if why := said["refusal"]:
            raise Refusal("node-unfit", f"the node {host} cannot run rows: {why['message']}",
                          context=Rows(why["context"]), hint=Rows(why["hint"]))  # fmt: skip

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
        if isinstance(error, self._ray.exceptions.TaskCancelledError):
            return Cause.CANCELLED
        return Cause.NODE if isinstance(error, _lost(self._ray)) else Cause.ENGINE


class Performing:
    """A ticket that a node performs."""

    def __init__(self, engine: Ray, frames: Any, post: Any, session: str, nodes: frozenset[str]) -> None:  # noqa: ANN401  # untyped objects of Ray's
        """Args: whose it is; the task's generator; the run's `Post`; the ticket's session; nodes that may take it."""
        self._engine, self._frames, self._post, self._session, self._nodes = engine, frames, post, session, nodes
        self._ray = engine.module

    def frames(self, seconds: float) -> Iterator[bytes]:
        """Its frames; an empty one whenever none has come so long.

        Raises:
            Refusal: node-lost, ray-failed.
            ValueError: what came is no frame.
        """
        looked = time.monotonic()
        while True:
            try:
                ready, _ = self._ray.wait([self._frames], timeout=seconds)
                frame = _bytes(self._ray.get(next(self._frames))) if ready else b""
            except StopIteration:
                return
            except Exception as error:
                if isinstance(error, _lost(self._ray)):
                    raise Refusal("node-lost", "the node was lost", context=Rows(_short(error).context)) from None
                raise _short(error) from None
            if len(frame) > ticket.MOST_FRAME + (1 << 16):
                raise ValueError("a node has answered more than a ticket's work is")
            if not frame and time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if self._engine.are_gone(self._nodes):
                    raise Refusal("node-lost", "every node is gone that could have taken the ticket")
            yield frame

    def stop(self) -> None:
        """Asks its agent to stop; what it has made still comes."""
        self._post.stop.remote(self._session)

    def end(self) -> None:
        """Ends it if it has not ended."""
        self._ray.cancel(self._frames)
        self._post.over.remote(self._session)


def _lost(ray: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401  # a module without types
    """What Ray raises when a node, or a process of its own there, has gone."""
    of = ray.exceptions
    return (
        of.WorkerCrashedError, of.NodeDiedError, of.ObjectLostError, of.OutOfMemoryError, of.RaySystemError,
        of.TaskUnschedulableError,
    )  # fmt: skip


def _bytes(answer: object) -> bytes:
    if not isinstance(answer, bytes):
        raise TypeError("a node has answered something other than bytes")
    return answer


def _short(error: Exception) -> Refusal:
    lines = [line[:500] for line in str(error).splitlines() if line.strip()]
    return Refusal("ray-failed", f"the task failed with {type(error).__name__}", context=in_rows(*lines[-4:]))
