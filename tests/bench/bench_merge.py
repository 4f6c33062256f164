"""How long merging many children takes, in processor time: `python -m tests.bench merge`.

Four ways to the same tree, each in a fresh copy: a chain of `git merge` in a checkout, the bare chain of merge-tree and
commit-tree, the engine with its one checkout at the end, and the engine on objects alone. Then a forecast for all
children and all pairs of them, beside the bare chain's merges.
"""

import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from launcher.vcs.merge import into_children, work
from launcher.vcs.merge.moving import Follow
from launcher.vcs.merge.preview import preview
from launcher.vcs.merge.runs import Run
from launcher.vcs.merge.target import find
from policy.handoff import Patterns
from tests.bench import harness
from tests.bench.harness import Result
from tests.support.ground import ENVIRONMENT, Entry, Ground
from tests.support.install import public_root


def repository(root: Path, children: int, files: int) -> Ground:
    """`files` files in directories of 50, and branches `c0`, `c1`, ... that change five of them each."""
    text = "".join(f"line {number}\n" for number in range(40))
    names = [f"d{number // 50}/f{number}" for number in range(files)]
    ground = Ground(root, dict.fromkeys(names, text))
    for child in range(children):
        changed: dict[str, str | bytes | Entry] = {
            names[(child * 7 + part * 911) % files]: text.replace(f"line {child % 40}\n", f"child {child}\n")
            for part in range(5)
        }
        ground.branch(f"c{child}", {**changed, f"new/{child}": "new\n"})
    ground.commit("main", {"trunk": "has moved on\n"})
    ground.git("reset", "-q", "--hard")
    ground.git("repack", "-adq")
    return ground


def by_git_merge(ground: Ground, names: list[str]) -> str:
    """`git merge` for every child, in the checkout."""
    for name in names:
        ground.git("merge", "-q", "--no-ff", "--no-edit", name)
    return ground.tree("HEAD")


def by_merge_tree(ground: Ground, names: list[str]) -> str:
    """merge-tree and commit-tree for every child, and nothing around them."""
    words = ["git", "-C", str(ground.root)]

    def output(*more: str) -> str:
        return subprocess.run([*words, *more], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout

    now = ground.id("main")
    for name in names:
        tree = output("merge-tree", "--write-tree", now, name).split("\n")[0]
        now = output("commit-tree", tree, "-p", now, "-p", name, "-m", name).strip()
    return ground.tree(now)


def by_name(ground: Ground, names: list[str], settings: work.Settings) -> Run:
    """What `paddock merge` does once it knows its options."""
    root = str(ground.root)
    sources = into_children.named(ground.target(), names, root)
    return work.merge(lambda: find(root, None), sources, settings, f"{root}/.git")


def by_engine(ground: Ground, names: list[str]) -> str:
    """The engine: history, merges, journal, refs, checkout."""
    run = by_name(ground, names, ground.settings())
    assert run.outcome is not None
    assert run.outcome.all_successful
    return ground.tree("main")


def by_engine_without_checkout(ground: Ground, names: list[str]) -> str:
    """The engine, refs alone."""
    by_name(ground, names, ground.settings()._replace(follow=Follow(files=False)))
    return ground.tree("main")


def _processor() -> float:
    """Seconds of processor time that this process and its children have used: other work on the machine counts less."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def rows(quick: bool = False) -> list[Result]:
    """The engine beside git's merges, and beside the least that git could do."""
    count, files, rounds = (10, 1_000, 2) if quick else (50, 5_000, 4)
    names = [f"c{number}" for number in range(count)]
    # In memory where possible: how long a disk takes for the six hundred files of one checkout varies tenfold.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=public_root()) as directory:
        template = repository(Path(directory) / "template", count, files)
        trees = set()
        numbers = itertools.count()

        def fresh(way: Callable[[Ground, list[str]], str]) -> float:
            root = Path(directory) / f"copy-{next(numbers)}"
            shutil.copytree(template.root, root, symlinks=True)
            ground = Ground(root, None)
            ground.git("update-index", "-q", "--refresh")
            os.sync()  # or the first to write pays for what copying has left to be written
            used = _processor()
            trees.add(way(ground, names))
            seconds = _processor() - used
            shutil.rmtree(root)
            return seconds

        ways = {
            "git merge, one after another": by_git_merge,
            "merge-tree and commit-tree": by_merge_tree,
            "paddock merge": by_engine,
            "paddock merge --no-checkout": by_engine_without_checkout,
        }
        taken = harness.turns({name: functools.partial(fresh, way) for name, way in ways.items()}, rounds)
        if len(trees) != 1:
            raise RuntimeError(f"{len(trees)} different trees")
        pairs = count * (count + 1) // 2
        target, sources = template.target(), [template.source(name) for name in names]
        taken[f"{count} of the {pairs:,} merges of a preview"] = [
            _spent(lambda: preview(target, sources, Patterns(()))) * count / pairs
        ] * rounds
    found = harness.against(taken, {"paddock merge": 0.25}, suffix=f", {count} children")
    bare = {name: taken[name] for name in ("merge-tree and commit-tree", "paddock merge --no-checkout")}
    return found + harness.against(bare, {"paddock merge --no-checkout": 1.5}, suffix=f", {count} children")


def _spent(act: Callable[[], object]) -> float:
    used = _processor()
    act()
    return _processor() - used


if __name__ == "__main__":
    harness.main(rows)
