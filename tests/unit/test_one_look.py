"""Names that somebody exchanges while a Plan is made: what is judged, granted and recorded is one observation."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.safefs import walk
from launcher.session import inputs
from launcher.session.machine import Machine
from launcher.vcs import disk
from policy.errors import Refusal
from policy.ingredients import asked_for
from policy.launch import Trail
from policy.plan import beneath
from policy.toolchains import discover
from tests.support.derived import MACHINE, ROOT, TABLE, Table, program

LOOKS = ("lstat", "stat", "open", "readlink", "listdir", "access")


@dataclass
class Scene:
    """A worktree with the directory `way`, and `way2` beside it, a link to what is not the worktree's.

    Args:
        place: holds all of it.
    """

    place: Path

    @property
    def root(self) -> Path:
        return self.place / "tree"

    @property
    def outside(self) -> Path:
        return self.place / "outside/env"

    def exchange(self) -> None:
        way, other, between = self.root / "way", self.root / "way2", self.root / "way3"
        way.rename(between)
        other.rename(way)
        between.rename(other)

    def reset(self) -> None:
        if (self.root / "way").is_symlink():
            self.exchange()

    def machine(self) -> Machine:
        return Machine({"HOME": str(self.place / "home"), "VIRTUAL_ENV": f"{self.root}/way"})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    found = Scene(Path(os.path.realpath(tmp_path)))
    (found.place / "home").mkdir()
    for top in (found.root / "way", found.outside):
        (top / "lib").mkdir(parents=True)
        program(top / "bin/python3")
        (top / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (found.root / "way2").symlink_to(found.outside)
    return found


@contextmanager
def before_look(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Does something before the system call of this number that looks at the disk; yields how many there were."""
    count = [0]
    true = {(os, name): getattr(os, name) for name in LOOKS} | {(walk, "openat2"): walk.openat2}
    acting = [False]

    def wrapped(call: Callable[..., object]) -> Callable[..., object]:
        def look(*words: object, **options: object) -> object:
            if not acting[0]:
                count[0] += 1
                if count[0] == number:
                    acting[0] = True
                    act()
                    acting[0] = False
            return call(*words, **options)

        return look

    with pytest.MonkeyPatch.context() as patch:
        for (module, name), call in true.items():
            patch.setattr(module, name, wrapped(call))
        yield count


def moments(scene: Scene, look: Callable[[Machine], object], *, step: int = 1) -> Iterator[Machine]:
    """A machine after `look`, for each moment at which one exchange can happen, to the link and back from it."""
    for link_first in (False, True):
        number, seen = 1, 1
        while number <= seen:
            scene.reset()
            if link_first:
                scene.exchange()
            machine = scene.machine()
            with before_look(number, scene.exchange) as count:
                look(machine)
            yield machine
            seen, number = count[0], number + step


@pytest.mark.parametrize("below", ["", "/lib"])
def test_a_grant_in_the_worktree_never_leads_out_of_it(scene: Scene, below: str) -> None:
    """Whenever the directory becomes a link, or the link a directory: it is refused, or what is granted lies inside."""
    path = f"{scene.root}/way{below}"
    outcomes = set()

    def judged(machine: Machine) -> None:
        try:
            granted = asked_for(path, machine.trail(path), "--rw", str(scene.root), machine)
        except Refusal as refusal:
            outcomes.add(refusal.reference)
        else:
            outcomes.add("granted")
            assert granted == path
            assert machine.resolve(path) == path

    assert len(list(moments(scene, judged))) > 6
    assert {"granted", "grant-leaves-worktree"} <= outcomes


def test_discovery_never_leads_out_of_the_worktree(scene: Scene) -> None:
    """An activated environment of the worktree grants nothing elsewhere, whenever it becomes a link and again none."""
    outside = str(scene.place / "outside")
    found = []

    def searched(machine: Machine) -> None:
        tools = discover(
            machine,
            f"{scene.root}/way/bin",
            TABLE,
            worktree=str(scene.root),
            programs=(f"{scene.root}/way/bin/python3",),
        )
        found.append(tools.path)
        assert not [path for path, _, _ in tools.grants if beneath(path, outside)]

    assert len(list(moments(scene, searched, step=4))) > 10
    assert (f"{scene.root}/way/bin",) in found


