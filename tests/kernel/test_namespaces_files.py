"""Files in the jail's view, attacked from inside: each denial beside what is allowed.

Only the namespaces are in force here, and no capability; Landlock and seccomp would hold some of it as well.
"""

import os

from tests.support.jail import Jail, filled

# Metadata and writes

CHANGES = """
def changes(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [
            attempt(os.chmod, path, 0o600),
            attempt(os.fchmod, descriptor, 0o600),
            attempt(os.chmod, f"/proc/self/fd/{descriptor}", 0o600),
            attempt(os.utime, path),
            attempt(os.chown, path, os.getuid(), os.getgid()),
            attempt(os.lchown, path, os.getuid(), os.getgid()),
            attempt(os.truncate, path, 0),
            attempt(os.rename, path, path + "2") if os.path.dirname(path) else None,
        ]
    finally:
        os.close(descriptor)
"""


def test_metadata_of_what_is_only_read_cannot_be_changed(jail: Jail) -> None:
    """Not even by its owner: by path, by descriptor, through a symbolic link; in the worktree all of it works."""
    data = filled(jail, "data")
    own = filled(jail, "own", inside=True)
    (jail.worktree / "link").symlink_to(data / "file")
    code = f"""{CHANGES}
os.symlink(words[0] + "/file", "through")
result = [changes(words[0] + "/file"), attempt(os.chmod, "through", 0o600), attempt(os.utime, "through"),
          attempt(os.setxattr, words[0] + "/file", "user.x", b"1"), attempt(os.link, words[0] + "/file", "hard"),
          changes(words[1] + "/file")]
"""
    before = (data / "file").stat()
    refused, linked, touched, attribute, hard, allowed = jail.attack(
        code, data, own, grants=[[data, "r", "test"]]
    )  # fmt: skip
    assert refused == ["EROFS"] * 8
    assert (linked, touched, attribute) == ("EROFS", "EROFS", "EROFS")
    assert hard == "EXDEV"
    assert allowed == ["ok"] * 8
    after = (data / "file").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_a_socket_or_fifo_in_a_read_only_tree_keeps_its_metadata(jail: Jail) -> None:
    """Special files are no way around."""
    data = filled(jail, "data")
    os.mkfifo(data / "fifo")
    jail.who.give(data)
    code = "result = [attempt(os.chmod, words[0], 0o777), attempt(os.utime, words[0])]"
    assert jail.attack(code, data / "fifo", grants=[[data, "r", "test"]]) == ["EROFS", "EROFS"]


# Hand-off files


def test_a_protected_file_stays_what_it_is(jail: Jail) -> None:
    """It cannot be written, removed, replaced or moved; files beside it can."""
    directory = filled(jail, "a", inside=True)
    (directory / "other").write_text("x")
    jail.who.give(directory)
    code = """
path = words[0] + "/file"
result = [
    attempt(open, path, "a"), attempt(os.unlink, path), attempt(os.rename, path, path + "2"),
    attempt(os.rename, words[0] + "/other", path), attempt(os.chmod, path, 0o777), attempt(os.link, path, "l"),
    open(path).read(), attempt(os.rename, words[0] + "/other", words[0] + "/moved"),
    attempt(open, words[0] + "/new", "w"),
]
"""
    protected = [[directory / "file", "protect"]]
    assert jail.attack(code, directory, handoff=protected) == [
        "EROFS",
        "EBUSY",
        "EBUSY",
        "EBUSY",
        "EROFS",
        "EXDEV",
        "content\n",
        "ok",
        "ok",
    ]
    assert (directory / "file").read_text() == "content\n"
    assert (directory / "moved").exists()


def test_the_parents_of_a_protected_file_cannot_be_renamed(jail: Jail) -> None:
    """Or a new directory of that name would hold a new file; directories beside them can."""
    filled(jail, "a/b/c", inside=True)
    filled(jail, "free", inside=True)
    jail.who.give(jail.worktree)
    code = "result = [attempt(os.rename, p, p + '-moved') for p in ('a', 'a/b', 'a/b/c', 'free')]"
    protected = [[jail.worktree / "a/b/c/file", "protect"]]
    assert jail.attack(code, handoff=protected) == ["EBUSY", "EBUSY", "EBUSY", "ok"]
    assert jail.attack("result = attempt(os.rename, 'a', 'b')") == "ok"


def test_pinned_directories_are_worked_in_as_before(jail: Jail) -> None:
    """New files, new directories, renames within one directory."""
    directory = filled(jail, "a", inside=True)
    code = """
os.mkdir("a/new"); open("a/new/f", "w").write("x"); os.rename("a/new", "a/old"); os.unlink("a/old/f"); os.rmdir("a/old")
result = os.listdir("a")
"""
    assert jail.attack(code, handoff=[[directory / "file", "protect"]]) == ["file"]


