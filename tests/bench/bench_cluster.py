"""Where ten thousand tickets on a hundred nodes would wait: `python -m tests.bench.bench_cluster [TICKETS [NODES]]`.

First the costs of a ticket at the driver are measured here, in processor time (see `bench_git`): what a harvest costs
once and for each object, what a merge costs for each child, how many bytes a ticket's pack has. Then a simulation plays
the run with these costs, with nodes that fail, for two shapes: every ticket comes home and is merged there, one after
another; or every node harvests and merges its own, and one head comes home from each, merged pairwise. What is not
measured is assumed in `Cluster`.
"""

import functools
import heapq
import math
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tests.bench import bench_merge
from tests.bench.bench_git import processor_time
from tests.support import identity, install, private_git
from tests.support import repository as repositories

_FILES = 5_000
_CHILDREN = (10, 60)
_COMMITS = (1, 200)


class Costs(NamedTuple):
    """What was measured: seconds of one processor, bytes, objects.

    Attributes:
        harvest: of a harvest, however small.
        item: of each object in it.
        run: of a merge run, however small.
        merge: of each child in it.
        pack: bytes that a ticket's commits have as a pack.
        objects: that they have.
        base: bytes of the whole repository as a pack.
    """

    harvest: float
    item: float
    run: float
    merge: float
    pack: int
    objects: int
    base: int


@dataclass(frozen=True)
class Cluster:
    """What is assumed of a cluster, and not measured.

    Attributes:
        tickets, nodes, slots: how many; `slots` run on a node at the same time.
        minutes: that an agent works on a ticket, at the median; lognormal, with this `spread`.
        processors: of the driver.
        bandwidth: of the driver's link, bytes per second.
        base: bytes of the repository that each node needs once; 0 for what was measured.
        peers: whether a node takes the base from any that has it, as Ray's object store does, or all from the driver.
        hours: between two failures of one node; it is back after `repair` minutes, and its tickets start anew.
    """

    tickets: int = 10_000
    nodes: int = 100
    slots: int = 8
    minutes: float = 6.0
    spread: float = 0.6
    processors: int = 2
    bandwidth: float = 125e6
    base: int = 500_000_000
    peers: bool = True
    hours: float = 50.0
    repair: float = 10.0


class Played(NamedTuple):
    """What came of a simulated run; seconds, and shares of the time until the last agent has ended.

    Attributes:
        agents: until the last agent has ended.
        trunk: until all is on the trunk.
        driver, link: how busy the driver's processors and its link were.
        waiting: most results that waited for the driver at the same time.
        again: tickets that were started again.
        sent: bytes over the driver's link.
    """

    agents: float
    trunk: float
    driver: float
    link: float
    waiting: int
    again: int
    sent: float


class _Server:
    """Something with a queue: takes work in the order in which it comes, `width` pieces at a time."""

    def __init__(self, width: int) -> None:
        self._free = [0.0] * width
        self._waiting: deque[float] = deque()
        self.busy = 0.0
        self.longest = 0

    def take(self, when: float, seconds: float) -> float:
        """When work is done that comes at `when`; work comes in the order of time."""
        begun = max(when, heapq.heappop(self._free))
        heapq.heappush(self._free, begun + seconds)
        self.busy += seconds
        while self._waiting and self._waiting[0] <= when:
            self._waiting.popleft()
        if begun > when:
            self._waiting.append(begun)
        self.longest = max(self.longest, len(self._waiting))
        return begun + seconds

    @property
    def width(self) -> int:
        """Pieces at a time."""
        return len(self._free)


