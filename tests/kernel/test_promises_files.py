"""Promises about files: reads, writes, metadata. Every attack has a twin that the same jail allows."""

from contextlib import ExitStack
from pathlib import Path

from tests.support.programs import metadata, reads, writes
from tests.support.programs.scene import SECRET, Scene, Trees, bystander, leaked


def home_with_secrets(scene: Scene) -> dict[str, str]:
    """A home directory worth robbing; the paths of the prizes."""
    home = scene.who.home
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/id_ed25519").write_text(SECRET)
    (home / ".bash_history").write_text(SECRET)
    scene.own(home)
    return {"ssh": f"{home}/.ssh/id_ed25519", "history": f"{home}/.bash_history"}


def contents(path: Path) -> bytes | None:
    """What a file holds, None when it is not there."""
    return path.read_bytes() if path.exists() else None


def test_promise_reads(scene: Scene) -> None:
    """Nothing outside the grants can be read, on whatever way; inside, the same ways lead to the file."""
    trees = Trees({"outside": scene.place / "outside"}, {"inside": scene.area / "inside", "ro": scene.place / "ro"})
    places = trees.prepare(scene, reads.PROGRAMME.placed)
    prizes = home_with_secrets(scene)
    (scene.place / "opened-by-bystander").write_text(SECRET)
    cache = scene.who.home / ".cache/paddock"
    assert scene.run(["true"]).returncode == 0
    entry = next(path for path in cache.rglob("*") if path.is_file())
    (scene.repo.two / "secret").write_text(SECRET)
    scene.own(scene.repo.two / "secret")
    with ExitStack() as stack:
        victim = bystander(stack, scene.who, scene.own(scene.place), "robbed")
        answers = scene.tried(
            "reads",
            places
            | prizes
            | {
                "other_worktree": scene.repo.two / "secret",
                "main_checkout": scene.repo.main / "README.md",
                "main_config": scene.repo.main / ".git/config",
                "upstream": scene.repo.upstream / "library.py",
                "outside_memory": f"/proc/{victim.pid}/mem",
                "outside_descriptor": f"/proc/{victim.pid}/fd/3",
                "cache": entry,
                "pid": victim.pid,
            },
            *("--ro", scene.place / "ro", "--git", "readonly"),
        )
    scene.judge("reads", answers, seen=leaked(answers) | trees.seen())


def test_promise_writes(scene: Scene) -> None:
    """Nothing outside the writable grants changes, on whatever way; inside, the same ways change the file."""
    trees = Trees(
        {"outside": scene.place / "outside", "ro": scene.place / "ro"},
        {"inside": scene.area / "inside", "rw": scene.place / "rw"},
    )
    places = trees.prepare(scene, writes.PROGRAMME.placed)
    home = scene.who.home
    assert scene.run(["true"]).returncode == 0
    entry = next(path for path in (home / ".cache/paddock").rglob("*") if path.is_file())
    paths = {"cache": str(entry), "state": f"{home}/.local/state/paddock"}
    prizes = {name: Path(path.format(**(scene.facts() | paths))) for name, path in writes.PRIZES}
    before = {name: contents(path) for name, path in prizes.items()}
    with ExitStack() as stack:
        victim = bystander(stack, scene.who, scene.place, "spared")
        answers = scene.tried(
            "writes",
            places | paths | {"pid": victim.pid},
            *("--ro", scene.place / "ro", "--rw", scene.place / "rw"),
        )
        assert victim.facts()["oom"] == "0"
    changed = {name for name, path in prizes.items() if contents(path) != before[name]}
    scene.judge("writes", answers, seen=trees.seen() | changed)


def test_promise_metadata(scene: Scene) -> None:
    """Modes, owners, times and attributes outside the writable grants stay, or the table says that they do not."""
    trees = Trees(
        {"outside": scene.place / "outside", "ro": scene.place / "ro"},
        {"inside": scene.area / "inside", "rw": scene.place / "rw"},
        metadata=True,
    )
    places = trees.prepare(scene, metadata.PROGRAMME.placed)
    answers = scene.tried("metadata", places, "--ro", scene.place / "ro", "--rw", scene.place / "rw")
    scene.judge("metadata", answers, seen=trees.seen())
