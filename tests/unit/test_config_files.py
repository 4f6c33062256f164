"""Configuration on the disk: which files count, and which are refused."""

import os
from pathlib import Path

import pytest

from launcher.safefs import guarded_files
from launcher.session import configuration
from launcher.session.configuration import load, review, sources, write_example
from launcher.session.trust_store import Trust
from policy.config.layer import layer
from policy.errors import Refusal


class Scene:
    """A project, a home and a machine's file, all below one temporary directory."""

    def __init__(self, base: Path) -> None:
        self.root = base / "repo"
        self.home = base / "home"
        self.user = self.home / ".config/paddock/config.toml"
        self.machine = base / "etc.toml"
        self.project = self.root / ".paddock.toml"
        self.root.mkdir()
        self.user.parent.mkdir(parents=True)
        self.environ = {"HOME": str(self.home)}
        self.trust = Trust(str(self.home / ".local/state/paddock"))

    def load(self, config: Path | str | None = None, *options: str) -> dict[str, str]:
        """The network mode and its source, after loading everything."""
        given = layer({"--net": options[0]} if options else {}, cwd=str(self.root), home=str(self.home))
        settings, _ = load(
            str(self.root), str(config) if config else None, given, self.environ, system_file=str(self.machine)
        )
        return {settings.network_mode.value: str(settings.network_mode.source)}

    def refused(self, config: Path | str | None = None) -> Refusal:
        """The Refusal that loading gives."""
        with pytest.raises(Refusal) as caught:
            self.load(config)
        return caught.value


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # The machine's file must be root's: whoever runs the tests stands in for root.
    real = configuration._check_owner
    me = os.geteuid()
    monkeypatch.setattr(
        configuration,
        "_check_owner",
        lambda path, content, owners: real(path, content, tuple(me if o == 0 else o for o in owners)),
    )
    return Scene(tmp_path.resolve())