def play(costs: Costs, cluster: Cluster, *, by_node: bool, seed: int = 1) -> Played:
    """Simulates a run.

    Args:
        costs: as `measured` has them.
        cluster: on which.
        by_node: whether nodes harvest and merge their own tickets, and one head of each comes home.
        seed: of its chance.
    """
    chance = random.Random(seed)
    driver, link = _Server(cluster.processors), _Server(1)
    homes = [_Server(1) for _ in range(cluster.nodes)]
    # What happens: (when, order, what, node, attempt). A node's failure ends all attempts of its older life.
    events: list[tuple[float, int, str, int, int]] = []
    lives = [0] * cluster.nodes
    running = [0] * cluster.nodes
    done = [0] * cluster.nodes
    pending, again, order, harvested = cluster.tickets, 0, 0, 0
    agents = home = 0.0
    base = cluster.base or costs.base

    def happens(when: float, what: str, node: int) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, what, node, lives[node]))

    def has_base(when: float, holders: int) -> float:
        seconds = base / cluster.bandwidth
        if cluster.peers and holders:  # who has it doubles each time
            return when + (1 + int(math.log2(holders))) * seconds
        return link.take(when, seconds)

    for node in range(cluster.nodes):
        happens(has_base(0.0, node), "free", node)
        happens(chance.expovariate(1 / (cluster.hours * 3600)), "fails", node)
    while harvested < cluster.tickets:
        when, _, what, node, life = heapq.heappop(events)
        if what == "fails":
            lives[node] += 1
            lost = running[node] + (done[node] if by_node else 0)  # its own merges die with its disk
            harvested -= done[node] if by_node else 0
            again, pending, running[node] = again + lost, pending + lost, 0
            done[node] = 0 if by_node else done[node]
            happens(when + cluster.repair * 60, "back", node)
            continue
        if life != lives[node]:
            continue
        if what == "back":
            happens(has_base(when, 1), "free", node)
            happens(when + chance.expovariate(1 / (cluster.hours * 3600)), "fails", node)
            continue
        if what == "ended":
            running[node] -= 1
            done[node] += 1
            harvested += 1
            agents = max(agents, when)
            if by_node:
                homes[node].take(when, costs.harvest + costs.item * costs.objects + costs.merge)
            else:
                there = link.take(when, costs.pack / cluster.bandwidth)
                home = max(home, driver.take(there, costs.harvest + costs.item * costs.objects))
        while pending and running[node] < cluster.slots:
            pending -= 1
            running[node] += 1
            minutes = chance.lognormvariate(0.0, cluster.spread) * cluster.minutes
            happens(when + minutes * 60, "ended", node)
    if by_node:
        for node in range(cluster.nodes):
            ready = homes[node].take(agents, costs.run)
            there = link.take(ready, done[node] * costs.pack / cluster.bandwidth)
            home = max(home, driver.take(there, costs.harvest + done[node] * costs.objects * costs.item))
        trunk = home
        heads = cluster.nodes
        while heads > 1:  # pairs side by side; each pair is a merge run of its own
            trunk += -(-(heads // 2) // cluster.processors) * (costs.run + costs.merge)
            heads -= heads // 2
    else:
        trunk = max(home, agents) + costs.run + cluster.tickets * costs.merge
    return Played(
        agents=agents,
        trunk=trunk,
        driver=driver.busy / driver.width / agents,
        link=link.busy / agents,
        waiting=driver.longest,
        again=again,
        sent=link.busy * cluster.bandwidth,
    )


def measured() -> Costs:
    """Measures a harvest and a merge at two sizes each: the rest is a straight line."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=install.public_root()) as name:
        place = Path(name)
        place.chmod(0o755)
        harvests = [_harvest(place / f"h{count}", count) for count in _COMMITS]
        ground = bench_merge.repository(place / "merge", max(_CHILDREN), _FILES)
        words = ("pack-objects", "--revs", "--stdout", "-q", "--thin")
        pack = ground.run(*words, stdin=b"c0\n^main\n").stdout
        objects = int(ground.git("rev-list", "--objects", "--count", "c0", "^main"))
        base = len(ground.run(*words, stdin=b"main\n").stdout)
        trunk = ground.id("main")
        merges = []
        for count in _CHILDREN:
            names = [f"c{number}" for number in range(count)]
            own = time.process_time()
            below = processor_time(functools.partial(bench_merge.by_engine_without_checkout, ground, names))
            merges.append(below + time.process_time() - own)
            ground.git("update-ref", "refs/heads/main", trunk)
    item = max(0.0, (harvests[1] - harvests[0]) / (3 * (_COMMITS[1] - _COMMITS[0])))
    merge = max(0.0, (merges[1] - merges[0]) / (_CHILDREN[1] - _CHILDREN[0]))
    return Costs(
        harvest=harvests[0] - 3 * item,
        item=item,
        run=max(0.0, merges[0] - _CHILDREN[0] * merge),
        merge=merge,
        pack=len(pack),
        objects=objects,
        base=base,
    )


def _harvest(place: Path, commits: int) -> float:
    """Seconds of processors for a harvest of that many commits, of three objects each, without the interpreter's."""
    place.mkdir()
    who = identity.user(place / "home")
    repo = repositories.make(who, who.give(place))
    planted = private_git.plant(repo, repo.one, install.install(), place)
    interpreter = statistics.median(processor_time(lambda: planted.start(limits={"nonsense": 1})) for _ in range(3))
    taken = []
    for turn in range(3):
        for number in range(commits):
            planted.commit(f"file-{turn}-{number}", f"{number}\n")
        taken.append(processor_time(planted.harvest) - interpreter)
    return min(taken)


def main() -> None:
    """Prints what was measured, and what would come of it."""
    tickets, nodes = (int(sys.argv[at]) if len(sys.argv) > at else most for at, most in ((1, 10_000), (2, 100)))
    cluster = Cluster(tickets=tickets, nodes=nodes)
    costs = measured()
    print(f"measured: a harvest {costs.harvest * 1000:.0f} ms and {costs.item * 1e6:.0f} us for each object; "
          f"a merge run {costs.run * 1000:.0f} ms and {costs.merge * 1000:.1f} ms for each child; "
          f"a ticket {costs.pack:,} bytes, {costs.objects} objects; the base {costs.base:,} bytes")  # fmt: skip
    print(f"assumed: {cluster}")
    harvest = costs.harvest + costs.objects * costs.item
    print(f"the driver takes {cluster.processors / harvest:.1f} tickets a second, its link "
          f"{cluster.bandwidth / costs.pack:,.0f}, a chain of merges {1 / costs.merge:.0f}\n")  # fmt: skip
    shapes = {
        "all by the driver": (replace(cluster, peers=False), False),
        "base from peers": (cluster, False),
        "base from peers, one processor at the driver": (replace(cluster, processors=1), False),
        "base from peers, tickets of a minute": (replace(cluster, minutes=1.0), False),
        "merged by node, then pairwise": (cluster, True),
        "merged by node, tickets of a minute": (replace(cluster, minutes=1.0), True),
    }
    print(f"{'':46}agents  trunk after  driver   link  waiting  again   over the link")
    for name, (shape, by_node) in shapes.items():
        played = play(costs, shape, by_node=by_node)
        print(f"{name:46}{played.agents / 60:4.0f} min {played.trunk - played.agents:8.0f} s  {played.driver:6.0%} "
              f"{played.link:6.0%} {played.waiting:8,} {played.again:6,} {played.sent / 1e9:9.2f} GB")  # fmt: skip


if __name__ == "__main__":
    main()
