"""Promises about exceptions inside what is granted: --deny, submodules, hand-off files, credentials of toolchains."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from policy import promises
from tests.support.programs import handoff, reads, writes
from tests.support.programs.harness import ATTACK, TWIN, Given
from tests.support.programs.scene import SECRET, Scene, Trees, leaked, snapshot

# Acts of `writes` that a read-only root directory of the worktree (--freeze-root) or its border concern.
DENIED = {"placed_only": True}


def denied_trees(scene: Scene, names: Iterable[str]) -> tuple[Trees, Given]:
    """Trees of which one directory is denied, one stays allowed."""
    ro, rw = scene.place / "ro", scene.place / "rw"
    trees = Trees(
        {"ro": ro / "exception", "rw": rw / "exception", "deep": ro / "a/b/exception"},
        {"ro": ro / "beside", "rw": rw / "beside", "deep": ro / "a/b/beside"},
    )
    for tree in (ro, rw, ro / "a/b"):
        tree.mkdir(parents=True, exist_ok=True)
    places = trees.prepare(scene, names)
    scene.own(scene.place)
    return trees, places


def options(scene: Scene) -> list[str | Path]:
    """--ro and --rw with their exceptions."""
    ro, rw = scene.place / "ro", scene.place / "rw"
    words: list[str | Path] = ["--ro", ro, "--rw", rw]
    for path in (ro / "exception", rw / "exception", ro / "a/b/exception"):
        words += ["--deny", path]
    return words


@pytest.mark.parametrize("freeze", ["mounts", "freeze-root"])
def test_promise_deny_inside_allow(scene: Scene, freeze: str) -> None:
    """What --deny names inside a granted tree can neither be read nor changed; its neighbours can."""
    reading, places = denied_trees(scene, reads.PROGRAMME.placed)
    words = [*options(scene), *(["--freeze-root"] if freeze == "freeze-root" else [])]
    if not promises.has_mounts(scene.backend) and freeze == "mounts":
        refused = scene.run(["true"], *words)
        assert refused.returncode == 125
        assert "exception-in-writable-tree" in refused.stderr
        return
    answers = scene.tried("reads", places | DENIED, *words)
    scene.judge("deny-inside-allow", answers, seen=leaked(answers) | reading.seen())


def test_promise_deny_inside_allow_for_writes(scene: Scene) -> None:
    """The same holds for every way of writing."""
    trees, places = denied_trees(scene, writes.PROGRAMME.placed)
    del places[TWIN]["ro"], places[TWIN]["deep"]  # read-only ones are no twin here
    answers = scene.tried("writes", places | DENIED, *options(scene), "--freeze-root")
    scene.judge("deny-inside-allow", answers, seen=trees.seen())


def test_promise_deny_inside_allow_in_the_worktree(scene: Scene) -> None:
    """An exception inside the worktree itself holds, and its neighbour is open."""
    area = scene.area
    trees = Trees({"inside": area / "denied"}, {"inside": area / "allowed"})
    places = trees.prepare(scene, reads.PROGRAMME.placed)
    answers = scene.tried(
        "reads", places | DENIED | {"area": str(area / "allowed")}, "--deny", area / "denied", "--freeze-root"
    )
    scene.judge("deny-inside-allow", answers, seen=leaked(answers) | trees.seen())


def second_submodule(scene: Scene) -> dict[str, Path]:
    """Adds the submodule `other` to the worktree; where its checkout and its git directory are."""
    script = """
    cp -r "$1" "$2/upstream-other"
    git -C "$2/upstream-other" commit -q --allow-empty -m "$4"
    cd "$3"
    git -c protocol.file.allow=always submodule --quiet add "$2/upstream-other" other
    """
    ended = scene.who.run(["sh", "-eu", "-c", script, "-", scene.repo.upstream, scene.place, scene.repo.one, SECRET])
    assert ended.returncode == 0, ended.stderr
    (pointer,) = (scene.repo.one / "other/.git").read_text().splitlines()
    git_dir = (scene.repo.one / "other" / pointer.removeprefix("gitdir: ")).resolve()
    (scene.repo.one / "other/secret").write_text(SECRET)
    (git_dir / "secret").write_text(SECRET)
    scene.own(scene.repo.one / "other/secret")
    scene.own(git_dir / "secret")
    return {"checkout": scene.repo.one / "other", "git": git_dir}


def test_promise_deny_inside_allow_for_submodules(scene: Scene) -> None:
    """With --submodule library the submodule `other` and its objects are closed, and library is open."""
    other = second_submodule(scene)
    before = {name: snapshot(path) for name, path in other.items()}
    program = """
    for path in "$@"; do
        cat "$path/secret" && echo "read $path"
        ls "$path" && echo "listed $path"
        echo x 2>/dev/null >"$path/planted" && echo "wrote $path"
        git --git-dir="$path" log; git --git-dir="$path/.git" log
    done 2>/dev/null
    cat library/library.py
    git -C library log --oneline
    echo x >library/mine && echo "wrote library"
    """
    words: list[str | Path] = ["sh", "-c", program, "-", other["checkout"], other["git"]]
    denied = scene.run(words, "--submodule", "library", "--freeze-root", "--git", "readonly", cwd=scene.repo.one)
    assert denied.returncode == 0, denied.stderr
    assert SECRET not in denied.stdout
    for word in ("read", "wrote"):
        assert f"{word} {other['checkout']}" not in denied.stdout
        assert f"{word} {other['git']}" not in denied.stdout
    assert {name: snapshot(path) for name, path in other.items()} == before
    assert "library = True" in denied.stdout
    assert "upstream: First." in denied.stdout
    assert "wrote library" in denied.stdout
    allowed = scene.run(words, "--git", "readonly", cwd=scene.repo.one)
    assert allowed.stdout.count(SECRET) == 4, "two files, two logs"
    assert f"wrote {other['checkout']}" in allowed.stdout


PROTECTED = (".envrc", ".mcp.json", ".vscode/tasks.json", ".claude/settings.json", ".claude/hooks/start.sh", ".npmrc")


def test_promise_handoff(scene: Scene) -> None:
    """Existing hand-off files keep their place and content, whatever is done to them or to the directories above."""
    root = scene.repo.one
    for name in (*PROTECTED, ".vscode/other.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"the user's own {name}")
        scene.own(root / name.partition("/")[0])
    scene.own(root)
    free = {f"free-{act}": scene.area / f"free-{act}/directory/tasks.json" for act in handoff.PROGRAMME.placed}
    for path in free.values():
        path.parent.mkdir(parents=True)
        path.write_text("free")
        scene.own(path.parent.parent)
    before = {name: (root / name).stat() for name in PROTECTED}
    pointer = (root / ".git").read_text()
    attack = {name: str(root / name) for name in PROTECTED}
    if promises.has_mounts(scene.backend):
        attack["pointer"] = str(root / ".git")
    # A twin per act: each ruins what it is given.
    leave = [f"{act}@{place}" for act in handoff.PROGRAMME.placed for place in free if place != f"free-{act}"]
    answers = scene.tried("handoff", {ATTACK: attack, TWIN: free, "leave": leave})
    seen = {
        f"seen@{name}"
        for name in PROTECTED
        if not (root / name).is_file()
        or (root / name).is_symlink()
        or (root / name).read_text() != f"the user's own {name}"
        or (root / name).stat().st_ino != before[name].st_ino
        or (root / name).stat().st_mode != before[name].st_mode
    }
    assert not promises.has_mounts(scene.backend) or (root / ".git").read_text() == pointer
    scene.judge("handoff", answers, seen=seen)


def tool_of_the_home(scene: Scene) -> dict[str, Path]:
    """A rustup-like toolchain and an nvm-like one below the home directory, with credentials beside them."""
    home = scene.who.home
    tools = {
        "cargo": home / ".cargo/bin/paddock-tool",
        "node": home / ".nvm/versions/node/v20.0.0/bin/paddock-node",
    }
    for name, path in tools.items():
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho ran {name}\n")
        path.chmod(0o755)
    (home / ".nvm/versions/node/v20.0.0/lib").mkdir()
    for credentials in (".cargo/credentials.toml", ".npmrc", ".netrc", ".config/gh/hosts.yml", ".docker/config.json"):
        path = home / credentials
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
    scene.own(home)
    return tools


def test_promise_toolchains(scene: Scene) -> None:
    """Tools below the home directory run; the credentials beside them stay unread and the tools unchanged."""
    tools = tool_of_the_home(scene)
    home = scene.who.home
    path = ":".join([*(str(tool.parent) for tool in tools.values()), scene.who.path])
    before = {name: tool.read_bytes() for name, tool in tools.items()}
    program = """
    paddock-tool; paddock-node
    for path in "$@"; do cat "$path" 2>/dev/null; done
    for name in paddock-tool paddock-node; do
        tool=$(command -v $name)
        echo evil 2>/dev/null >"$tool"; rm -f "$tool" 2>/dev/null; echo x 2>/dev/null >"${tool%/*}/planted"
    done
    find "$HOME_OUTSIDE" -type f -exec cat {} + 2>/dev/null
    true
    """
    credentials = [home / name for name in (".cargo/credentials.toml", ".npmrc", ".netrc", ".config/gh/hosts.yml")]
    ended = scene.run(["sh", "-c", program, "-", *credentials], "--env", f"HOME_OUTSIDE={home}", env={"PATH": path})
    assert ended.returncode == 0, ended.stderr
    assert "ran cargo" in ended.stdout, ended.stderr
    assert "ran node" in ended.stdout, ended.stderr
    assert promises.verdict("toolchains", scene.backend)[0] == promises.HELD
    assert SECRET not in ended.stdout
    assert {name: tool.read_bytes() for name, tool in tools.items()} == before
    assert not list(home.rglob("planted"))