def test_what_is_recorded_is_what_was_seen(scene: Scene) -> None:
    """A plan is kept only for as long as its own walk would be the same: not when that was of a moment that is gone."""
    path = f"{scene.root}/way/lib"
    wrong = []

    def walked(machine: Machine) -> None:
        seen = machine.trail(path)
        now = inputs.resolved(path)
        if seen.canonical != now and inputs.unchanged(machine.recorded(), {}):
            wrong.append(seen)

    assert len(list(moments(scene, walked))) > 6
    assert not wrong


def test_all_answers_agree_about_a_name(scene: Scene) -> None:
    """Whatever it is exchanged for in between: all paths go through the same directory, or the same link."""
    machine = scene.machine()
    assert machine.kind(f"{scene.root}/way") == "dir"
    scene.exchange()
    assert machine.trail(f"{scene.root}/way/bin/python3").links == ()
    assert machine.resolve(f"{scene.root}/way/lib") is None
    assert machine.read(f"{scene.root}/way/pyvenv.cfg") is None
    assert machine.listing(f"{scene.root}/way") is None
    assert machine.others_can_write(f"{scene.root}/way")
    assert not machine.executable(f"{scene.root}/way/bin/python3")
    late = scene.machine()
    assert late.trail(f"{scene.root}/way/lib") == Trail(
        f"{scene.outside}/lib",
        ((f"{scene.root}/way", str(scene.outside)),),
        f"{scene.outside}/lib",
        f"{scene.outside}/lib",
    )
    assert late.read(f"{scene.root}/way/pyvenv.cfg") == b"home = /usr/bin\n"


@pytest.mark.parametrize(
    "path",
    ["/", "/usr/..", "/usr/bin/../lib", "/proc/self/exe", "/dev/stdin/x", "/etc/hosts/", "/etc/hosts/..", "/no/where"],
)
def test_a_walk_leads_where_the_kernel_does(path: str) -> None:
    """Through links, `..` and what is no directory."""
    assert Machine({}).resolve(path) == inputs.resolved(path)


def test_a_loop_of_links_leads_nowhere(tmp_path: Path) -> None:
    """As in the kernel, which gives up at some depth."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    trail = disk.Names().walk(f"{tmp_path}/one/x")
    assert (trail.canonical, trail.entry) == (None, None)
    assert len(trail.links) > 39


@pytest.mark.parametrize("path", ["way", "way/new", "way2/new", "way2"])
def test_what_lies_in_the_worktree_or_is_led_from_it_is_in_its_hands(scene: Scene, path: str) -> None:
    """Whether it exists or not, and whenever somebody exchanges a directory and a link."""
    for number in range(1, 12):
        scene.reset()
        with before_look(number, scene.exchange):
            assert disk.in_hands_of(str(scene.root), f"{scene.root}/{path}")
            assert not disk.in_hands_of(str(scene.root), f"{scene.outside}/lib")


class Restless(Table):
    """A machine on which each walk finds something else than the one before."""

    looks = 0

    def trail(self, path: str) -> Trail:
        self.looks += 1
        self.entries = MACHINE | {f"{ROOT}/way": "-> /srv/data" if self.looks % 2 else "dir"}
        return super().trail(path)


def test_a_decision_asks_once() -> None:
    """Judge and grant go by the same answer, whatever the next one would be."""
    machine = Restless()
    with pytest.raises(Refusal, match="resolves outside"):
        asked_for(f"{ROOT}/way", machine.trail(f"{ROOT}/way"), "--rw", ROOT, machine)
    assert asked_for(f"{ROOT}/way", machine.trail(f"{ROOT}/way"), "--rw", ROOT, machine) == f"{ROOT}/way"