def test_a_protected_link_stays_what_it_is(jail: Jail) -> None:
    """A hand-off file may be a symbolic link: then the link itself cannot be replaced."""
    link = jail.worktree / "link"
    link.symlink_to("target")
    (jail.worktree / "target").write_text("x")
    jail.who.give(jail.worktree)
    code = "result = [attempt(os.unlink, 'link'), os.readlink('link'), open('link').read()]"
    assert jail.attack(code, handoff=[[link, "protect"]]) == ["EBUSY", "target", "x"]


def test_a_read_only_directory_in_the_worktree(jail: Jail) -> None:
    """As `.git` with --git readonly: nothing in it changes, and it stays where it is."""
    directory = filled(jail, ".git", inside=True)
    code = """
result = [attempt(open, ".git/file", "a"), attempt(os.mkdir, ".git/hooks"), attempt(os.rename, ".git", "x"),
          attempt(os.chmod, ".git", 0o777), open(".git/file").read(), attempt(os.mkdir, "src")]
"""
    expected = ["EROFS", "EROFS", "EBUSY", "EROFS", "content\n", "ok"]
    assert jail.attack(code, read_only=[[directory, "test"]]) == expected


# What is denied


def test_denied_paths_are_hidden(jail: Jail) -> None:
    """Their names stay, what they hold does not; the rest of the tree is there."""
    secret = filled(jail, "secret", inside=True)
    (jail.worktree / "key").write_text("key")
    (jail.worktree / "open").write_text("open")
    jail.who.give(jail.worktree)
    code = """
import shutil
result = [attempt(os.listdir, "secret"), attempt(open, "secret/file"), attempt(open, "key"), open("open").read(),
          attempt(os.rmdir, "secret"), attempt(os.rename, "secret", "x"), attempt(os.unlink, "key"),
          attempt(os.chmod, "key", 0o777), attempt(os.chmod, "secret", 0o777), attempt(shutil.rmtree, "secret"),
          attempt(os.mkdir, "secret/x")]
"""
    found = jail.attack(code, denied=[[secret, "test"], [jail.worktree / "key", "test"]])
    assert found[:4] == ["EACCES", "EACCES", "EACCES", "open"]
    assert found[4:7] == ["EBUSY"] * 3
    assert found[7:9] == ["EROFS"] * 2
    assert found[9:] == ["EACCES", "EACCES"]
    assert (secret / "file").read_text() == "content\n"
    assert (jail.worktree / "key").read_text() == "key"


def test_an_exempt_grant_shows_through_the_mask(jail: Jail) -> None:
    """The private home lies in the state directory, which is denied."""
    state = filled(jail, "tree/state")
    home = filled(jail, "tree/state/home")
    code = """
result = [os.listdir(words[0]), attempt(open, words[0] + "/file"), open(words[1] + "/file").read(),
          attempt(open, words[1] + "/new", "w"), attempt(os.mkdir, words[0] + "/new")]
"""
    found = jail.attack(
        code,
        state,
        home,
        grants=[[jail.outside / "tree", "r", "test"], [home, "rw", "test"]],
        denied=[[state, "test"]],
        exempt=[home],
    )
    assert found == [["home"], "ENOENT", "content\n", "ok", "EROFS"]


def test_a_nested_user_namespace_uncovers_nothing(jail: Jail) -> None:
    """Even where nothing forbids it to mount (seccomp does, in the whole jail), what was covered stays covered."""
    secret = filled(jail, "secret", inside=True)
    code = """
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
uid, gid = os.getuid(), os.getgid()
call("unshare", 0x10000000 | 0x00020000)
RDONLY, REMOUNT, BIND = 1, 32, 4096
secret = words[0].encode()
result = [
    attempt(call, "mount", b"none", b"/var/tmp", b"tmpfs", 0, None),
    attempt(call, "umount2", secret, 0),
    attempt(call, "umount2", secret, 2),
    attempt(call, "mount", None, b"/usr", None, REMOUNT | BIND, None),
    attempt(call, "mount", words[1].encode(), b"/dev/shm", None, BIND, None),
    attempt(open, words[0] + "/file"),
]
"""
    allowed, *refused, read = jail.attack(code, secret, jail.worktree, denied=[[secret, "test"]])
    assert allowed == "ok"  # the attack is a real one
    assert refused == ["EINVAL", "EINVAL", "EPERM", "EINVAL"]
    assert read == "EACCES"