def written(path: Path, mode: str) -> Path:
    """A file that sets the network mode, private to its owner."""
    path.write_text(f"[network]\nmode = '{mode}'\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def test_each_file_outranks_the_one_before(scene: Scene, tmp_path: Path) -> None:
    """default < machine < user < project (trusted) < --config < flags, from real files."""
    assert scene.load() == {"auto": "default"}
    written(scene.machine, "open")
    assert scene.load() == {"open": f"{scene.machine} network.mode"}
    written(scene.user, "proxy")
    assert scene.load() == {"proxy": f"{scene.user} network.mode"}
    written(scene.project, "open")
    scene.trust.trust(str(scene.project), scene.project.read_bytes())
    assert scene.load() == {"open": f"{scene.project} network.mode"}
    extra = written(tmp_path / "extra.toml", "proxy")
    assert scene.load(extra) == {"proxy": f"{extra} network.mode"}
    assert scene.load(extra, "none") == {"none": "--net"}


def test_xdg_config_home_is_respected(scene: Scene, tmp_path: Path) -> None:
    """The user's file moves with it."""
    (tmp_path / "xdg/paddock").mkdir(parents=True)
    scene.environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    moved = written(tmp_path / "xdg/paddock/config.toml", "open")
    written(scene.user, "proxy")
    assert scene.load() == {"open": f"{moved} network.mode"}


def test_every_path_that_counts_is_an_input(scene: Scene, tmp_path: Path) -> None:
    """Absent ones too: a file that appears must invalidate a cached plan."""
    extra = written(tmp_path / "extra.toml", "none")
    _, paths = load(str(scene.root), str(extra), None, scene.environ)
    assert paths == ("/etc/paddock/config.toml", str(scene.user), str(scene.project), str(extra), scene.trust.path)
    assert paths == sources(str(scene.root), str(extra), scene.environ)


def test_an_untrusted_project_may_tighten_but_not_loosen(scene: Scene) -> None:
    """Until its exact content is trusted; one more byte and it is not."""
    written(scene.user, "proxy")
    written(scene.project, "none")
    assert scene.load() == {"none": f"{scene.project} network.mode"}
    written(scene.project, "open")
    refusal = scene.refused()
    assert refusal.reference == "config-untrusted"
    assert refusal.hint == f"read it, then: paddock trust {scene.project}"
    scene.trust.trust(str(scene.project), scene.project.read_bytes())
    assert scene.load() == {"open": f"{scene.project} network.mode"}
    scene.project.write_text(scene.project.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert scene.refused().reference == "config-untrusted"


def test_a_config_file_inside_the_worktree_is_no_more_trusted_than_the_project(scene: Scene, tmp_path: Path) -> None:
    """Agents write there; naming it on the command line proves nothing. Outside, the user's word counts."""
    inside = written(scene.root / "mine.toml", "open")
    assert scene.refused(inside).reference == "config-untrusted"
    link = tmp_path / "link.toml"
    link.symlink_to(inside)
    assert scene.refused(link).reference == "config-untrusted"
    scene.trust.trust(str(inside), inside.read_bytes())
    assert scene.load(inside) == {"open": f"{inside} network.mode"}
    outside = written(tmp_path / "mine.toml", "open")
    assert scene.load(outside) == {"open": f"{outside} network.mode"}
    # Nor does a link there, which may lead to what the agent has written to its private home.
    inside.unlink()
    inside.symlink_to(outside)
    assert scene.refused(inside).reference == "config-symlink"
    (scene.root / "conf").symlink_to(tmp_path)
    assert scene.refused(scene.root / "conf/mine.toml").reference == "config-untrusted"


def _linked(main: Path, root: Path, name: str) -> None:
    """A linked worktree, as git lays it out."""
    own = main / ".git/worktrees" / name
    for directory in (main / ".git/objects", main / ".git/refs", own, root):
        directory.mkdir(parents=True, exist_ok=True)
    for head in (main / ".git/HEAD", own / "HEAD"):
        head.write_text("ref: refs/heads/main\n", encoding="utf-8")
    (own / "commondir").write_text("../..\n", encoding="utf-8")
    (own / "gitdir").write_text(f"{root}/.git\n", encoding="utf-8")
    (root / ".git").write_text(f"gitdir: {own}\n", encoding="utf-8")


def test_trust_in_the_main_checkout_counts_in_its_linked_worktrees(scene: Scene) -> None:
    """For the content that is on record now, and no other; until it is trusted, the hint names the main checkout's."""
    main = scene.root.parent / "main"
    _linked(main, scene.root, "w")
    theirs = written(main / ".paddock.toml", "open")
    written(scene.project, "open")
    assert scene.refused().hint == f"read it, then: paddock trust {theirs}"
    scene.trust.trust(str(theirs), theirs.read_bytes())
    assert scene.load() == {"open": f"{scene.project} network.mode"}
    newer = theirs.read_bytes() + b"# newer\n"
    scene.trust.trust(str(theirs), newer)
    assert scene.refused().hint == f"read it, then: paddock trust {theirs}"
    scene.project.write_bytes(newer)
    assert scene.load() == {"open": f"{scene.project} network.mode"}
    scene.project.write_bytes(newer + b"\n")
    assert scene.refused().hint == f"read it, then: paddock trust {scene.project}"
    scene.project.write_bytes(newer)
    scene.trust.forget(str(theirs))
    assert scene.refused().reference == "config-untrusted"


@pytest.mark.parametrize(
    ("path", "root", "same"),
    [("/p/one/../x", "/p/one", True), ("/p/q/one/../x", "/p/q/one", False), ("/p/one/../x/../y", "/p/one", False),
     ("/p/q/one/../../x", "/p/q/one", False), ("/p/one/../../x", "/p/one", False),
     ("/p/one/a/../../x", "/p/one", False), ("/p/../x", "/p/one", False), ("/p/one/..", "/p/one", True)],
)  # fmt: skip
def test_a_place_above_is_the_same_for_checkouts_beside_each_other(path: str, root: str, same: bool) -> None:
    """Only where nothing on the way can be a link of the worktree's."""
    assert configuration._same_place(path, root, "/p/main") is same


@pytest.mark.parametrize(
    ("line", "counts"),
    [("read = ['../shared']", True), ("write = ['../main/build']", False),
     ("read = ['a/../../shared']", False), ("write = ['/srv', 'below/it']", True),
     ("write = ['~/data']", True), ("write = ['MAIN/build']", False), ("write = ['/srv']\ndeny = ['a/../../x']", False),
     ("write = ['/srv']\ndeny = ['secrets']", True)],
)  # fmt: skip
def test_trust_in_the_main_checkout_does_not_count_for_a_path_that_means_another_place(
    scene: Scene, line: str, counts: bool
) -> None:
    """Whoever read it there read about that place."""
    main = scene.root.parent / "main"
    _linked(main, scene.root, "w")
    content = f"[filesystem]\n{line.replace('MAIN', str(main))}\n".encode()
    scene.project.write_bytes(content)
    scene.trust.trust(str(main / ".paddock.toml"), content)
    if counts:
        scene.load()
        return
    refusal = scene.refused()
    assert (refusal.reference, refusal.hint) == ("config-untrusted", f"read it, then: paddock trust {scene.project}")
    assert "is another place than in the main checkout, so trust there is not enough" in refusal.context
    scene.trust.trust(str(scene.project), content)
    scene.load()


@pytest.mark.parametrize(
    "attack", ["planted pointer", "planted repository", "another's worktree", "submodule", "written repository"]
)
def test_trust_is_only_found_through_what_no_agent_wrote(scene: Scene, tmp_path: Path, attack: str) -> None:
    """A pointer or a repository in a tree that agents write leads to nobody's trust."""
    main, root = tmp_path.resolve() / "main", scene.root
    _linked(main, root if attack == "written repository" else tmp_path / "w", "w")
    pointer = root / ".git"
    if attack == "planted pointer":  # to the git directory of a worktree that is elsewhere
        pointer.write_text(f"gitdir: {main}/.git/worktrees/w\n", encoding="utf-8")
    elif attack == "planted repository":  # beside the worktree, with a commondir that is the user's repository
        _linked(tmp_path / "fake", root, "w")
        (tmp_path / "fake/.git/worktrees/w/commondir").write_text(f"{main}/.git\n", encoding="utf-8")
    elif attack == "another's worktree":
        _linked(tmp_path / "other", root, "w")
    elif attack == "submodule":
        module = main / ".git/modules/.git"
        for directory in (module / "objects", module / "refs"):
            directory.mkdir(parents=True)
        (module / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
        (module / "config").write_text(f"[core]\nworktree = {root}\n", encoding="utf-8")
        pointer.write_text(f"gitdir: {module}\n", encoding="utf-8")
    else:
        record = Path(scene.trust.path).with_name("written")
        Path(scene.trust.path).parent.mkdir(mode=0o700, parents=True)
        record.write_bytes(f"*{main}\0".encode())
        record.chmod(0o600)
    written(scene.project, "open")
    for place in (main, main / ".git/modules"):
        scene.trust.trust(str(place / ".paddock.toml"), scene.project.read_bytes())
    assert scene.refused().reference == "config-untrusted"


def test_a_project_file_that_is_a_link_is_refused(scene: Scene, tmp_path: Path) -> None:
    """Dangling or not: it could lead to a file that is trusted for another reason, or leak one."""
    target = written(tmp_path / "t.toml", "none")
    scene.project.symlink_to(target)
    assert scene.refused().reference == "config-symlink"
    target.unlink()
    assert scene.refused().reference == "config-symlink"


def test_a_user_file_may_be_a_link(scene: Scene, tmp_path: Path) -> None:
    """Dotfile managers make them; the target's owner and mode count."""
    target = written(tmp_path / "dotfiles.toml", "open")
    scene.user.symlink_to(target)
    assert scene.load() == {"open": f"{scene.user} network.mode"}
    target.chmod(0o666)
    assert scene.refused().reference == "config-insecure"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(scene: Scene, tmp_path: Path, mode: int) -> None:
    """Machine, user and --config alike, with the command that mends it."""
    for path, config in ((scene.machine, None), (scene.user, None), (tmp_path / "c.toml", tmp_path / "c.toml")):
        written(path, "none").chmod(mode)
        refusal = scene.refused(config)
        assert (refusal.reference, refusal.hint) == ("config-insecure", f"chmod go-w {path}")
        path.chmod(0o644)
        scene.load(config)


def test_a_file_of_somebody_else_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's nor root's."""
    written(scene.user, "none")
    scene.load()
    real = guarded_files.read

    def foreign(path: str, *, follow: bool, limit: int = 1 << 18) -> guarded_files.Content | None:
        content = real(path, follow=follow, limit=limit)
        return content and content._replace(owner=os.geteuid() + 1)

    monkeypatch.setattr(guarded_files, "read", foreign)
    refusal = scene.refused()
    assert refusal.reference == "config-insecure"
    assert "does not belong to you or root" in refusal.message


def test_a_fifo_does_not_hang_the_launcher(scene: Scene) -> None:
    """Nobody will ever write into it."""
    os.mkfifo(scene.project)
    assert scene.refused().reference == "config-not-a-file"


@pytest.mark.parametrize("make", ["dir", "device"])
def test_what_is_no_regular_file_is_refused(scene: Scene, make: str) -> None:
    """A directory, or a file without end."""
    if make == "dir":
        scene.project.mkdir()
        assert scene.refused().reference == "config-not-a-file"
    else:
        assert scene.refused("/dev/zero").reference == "config-not-a-file"


def test_a_file_has_a_size_limit(scene: Scene) -> None:
    """256 KiB pass, one byte more does not."""
    scene.project.write_bytes(b"#" * guarded_files.CONFIG_LIMIT)
    scene.load()
    scene.project.write_bytes(b"#" * (guarded_files.CONFIG_LIMIT + 1))
    assert scene.refused().reference == "config-too-large"


def test_bytes_that_are_not_utf8_are_refused(scene: Scene) -> None:
    """With the file's name."""
    scene.project.write_bytes(b"\xff\xfe")
    refusal = scene.refused()
    assert refusal.reference == "config-encoding"
    assert str(scene.project) in refusal.message


def test_a_missing_config_file_is_refused(scene: Scene, tmp_path: Path) -> None:
    """It was named, so it must be there; the others may be missing."""
    assert scene.refused(tmp_path / "nope.toml").reference == "config-missing"
    assert scene.refused(scene.root / "nope.toml").reference == "config-missing"
    scene.load()


def test_a_file_that_cannot_be_read_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing over it would pass over its deny rules. (Root may read anything, so the kernel's answer is played.)"""
    real = os.open

    def closed(path: str, *args: int, **kwargs: int) -> int:
        if path == str(scene.project):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", closed)
    refusal = scene.refused()
    assert (refusal.reference, refusal.context) == ("config-unreadable", "Permission denied")


def test_a_review_says_what_a_file_loosens(scene: Scene) -> None:
    """Judged against the layers below it, with the content that would be recorded."""
    written(scene.project, "open")
    found = review(str(scene.project), str(scene.root), scene.environ, system_file=str(scene.machine))
    assert found.loosens == ("network.mode: open instead of auto",)
    assert (found.path, found.content) == (str(scene.project), scene.project.read_bytes())
    written(scene.user, "open")
    assert review(str(scene.project), str(scene.root), scene.environ, system_file=str(scene.machine)).loosens == ()


def test_the_example_is_written_once(scene: Scene) -> None:
    """An existing file is left alone unless forced, and nothing else is left behind."""
    assert write_example(str(scene.root), force=False) == str(scene.project)
    example = scene.project.read_bytes()
    scene.project.write_text("# mine\n", encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        write_example(str(scene.root), force=False)
    assert caught.value.reference == "init-exists"
    assert scene.project.read_text(encoding="utf-8") == "# mine\n"
    write_example(str(scene.root), force=True)
    assert scene.project.read_bytes() == example
    assert os.listdir(scene.root) == [".paddock.toml"]


def test_the_example_never_follows_a_link(scene: Scene, tmp_path: Path) -> None:
    """A planted link is left alone, or replaced itself; its target never changes."""
    target = tmp_path / "victim"
    scene.project.symlink_to(target)
    with pytest.raises(Refusal):
        write_example(str(scene.root), force=False)
    assert not target.exists()
    target.write_text("precious", encoding="utf-8")
    write_example(str(scene.root), force=True)
    assert target.read_text(encoding="utf-8") == "precious"
    assert not scene.project.is_symlink()


def test_an_example_that_cannot_be_written_is_refused(scene: Scene) -> None:
    """With the reason, also where a directory has its name."""
    scene.project.mkdir()
    with pytest.raises(Refusal) as caught:
        write_example(str(scene.root), force=True)
    assert caught.value.reference == "init-failed"
    with pytest.raises(Refusal) as caught:
        write_example(str(scene.root / "gone"), force=False)
    assert caught.value.context == "No such file or directory"
