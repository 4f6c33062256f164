"""An unpacked image as the jail's root (`--root`): what the command sees of it, of the machine, and what is left."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.test_sandbox import run
from tests.support.features import need
from tests.support.identity import AS_A_USER
from tests.support.install import base_python
from tests.support.paddock import Paddock, Session
from tests.support.proxied import World

_PROGRAMS = (
    "bash", "cat", "chmod", "dirname", "env", "find", "git", "gzip", "head", "id", "ln", "ls", "mkdir", "mkfifo",
    "mktemp", "mv", "readlink", "rm", "setsid", "sleep", "stat", "tar", "touch", "wc",
)  # fmt: skip
_MARK = "an image, and not the machine"


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few of this machine's programmes with what they load, in the shape of an unpacked image."""
    top = tmp_path_factory.mktemp("pattern")
    for path in ("usr/bin", "usr/lib", "etc", "home", "root", "var/tmp", "tmp"):
        (top / path).mkdir(parents=True)
    (top / "bin").symlink_to("usr/bin")
    for name in _PROGRAMS:
        shutil.copy(f"/usr/bin/{name}", top / "usr/bin")
    (top / "usr/bin/sh").symlink_to("bash")
    listed = subprocess.run(["/usr/bin/ldd", *(top / "usr/bin").iterdir()], capture_output=True, text=True, check=True)
    for library in {word for word in listed.stdout.split() if word.startswith("/") and not word.endswith(":")}:
        (top / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, top / library[1:])
    (top / "etc/mark").write_text(_MARK)
    return top


@pytest.fixture
def image(pattern: Path, public_dir: Path) -> Path:
    """A copy of it (hard links, but for directories) for one test, which root owns where root runs the suite."""
    need("userns")
    top = public_dir / "image"
    shutil.copytree(pattern, top, symlinks=True, copy_function=os.link)
    top.chmod(0o755)
    return top


