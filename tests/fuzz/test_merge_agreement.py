"""Random histories merged by the engine and by `git merge` in a checkout: the same trees, the same conflicts."""

from pathlib import Path

import git
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.vcs.merge import report
from launcher.vcs.merge.object_store import Store
from tests.support.ground import Entry, Ground

PATHS = ("a", "b", "dir/c", "dir/d", "dir/sub/e", "other/f")
FIRST = {path: "".join(f"{path} {number}\n" for number in range(12)) for path in PATHS[:5]}

Tree = dict[str, str | bytes | Entry]
Step = tuple[int, int, int]

steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 11)), min_size=1, max_size=4)
histories = st.tuples(steps, st.lists(steps, min_size=1, max_size=3), st.lists(steps, min_size=1, max_size=3),
                      st.integers(0, 3))  # fmt: skip


def act(tree: Tree, step: Step) -> None:
    """One change, whatever the tree holds."""
    kind, place, value = step
    path = PATHS[place]
    known = sorted(tree)
    if kind <= 3:  # edit a line
        entry = tree.get(path)
        if isinstance(entry, str):
            lines = entry.splitlines(keepends=True) or ["\n"]
            lines[value % len(lines)] = f"edited {kind}\n"
            tree[path] = "".join(lines)
    elif kind == 4 and len(known) > 1:
        del tree[known[value % len(known)]]
    elif kind == 5 and known:  # rename, with an edit now and then
        old = known[value % len(known)]
        entry = tree.pop(old)
        new = f"{('moved', 'dir/new', 'other/deep/x')[place % 3]}{value % 4}"
        clear(tree, new)
        tree[new] = entry + "one more\n" if isinstance(entry, str) and value % 2 else entry
    elif kind == 6:
        clear(tree, path)
        tree[path] = Entry("120000", f"target{value % 2}")
    elif kind == 7:
        clear(tree, path)
        tree[path] = b"\0binary" + bytes([value])
    elif kind == 8 and isinstance(tree.get(path), str):
        tree[path] = Entry("100755", str(tree[path]))
    elif kind == 9:  # a file where a directory was
        name = ("dir", "dir/sub", "other", "a")[value % 4]
        clear(tree, name)
        tree[name if value % 3 else f"{name}/inside"] = f"instead {value % 3}\n"


def clear(tree: Tree, path: str) -> None:
    """Takes away what cannot stand beside `path`."""
    for other in list(tree):
        if other == path or other.startswith(f"{path}/") or path.startswith(f"{other}/"):
            del tree[other]


def commits(history: tuple[list[Step], list[list[Step]], list[list[Step]], int]) -> list[tuple[Tree, list[int]]]:
    """A base, two branches, and (by the last number) merges between them: criss-cross, or an octopus before all."""
    before, left, right, shape = history
    base: Tree = dict(FIRST)
    made: list[tuple[Tree, list[int]]] = [(dict(base), [])]
    for step in before:
        act(base, step)
    made.append((dict(base), [0]))
    start = 1
    if shape == 3:
        made += [(dict(base), [1]), (dict(base), [1]), (dict(base), [1, 2, 3])]
        start = 4
    tips, trees = [start, start], [dict(base), dict(base)]
    for side, branch in enumerate((left, right)):
        for number, changes in enumerate(branch):
            for step in changes:
                act(trees[side], step)
            made.append((dict(trees[side]), [tips[side]]))
            tips[side] = len(made) - 1
            if side == 1 and number == 0 and shape in (1, 2):
                # Both take the other in, each as it likes: two common ancestors from now on.
                first, second = tips
                made += [(dict(trees[0]), [first, second]), (dict(trees[shape - 1]), [second, first])]
                tips = [len(made) - 2, len(made) - 1]
                trees[1] = dict(trees[shape - 1])
    for side in (0, 1):
        act(trees[side], (0, side, 5 + side))
        made.append((dict(trees[side]), [tips[side]]))
        tips[side] = len(made) - 1
    # The two tips go last.
    return [*made, (trees[0], [tips[0]]), (trees[1], [tips[1]])]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """A repository for all examples."""
    return Ground(tmp_path_factory.mktemp("agreement") / "repo", {"x": "x\n"})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(history=histories)