def shell(paddock: Paddock, image: Path, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """A script in a jail with this root."""
    return paddock.run("--root", str(image), *options, "--", "sh", "-c", script)


def seen(top: Path) -> dict[str, object]:
    """All of a tree that a change would show in."""
    found = ((path, path.lstat()) for path in (top, *top.rglob("*")))
    return {
        str(path): (entry.st_mode, entry.st_uid, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns)
        for path, entry in found
    }


def test_the_command_sees_the_image_and_nothing_of_the_machine(paddock: Paddock, image: Path) -> None:
    """Its programmes and files are the image's; what is written in it is gone with the session, commits are not."""
    (image / "usr/local").mkdir()
    for path in (image / "usr", image / "usr/local"):
        os.chown(path, paddock.who.uid, paddock.who.gid)
    before = seen(image)
    closed = ("/etc/shadow", "/etc/hostname", "/usr/share", "/usr/bin/python3", paddock.installed.python,
              paddock.main / ".git/config", paddock.who.home / ".profile", paddock.state / "sessions")  # fmt: skip
    (paddock.who.home / ".profile").write_text("secret")
    script = f"""
        for each in {" ".join(map(str, closed))}; do ! ls -d $each 2>/dev/null || exit 3; done
        cat /etc/mark file && echo own >/usr/local/new && echo own >/new && rm -r /usr/local && ! ls -d /usr/local &&
        echo more >>file && git add file && git commit -qm 'From the image.' && touch "$HOME/kept" &&
        echo x >/dev/null && ls /new && ! ls /tmp/t && echo x >/tmp/t && readlink /proc/self/exe
    """
    for turn in ("content\n", "other\n"):
        (paddock.worktree / "file").write_text(turn)
        said = shell(paddock, image, script)
        assert said.stdout == f"{_MARK}{turn}/new\n/usr/bin/readlink\n", said
        assert (paddock.worktree / "file").read_text() == f"{turn}more\n"
        log = paddock.who.run(["git", "log", "-1", "--format=%s"], cwd=paddock.worktree).stdout
        assert log == "From the image.\n"
        assert seen(image) == before


@AS_A_USER
def test_nothing_leads_out_of_the_image(paddock: Paddock, image: Path) -> None:
    """Not through processes of Paddock's own inside, descriptors, mounts, or the layers that it is made of."""
    script = """
        for each in /proc/[0-9]*; do
            ls $each/root/home/ $each/cwd/ $each/exe $each/fd/ $each/map_files/ 2>/dev/null
        done >/tmp/found
        ls -d /proc/places /proc/image-* /proc/root 2>/dev/null
        ls /proc/self/fd; echo own >/etc/own; (cd /..; cat etc/mark); echo
        umount -l / 2>/dev/null; mount -t proc proc /mnt 2>/dev/null; echo x >/proc/sys/kernel/hostname
        while read -r line; do case $line in *lib/python*|*/launcher*) echo "$line";; esac; done </tmp/found
        cat /proc/1/maps /proc/1/environ 2>/dev/null; echo end
    """
    with Session(paddock, options=("--root", str(image)), command=("sh", "-c", "echo ready; exec cat")) as session:
        for said in (
            shell(paddock, image, script),
            paddock.call("exec", session.name, "--", "sh", "-c", script),
        ):
            assert said.stdout == f"0\n1\n2\n3\n{_MARK}\nend\n", said


def test_a_hostile_image_chooses_nothing(paddock: Paddock, image: Path) -> None:
    """Links, files and devices where mounts go, code where Paddock's lies, set-id bits, attributes of overlayfs."""
    victim = paddock.place / "victim"
    victim.mkdir()
    paddock.who.give(victim)
    for path in ("tmp", "var/tmp", "home", "root"):
        (image / path).rmdir()
    (image / "tmp").symlink_to(victim)
    (image / "var/tmp").symlink_to("../etc")
    (image / "home").symlink_to("..")
    (image / "root").write_text("a file")
    (image / "dev").symlink_to(victim)
    (image / "proc").symlink_to("/etc")
    (image / "sys").write_text("a file")
    (image / "etc/resolv.conf").symlink_to(victim / "resolv.conf")
    os.mkfifo(image / "etc/hosts")
    for place in (paddock.worktree, paddock.state):
        top = image / place.parts[1]
        if not top.is_symlink() and not top.exists():
            top.symlink_to(victim)
    standard = image / "usr/lib" / base_python().resolve().name
    for name in sys.stdlib_module_names:
        standard.mkdir(exist_ok=True)
        (standard / f"{name}.py").write_text("print('PLANTED')")
    (image / "usr/bin/setid").write_bytes(Path("/usr/bin/id").read_bytes())
    (image / "usr/bin/setid").chmod(0o6755)
    devices = os.geteuid() == 0
    if devices:
        os.mknod(image / "etc/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.setxattr(image / "etc", "user.overlay.redirect", b"/../../../../etc")
    os.setxattr(image / "usr/lib", "user.overlay.opaque", b"y")
    before = seen(image)
    script = """
        cat /etc/mark /etc/resolv.conf file; echo x >/tmp/mine; echo x >/var/tmp/mine
        ls -d /tmp/mine /proc/self/stat /dev/null
        /usr/bin/setid -u; echo x >/etc/null
    """
    said = shell(paddock, image, script, "--allow-domain", "good.example")
    assert "PLANTED" not in said.stdout + said.stderr
    assert list(victim.iterdir()) == []
    assert seen(image) == before
    assert "nameserver 127.0.0.53\n" in said.stdout, said
    assert f"/dev/null\n/proc/self/stat\n/tmp/mine\n{paddock.who.uid}\n" in said.stdout, said
    assert "/etc/null: Permission denied" in said.stderr or not devices, said


def test_what_cannot_be_run_in_an_image(user_paddock: Paddock, image: Path) -> None:
    """Each with one clear error; the rest of what is refused is in tests/unit/test_image.py."""
    paddock = user_paddock
    need("bubblewrap")
    elsewhere = paddock.refused("run", "--root", image, "--backend", "bubblewrap", "--", "sh")
    assert elsewhere.reference == "root-unavailable"
    (paddock.worktree / "link").symlink_to(image)
    assert paddock.refused("run", "--root", "link", "--", "sh").reference == "grant-leaves-worktree"
    (image / "usr/bin/other").write_bytes(b"\x7fELF" + b"\2\1\1" + bytes(9) + b"\2\0\xb7\0" + bytes(44))
    (image / "usr/bin/other").chmod(0o755)
    assert "another architecture" in paddock.refused("run", "--root", image, "--", "other", status=126).text
    assert paddock.refused("run", "--root", image, "--", "no-such", status=127).reference == "command-not-found"
    (paddock.worktree / "script").write_text('#!/bin/sh\necho "$0"\n')
    (paddock.worktree / "script").chmod(0o755)
    assert paddock.run("--root", str(image), "--", "./script").stdout == f"{paddock.worktree}/script\n"
    why = paddock.call("why", "/usr/bin/perl", "--root", str(image), "--", "sh").stdout
    assert f"what is there in {image}, as a copy" in why
    (image / "usr/bin/git").unlink()
    assert "the image has no git" in paddock.run("--root", str(image), "--", "sh", "-c", ":").stderr


@AS_A_USER
def test_a_sandbox_with_an_image(paddock: Paddock, image: Path) -> None:
    """Many commands see one copy of it, `reset` gives a new one, and `diff` knows the worktree's."""
    before = seen(image)
    found = run(
        paddock,
        f"""
        with Sandbox(".", cow=True, root={str(image)!r}) as box:
            box.exec("echo one >/own; echo one >>file")
            found["one"] = [box.exec("cat /own; cat /etc/mark").text, "+one" in box.diff().decode()]
            box.write("/a/b", box.read("/own"))
            box.reset()
            found["two"] = [box.exec("ls /own /a").status, box.diff().decode(), refused(box.exec, ["python3"])]
        """,
    )
    assert found == {"one": [f"one\n{_MARK}", True], "two": [2, "", "command-not-found"]}
    assert seen(image) == before


def test_a_limit_of_the_disk_counts_what_is_written_in_an_image(user_paddock: Paddock, image: Path) -> None:
    """As it counts the temporary directory."""
    script = "head -c 300M /dev/zero >/full; for n in $(seq 100); do sleep 0.1; done; echo still"
    said = shell(user_paddock, image, script, "--limit", "disk=50M")
    assert "still" not in said.stdout
    assert "disk" in said.stderr


def test_hosts_are_reached_by_name(world: World, user_paddock: Paddock, image: Path) -> None:
    """Those that are allowed; whatever the image says of hosts and resolvers."""
    (image / "etc/hosts").write_text("192.0.2.1 good.example\n")
    script = """
        exec 3<>/dev/tcp/good.example/80 &&
        printf 'GET / HTTP/1.0\\r\\nHost: good.example\\r\\n\\r\\n' >&3 && head -1 <&3
        exec 4<>/dev/tcp/other.example/80
    """
    words = user_paddock.words("run", "--root", image, "--allow-domain", "good.example:80", "--", "bash", "-c", script)
    said = world.run(user_paddock.who, words, cwd=user_paddock.worktree)
    assert said.stdout.startswith("HTTP/1"), said
    assert "other.example" in said.stderr