def test_random_histories_merge_as_git_merges_them(
    ground: Ground, history: tuple[list[Step], list[list[Step]], list[list[Step]], int]
) -> None:
    """Clean merges have the tree of `git merge`, the others its unmerged entries; all in one process agree, too."""
    *_, ours, theirs = ground.history(commits(history))
    tree, unmerged = ground.git_merge(ours, theirs)
    with Store(str(ground.root / ".git"), {}) as store:
        merged = store.merge_trees(ours, theirs, attributes=ours)
        (forecast,) = store.forecast([(ours, theirs)], attributes=ours)
    assert merged is not None
    assert merged == forecast
    assert (merged.tree if merged.clean else "") == tree
    stages = {f"{s.mode} {s.object_id} {s.stage}\t{s.path.decode()}" for s in merged.stages}
    assert stages == unmerged
    named = {path for conflict in report.conflicts(merged) for path in (conflict.path, *conflict.other_paths)}
    assert {entry.partition("\t")[2] for entry in unmerged} <= named


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(history=histories)
def test_random_histories_merge_as_gitpythons_index_merges_them(
    ground: Ground, history: tuple[list[Step], list[list[Step]], list[list[Step]], int]
) -> None:
    """What its three-way merge of trees decides is decided so here; what conflicts here it leaves open.

    It knows neither renames nor the content of files, so histories have none of the first, and it leaves more open.
    """
    before, left, right, _ = history
    plain = [
        [[step for step in steps if step[0] in (0, 1, 2, 4, 7)] for steps in side] for side in ([before], left, right)
    ]
    *_, ours, theirs = ground.history(commits((plain[0][0], plain[1], plain[2], 0)))
    base = ground.git("merge-base", ours, theirs)
    with git.Repo(ground.root) as repo, Store(str(ground.root / ".git"), {}) as store:
        index = git.IndexFile.from_tree(repo, base, ours, theirs)
        merged = store.merge_trees(ours, theirs, attributes=ours)
    assert merged is not None
    entries = {(str(path), stage): (entry.mode, entry.hexsha) for (path, stage), entry in index.entries.items()}
    opened = {path for path, stage in entries if stage}
    conflicting = {stage.path.decode() for stage in merged.stages}
    assert conflicting <= opened
    if not merged.clean:
        return
    assert ground.git_merge(ours, theirs)[0] == merged.tree  # which writes it into the repository
    listed = ground.git("ls-tree", "-r", "-z", merged.tree).split("\0")[:-1]
    lines = [(*info.split(), path) for info, _, path in (line.partition("\t") for line in listed)]
    tree = {path: (int(mode, 8), oid) for mode, _, oid, path in lines}
    assert {path: told for (path, stage), told in entries.items() if not stage} == {
        path: told for path, told in tree.items() if path not in opened
    }


def test_the_histories_are_worth_their_time() -> None:
    """The generator makes criss-cross histories and octopuses, and not only clean merges."""
    made = commits(([(4, 0, 0)], [[(0, 1, 1)]], [[(0, 1, 1)]], 1))
    assert sum(len(parents) == 2 for _, parents in made) == 2
    assert any(len(parents) == 3 or len(parents) == 2 for _, parents in commits(([(4, 0, 0)], [[]], [[]], 3)))


def test_paths_are_bytes(tmp_path: Path) -> None:
    """Names in other encodings, with newlines and quotes, are merged and told apart."""
    names = ("caf\udce9", "new\nline", 'quo"te', "tab\there", " space ")
    ground = Ground(tmp_path / "repo", dict.fromkeys(names, "1\n2\n3\n"))
    ground.branch("one", dict.fromkeys(names, "1\none\n3\n"))
    ground.branch("two", dict.fromkeys(names, "1\ntwo\n3\n"))
    with Store(str(ground.root / ".git"), {}) as store:
        merged = store.merge_trees(ground.id("one"), ground.id("two"), attributes=ground.id("one"))
    assert merged is not None
    found = {conflict.path for conflict in report.conflicts(merged)}
    assert found == {"caf\\xe9", *names[1:]}
