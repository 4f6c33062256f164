"""Building the view: the operations of `layout`, carried out in the new user and mount namespaces, before Landlock.

Another jail in the same worktree may exchange directories for symbolic links while this one is built. So sources and
mount points on the user's disk are opened without following any link (openat2(2), RESOLVE_NO_SYMLINKS) and mounted by
descriptor (open_tree(2), move_mount(2)); what is made, is made on the jail's own tmpfs, or in the session's own
directories, where nobody works yet.

Order: read-only trees are attached first and locked by one recursive call, writable trees come after it, what lies
inside of trees last. pivot_root(2) then leaves the outer tree behind.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
import sys
from _frozen_importlib import BuiltinImporter, FrozenImporter
from _stat import S_ISDIR, S_ISLNK

from launcher import wire
from launcher.jail import layout, processes, syscalls
from launcher.jail.layout import PROTECT, Operation
from launcher.jail.spec import Facts, JailSpec, Sockets
from launcher.lean import ctypes, os
from launcher.safefs import walk
from policy.errors import Refusal

# The scratch tmpfs covers the outer /proc: no grant comes from there, and it is a directory everywhere. Everything the
# jail can fill lies on this one tmpfs, so one size bounds it.
SCRATCH = "/proc"
ROOT = f"{SCRATCH}/root"
_DIRECTORIES = (("root", 0o755), ("dev", 0o755), ("shm", 0o1777), ("tmp", 0o1777), ("var-tmp", 0o1777), ("mask", 0))
_MASK_FILE = f"{SCRATCH}/mask-file"

_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
_WRITABLE = syscalls.MOUNT_ATTR_NOSUID
_IMAGE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_HERE = syscalls.AT_EMPTY_PATH | syscalls.AT_RECURSIVE
# Recursive always: mounts below are locked to it in this namespace, a copy without them is refused.
_CLONE = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_RECURSIVE
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_THIS = syscalls.AT_SYMLINK_NOFOLLOW | syscalls.AT_NO_AUTOMOUNT

# A path that is not there any more, or not as the canonical path that was decided about, or that this user cannot
# reach (then the command cannot either).
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class View:
    """The view under construction. Holds descriptors until `leave_outside`; a process that fails ends anyway.

    Attributes:
        skipped: (path, reason) of each operation that met nothing to work on.
        fresh_proc: /proc shows the jail's processes only.
    """

    def __init__(self, size: int | None, image: str = "", changes: str = "") -> None:
        """Takes hold of the outer tree.

        Args:
            size: in bytes, bounds all that the jail can put on the scratch tmpfs.
            image: what the root shows, "" for nothing but the grants.
            changes: directory with `upper` and `work` for what is written in it.
        """
        self.skipped: list[tuple[str, str]] = []
        self.fresh_proc = False
        self._masks: list[int] = []
        self._is_copied = False
        self._image, self._changes = image, changes
        self._outer: dict[str, int] = {}  # directories outside that hold sources, by path
        self._whole: int | None = None
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        self._outer_root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._terminal = layout.terminal_name()
        # Files use memory of the kernel beside their content: as many as there are pieces of 512 bytes.
        # Without a limit it is a quarter of the memory, half of what tmpfs(5) takes by itself.
        self._size = "mode=755" + (f",size={size},nr_inodes={size // 512 + 256}" if size is not None else ",size=25%")

    def build(self, operations: "Iterable[Operation]") -> None:
        """Carries out `operations` in the order that the module's text explains."""
        operations = list(operations)
        if operations and operations[0].kind == layout.BIND and operations[0].path == "/":
            self._whole = self._clone(self._outer_root)
            del operations[0]
        flat = [operation for operation in operations if not operation.nested]
        self._make_root(flat)
        for operation in flat:
            if operation.kind == layout.PRIVATE:
                self._do(operation)
        # All mount points before any tree, and links last: nothing is ever made through a link or on the disk.
        binds = [(operation, self._prepared(operation)) for operation in flat if operation.kind == layout.BIND]
        for operation in flat:
            if operation.kind == layout.LINK:
                self._do(operation)
        for operation, prepared in binds:
            if prepared is not None and not operation.writable:
                self._attach(*prepared)
        syscalls.mount_setattr(self._root, "", _HERE, _READ_ONLY)
        if self._image:
            syscalls.mount_setattr(self._root, "", syscalls.AT_EMPTY_PATH, _IMAGE, syscalls.MOUNT_ATTR_RDONLY)
        for operation, prepared in binds:
            if prepared is not None and operation.writable:
                self._attach(self._shown(operation, prepared[0]), *prepared[1:])
        self._cover_trees(operations)
        if any(operation.text for operation in operations if operation.kind == layout.BIND) and not self._is_copied:
            raise Refusal(
                "cow-unavailable", "the worktree is not shown as a copy", context="it is gone, or unreachable"
            )
        self._finish_own()

    def contains(self, path: str) -> bool:
        """Whether the directory `path` is there inside, without any symbolic link on the way."""
        try:
            os.close(self._open(self._root, path, os.O_DIRECTORY))
        except OSError:
            return False
        return True

    def leave_outside(self) -> None:
        """Makes the view this process's root and detaches everything else."""
        os.fchdir(self._root)
        # pivot_root(2), "pivot_root(".", ".")": the old root lies over the new one until it is detached.
        syscalls.pivot_root(".", ".")
        syscalls.umount2(".", syscalls.MNT_DETACH)
        os.chdir("/")
        for fd in {self._outer_root, *self._outer.values(), *self._directories.values(), *self._masks}:
            os.close(fd)

    def _make_root(self, flat: "list[Operation]") -> None:
        syscalls.mount("tmpfs", SCRATCH, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, self._size)
        for name, mode in _DIRECTORIES:
            os.mkdir(f"{SCRATCH}/{name}", mode)
        os.mknod(_MASK_FILE, 0o000)
        tree = self._whole
        if self._image:
            tree = self._imaged(flat)
        elif tree is None:
            tree = self._clone_path(ROOT)
        else:
            syscalls.mount_setattr(tree, "", _HERE, _READ_ONLY)
        syscalls.move_mount(tree, "", syscalls.AT_FDCWD, ROOT, syscalls.MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)
        self._root = os.open(ROOT, _LOOK | os.O_DIRECTORY)
        self._directories = {"/": self._root}
        if self._whole is None and not self._image:
            os.mkdir("proc", 0o755, dir_fd=self._root)

    def _imaged(self, flat: "Iterable[Operation]") -> int:
        """The tree of the image, with a place for all that is mounted in it.

        These places, and links, lie in a layer of their own above the image, which counts whatever the image has there:
        a link, a file, a directory that this user may not write. So nothing is made in an image, or looked up in it.
        """
        os.mkdir(f"{SCRATCH}/places", 0o755)
        self._directories = {"/": os.open(f"{SCRATCH}/places", _LOOK | os.O_DIRECTORY)}
        self._mount_point("/proc", is_directory=True)
        for operation in flat:
            if operation.kind == layout.LINK:
                self._link(operation)
            elif operation.kind == layout.PRIVATE:
                self._mount_point(operation.path, is_directory=True)
            elif operation.kind == layout.BIND and (prepared := self._prepared(operation)) is not None:
                os.close(prepared[0])
        for fd in self._directories.values():
            os.close(fd)
        try:
            image = self._source(self._image)[0]
            syscalls.mount_setattr(image, "", _HERE, _IMAGE | syscalls.MOUNT_ATTR_RDONLY)
            return self._overlaid("image", image, self._changes, above=f"{SCRATCH}/places:")
        except OSError as error:
            raise Refusal(
                "root-unavailable",
                f"the kernel cannot show {self._image} as the jail's root",
                context=f"overlayfs: {error.strerror}; Paddock's state and the image must lie on file systems that it "
                "takes as layers (not on another overlay, as a container's root is), and nothing be mounted in the "
                "image",
                hint="XDG_STATE_HOME names another place for the state",
            ) from None

    def _cover_trees(self, operations: "Iterable[Operation]") -> None:
        """What lies inside of trees, when those have been attached."""
        for operation in operations:
            if operation.nested:
                self._do(operation)
        for mask in self._masks:
            syscalls.mount_setattr(mask, "", syscalls.AT_EMPTY_PATH, _READ_ONLY)

    def _do(self, operation: Operation) -> None:
        """One operation whose order matters, with what can go wrong on a disk that others change meanwhile."""
        try:
            if operation.kind == layout.BIND:
                self._bind_nested(operation)
            elif operation.kind == layout.PRIVATE:
                self._private(operation)
            elif operation.kind == layout.LINK:
                self._link(operation)
            else:
                self._cover(operation)
        except OSError as error:
            if operation.source or error.errno not in _GONE:  # what should cover something else must be there
                raise failed(operation, error) from None
            self.skipped.append((operation.path, error.strerror or ""))

    def _prepared(self, operation: Operation) -> tuple[int, int, str] | None:
        """A detached copy of what a grant names, and its mount point: (tree, directory, name). None: it is gone."""
        try:
            tree, is_directory = self._source(operation.source or operation.path)
        except OSError as error:
            if operation.source or error.errno not in _GONE:
                raise failed(operation, error) from None
            self.skipped.append((operation.path, error.strerror or ""))
            return None
        try:
            directory, name = self._mount_point(operation.path, is_directory=is_directory)
        except OSError as error:
            raise failed(operation, error) from None
        return tree, directory, name

    def _shown(self, operation: Operation, tree: int) -> int:
        """The tree of a bind with its attributes, or, where that is wanted, a copy in its place."""
        read_only = bool(operation.text) or not operation.writable
        syscalls.mount_setattr(tree, "", _HERE, _READ_ONLY if read_only else _WRITABLE)
        return self._copied(operation, tree) if operation.text else tree

    def _copied(self, operation: Operation, tree: int) -> int:
        """A tree that shows another one until something is written: that goes elsewhere."""
        try:
            copy = self._overlaid("copy", tree, operation.text)
        except OSError as error:
            raise Refusal(
                "cow-unavailable",
                f"the kernel cannot show a copy of {operation.path}",
                context=f"overlayfs: {error.strerror}; Paddock's state and the worktree must lie on file systems that "
                "it takes as layers (not on another overlay, as a container's root is)",
                hint="XDG_STATE_HOME names another place for the state; --review shows the worktree read-only",
            ) from None
        self._is_copied = True
        return copy

    def _overlaid(self, name: str, tree: int, changes: str, above: str = "") -> int:
        """`tree` with what is written in it going to `changes` (overlayfs).

        Layers are named by paths, and a path may hold what an option's text cannot: they get names on the scratch.
        """
        for layer in ("lower", "changes", "shown"):
            os.mkdir(f"{SCRATCH}/{name}-{layer}", 0o700)
        at = os.open(SCRATCH, _LOOK | os.O_DIRECTORY)
        self._attach(tree, at, f"{name}-lower")
        self._attach(self._source(changes)[0], at, f"{name}-changes")
        os.close(at)
        upper = f"{SCRATCH}/{name}-changes"
        layers = f"lowerdir={above}{SCRATCH}/{name}-lower,upperdir={upper}/upper,workdir={upper}/work,userxattr"
        syscalls.mount("overlay", f"{SCRATCH}/{name}-shown", "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, layers)
        return self._clone_path(f"{SCRATCH}/{name}-shown")

    def _bind_nested(self, operation: Operation) -> None:
        tree, is_directory = self._source(operation.source or operation.path)
        tree = self._shown(operation, tree)
        try:
            if operation.makes:
                directory, name = self._mount_point(operation.path, is_directory=is_directory)
                syscalls.move_mount(tree, "", directory, name, syscalls.MOVE_MOUNT_F_EMPTY_PATH)
            else:
                self._attach_at(tree, operation.path)
        finally:
            os.close(tree)

    def _private(self, operation: Operation) -> None:
        if operation.text:
            tree = self._session_directory(operation)
        else:
            tree = self._clone_path(f"{SCRATCH}/{operation.path[1:].replace('/', '-')}")
        try:
            if operation.makes:
                directory, name = self._mount_point(operation.path, is_directory=True)
                syscalls.move_mount(tree, "", directory, name, syscalls.MOVE_MOUNT_F_EMPTY_PATH)
            else:
                self._attach_at(tree, operation.path)
        finally:
            os.close(tree)
        self._directories[operation.path] = self._open(self._root, operation.path, os.O_DIRECTORY)
        if operation.path == "/dev":
            self._fill_dev()

    def _session_directory(self, operation: Operation) -> int:
        """The session's own directory on the disk; no jail can change the way to it."""
        try:
            tree, _ = self._source(operation.text)
        except OSError as error:
            raise failed(operation, error) from None
        syscalls.mount_setattr(tree, "", _HERE, _WRITABLE | syscalls.MOUNT_ATTR_NODEV)
        return tree

    def _fill_dev(self) -> None:
        directory = self._directories["/dev"]
        for source, name in layout.device_nodes(self._terminal):
            try:
                node, _ = self._source(source)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                self.skipped.append((source, error.strerror or ""))
                continue
            os.mknod(name, 0o644, dir_fd=directory)
            self._attach(node, directory, name)
        for name, target in layout.DEVICE_LINKS:
            os.symlink(target, name, dir_fd=directory)
        os.mkdir("pts", 0o755, dir_fd=directory)
        os.mkdir("shm", 0o755, dir_fd=directory)
        os.mkdir("mqueue", 0o755, dir_fd=directory)
        self._attach(self._clone_path(f"{SCRATCH}/shm"), directory, "shm")

    def _link(self, operation: Operation) -> None:
        parent, _, name = operation.path.rpartition("/")
        try:
            os.symlink(operation.text, name, dir_fd=self._directory(parent or "/"))
        except FileExistsError:
            return  # a grant's mount point is there: what was granted wins

    def _cover(self, operation: Operation) -> None:
        """PIN, PROTECT and MASK: something is mounted over what is at the path now, whatever it is."""
        target = self._open(self._root, operation.path)
        try:
            if operation.kind == layout.MASK:
                tree = self._mask(operation, is_directory=S_ISDIR(os.fstat(target).st_mode))
            else:
                tree = self._clone(target)
                if operation.kind == layout.PROTECT:
                    syscalls.mount_setattr(tree, "", _HERE, _READ_ONLY)
            self._attach_fd(tree, target)
            os.close(tree)
        finally:
            os.close(target)

    def _mask(self, operation: Operation, *, is_directory: bool) -> int:
        if operation.holes and is_directory:
            place = f"{SCRATCH}/mask-{len(self._masks)}"
            os.mkdir(place, 0o555)
            tree = self._clone_path(place)
            # Read-only only when the mount points of its holes are made.
            self._masks.append(os.dup(tree))
            self._directories[operation.path] = self._masks[-1]
            return tree
        tree = self._clone_path(f"{SCRATCH}/mask" if is_directory else _MASK_FILE)
        syscalls.mount_setattr(tree, "", syscalls.AT_EMPTY_PATH, _READ_ONLY)
        return tree

    def _finish_own(self) -> None:
        """What is the jail's own: /dev and its pseudo terminals, the directories that may be written, /proc."""
        proc = f"{ROOT}/proc"
        if not self.contains("/dev") or not self.contains("/proc"):
            raise Refusal("view-incomplete", "there is no directory to mount /dev or /proc on")
        syscalls.mount_setattr(self._directories["/dev"], "", _HERE, _READ_ONLY)
        for path in ("/dev/shm", "/tmp", "/var/tmp"):
            if path == "/dev/shm" or path in self._directories:
                syscalls.mount_setattr(self._root, path[1:], 0, 0, syscalls.MOUNT_ATTR_RDONLY)
        syscalls.mount(
            "devpts",
            f"{ROOT}/dev/pts",
            "devpts",
            syscalls.MS_NOSUID | syscalls.MS_NOEXEC,
            "newinstance,ptmxmode=0666,mode=620",
        )
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        try:
            # The queues of the jail's IPC namespace (mq_overview(7)). Landlock wants a rule on them, and so a path.
            syscalls.mount("mqueue", f"{ROOT}/dev/mqueue", "mqueue", flags)
        except OSError as error:
            if error.errno != errno.ENODEV:  # a kernel without them
                raise
        flags |= syscalls.MS_RDONLY
        try:
            # Read-only as a whole: started by root, the files of /proc/sys, /proc/irq and their like are this user's.
            syscalls.mount("proc", proc, "proc", flags)
            self.fresh_proc = True
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES):
                raise
            # Something is mounted over parts of the outer /proc, as containers do; a fresh one would uncover it.
            # The scratch tmpfs lies over the outer one until it is moved somewhere else.
            syscalls.move_mount(syscalls.AT_FDCWD, SCRATCH, syscalls.AT_FDCWD, "/dev")
            tree = self._clone_path(SCRATCH)
            syscalls.mount_setattr(tree, "", _HERE, _READ_ONLY)
            self._attach(tree, self._root, "proc")

    def _source(self, path: str) -> tuple[int, bool]:
        """A detached copy of the tree at the outer `path`, and whether it is a directory."""
        parent, _, name = path.rpartition("/")
        directory = self._outer.get(parent)  # dozens of sources are neighbours, in /etc
        if directory is None:
            directory = self._outer[parent] = self._open(self._outer_root, parent or "/", os.O_DIRECTORY)
        tree = syscalls.open_tree(directory, name or ".", _CLONE | _THIS)
        mode = os.fstat(tree).st_mode
        if S_ISLNK(mode):
            os.close(tree)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return tree, S_ISDIR(mode)

    def _mount_point(self, path: str, *, is_directory: bool) -> tuple[int, str]:
        """Makes a mount point on a tmpfs of ours, unless it has been: (descriptor of its directory, name)."""
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent or "/")
        if is_directory:
            self._make_directory(name, directory)
            return directory, name
        try:
            os.mknod(name, 0o644, dir_fd=directory)
        except FileExistsError:
            if not self._image:  # there, all have been made before
                raise
        return directory, name

    def _directory(self, path: str) -> int:
        """Descriptor of a directory on a tmpfs of ours, made with its parents when it is missing; kept open."""
        known = self._directories.get(path)
        if known is None:
            parent, _, name = path.rpartition("/")
            above = self._directory(parent or "/")
            self._make_directory(name, above)
            known = self._directories[path] = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=above)
        return known

    def _attach(self, tree: int, directory: int, name: str) -> None:
        syscalls.move_mount(tree, "", directory, name, syscalls.MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)

    def _attach_at(self, tree: int, path: str) -> None:
        """Attaches to what is at `path` inside, which lies on the disk."""
        target = self._open(self._root, path)
        try:
            self._attach_fd(tree, target)
        finally:
            os.close(target)

    @staticmethod
    def _attach_fd(tree: int, target: int) -> None:
        flags = syscalls.MOVE_MOUNT_F_EMPTY_PATH | syscalls.MOVE_MOUNT_T_EMPTY_PATH
        syscalls.move_mount(tree, "", target, "", flags)

    @staticmethod
    def _open(root: int, path: str, flags: int = 0) -> int:
        return walk.openat2(root, path[1:] or ".", _LOOK | flags, 0, walk.RESOLVE_NO_SYMLINKS)

    @staticmethod
    def _clone(fd: int) -> int:
        return syscalls.open_tree(fd, "", _CLONE | syscalls.AT_EMPTY_PATH)

    @staticmethod
    def _clone_path(path: str) -> int:
        return syscalls.open_tree(syscalls.AT_FDCWD, path, _CLONE)

    def _make_directory(self, name: str, directory: int) -> None:
        """A directory of ours, and not for writing: below the private /tmp, what is written beside a grant would be
        lost with the jail, while the command believes that it has written outside. An image is lost by intention."""
        try:
            os.mkdir(name, 0o755 if self._image else 0o555, dir_fd=directory)
        except FileExistsError:
            return  # made before, on the way to something else


def failed(operation: Operation, error: OSError) -> Refusal:
    """The Refusal for an operation that the kernel did not carry out."""
    context, hint = syscalls.explained(
        error, "paddock doctor shows what this machine allows; PADDOCK_NO_USERNS=1 uses the guard instead of mounts"
    )
    return Refusal("view-failed", f"cannot {operation.describe()}", context=context, hint=hint)


# Into the namespaces: their flags, the identity inside, the view, the loopback interface, and what all that holds.
#
# Launch path: see launcher/jail/syscalls.py.

_ALWAYS = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)

_AF_INET = 2
_SOCK_DGRAM_CLOEXEC = 2 | os.O_CLOEXEC
_SOCK_STREAM_CLOEXEC = 1 | os.O_CLOEXEC
_AF_INET6, _AF_NETLINK, _SOCK_RAW_CLOEXEC = 10, 16, 3 | os.O_CLOEXEC
_RTM_NEWROUTE, _NLM_REQUEST_ACK_CREATE = 24, 0x1 | 0x4 | 0x400
_RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL = 255, 4, 254, 2  # rtnetlink(7)
_RTA_DST, _RTA_OIF = 1, 4
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_IFREQ = 40


def flags(spec: JailSpec) -> int:
    """CLONE_NEW* flags: every kind, the network's unless the spec leaves it open."""
    return _ALWAYS | (0 if spec.net == "open" else syscalls.CLONE_NEWNET)


def enter(spec: JailSpec, operations: tuple[Operation, ...], *, uid: int, gid: int) -> Facts:
    """Builds the jail's view and makes it this process's root. Leaves capabilities in the user namespace in place.

    To be called once, in the first process of new namespaces (`flags`), single-threaded, before Landlock.

    Args:
        operations: from `layout.prepare` for the same spec.
        uid: effective user id of the launcher. It has to come from there: in the new namespace nobody has an id yet.
        gid: the same for the group.

    Returns:
        What is held now, for the ledger.

    Raises:
        Refusal: userns-unavailable, view-failed, worktree-missing.
    """
    mask = os.umask(0)
    identity(uid, gid)
    try:
        view = View(dict(spec.limits).get("disk"), spec.root, spec.root_copy)
    except OSError as error:
        # The first mounts: AppArmor and some containers allow the namespace and forbid its use.
        if error.errno in (errno.EPERM, errno.EACCES):
            raise processes.userns_unavailable("mount", error) from None
        raise
    view.build(operations)
    leave(spec, view)
    if spec.net != "open":
        loopback_up()
    os.umask(mask)
    return facts(spec, operations, view)


def leave(spec: JailSpec, view: View) -> None:
    """Makes a view that is built this process's root.

    Raises:
        Refusal: worktree-missing.
    """
    if not view.contains(spec.worktree):
        raise Refusal("worktree-missing", f"{spec.worktree} no longer exists", hint="was it removed in the meantime?")
    view.leave_outside()
    if spec.root:
        # A path of Python's or Paddock's own code now leads into the image, which may have put anything there.
        sys.meta_path[:] = [each for each in sys.meta_path if each in (BuiltinImporter, FrozenImporter)]


def identity(uid: int, gid: int) -> None:
    """Makes the caller's own user and group, and no other, exist inside (user_namespaces(7)).

    Raises:
        Refusal: userns-unavailable.
    """
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
    except OSError as error:
        raise processes.userns_unavailable("uid_map", error) from None


def loopback_up() -> None:
    """Brings up the namespace's own loopback interface, which servers under test need (netdevice(7))."""
    socket = ctypes.CDLL(None, use_errno=True)["socket"]
    fd = socket(_AF_INET, _SOCK_DGRAM_CLOEXEC, 0)
    if fd < 0:
        number = ctypes.get_errno()
        raise Refusal("loopback-down", "the jail's loopback interface did not come up", context=os.strerror(number))
    try:
        request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + _IFF_UP_RUNNING.to_bytes(2, "little"), _IFREQ)
        syscalls.ioctl(fd, _SIOCSIFFLAGS, ctypes.addressof(request))
    except OSError as error:
        raise Refusal("loopback-down", "the jail's loopback interface did not come up", context=str(error)) from None
    finally:
        os.close(fd)


def hand_out(sockets: Sockets) -> None:
    """In the jail's network namespace: makes what `JailSpec.sockets` says for the proxy outside; closes the channel.

    Raises:
        Refusal: proxy-unavailable.
    """
    channel, wanted, networks = sockets
    try:
        both = local_routes(networks)
        for kind, packed, port in wanted:
            if kind == "free":
                fd = syscalls.socket(_AF_INET, _SOCK_STREAM_CLOEXEC | os.O_NONBLOCK)
            elif kind == "udp":
                fd = syscalls.bound_udp(packed, port)
            else:
                fd = syscalls.listening_tcp(packed or bytes(16 if both else 4), port)
            wire.send(channel, wire.frame(b"S"), (fd,))
            os.close(fd)
    except OSError as error:
        raise Refusal("proxy-unavailable", "the network proxy has no socket in the jail", context=str(error)) from None
    os.close(channel)


def local_routes(networks: "tuple[tuple[bytes, int], ...]") -> bool:
    """Makes every address of `networks` the namespace's own, as those of 127.0.0.0/8 are (rtnetlink(7), type local).

    Args:
        networks: packed address and prefix length; IPv6 ones are left out where the kernel has no IPv6.

    Returns:
        Whether there is IPv6.

    Raises:
        OSError: the kernel's answer.
    """
    both = True
    fd = syscalls.socket(_AF_NETLINK, _SOCK_RAW_CLOEXEC)
    try:
        for number, (packed, length) in enumerate(networks):
            os.write(fd, _route(number, packed, length))
            answer = os.read(fd, 4096)
            code = -int.from_bytes(answer[16:20], sys.byteorder, signed=True)  # struct nlmsgerr (netlink(7))
            if code and len(packed) == 4:
                raise OSError(code, f"no local route: {os.strerror(code)}")
            both = both and not code
    finally:
        os.close(fd)
    return both


def _route(number: int, packed: bytes, length: int) -> bytes:
    """A request for a route of type local: struct nlmsghdr, struct rtmsg, RTA_DST, RTA_OIF."""
    family = _AF_INET if len(packed) == 4 else _AF_INET6
    route = bytes((family, length, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL)) + bytes(4)
    for kind, value in ((_RTA_DST, packed), (_RTA_OIF, (1).to_bytes(4, sys.byteorder))):  # lo is always the first
        route += (4 + len(value)).to_bytes(2, sys.byteorder) + kind.to_bytes(2, sys.byteorder) + value
    head = (_RTM_NEWROUTE, 2), (_NLM_REQUEST_ACK_CREATE, 2), (number, 4), (0, 4)
    size = (16 + len(route)).to_bytes(4, sys.byteorder)
    return size + b"".join(value.to_bytes(width, sys.byteorder) for value, width in head) + route


def facts(spec: JailSpec, operations: tuple[Operation, ...], view: View) -> Facts:
    """What is held once the view is this process's root, for the ledger."""
    kinds = "user, mount, pid, ipc, uts, cgroup" + ("" if spec.net == "open" else ", net")
    protected = sum(operation.kind == PROTECT for operation in operations)
    found = [
        ("namespaces", "layer", f"{kinds}; {len(operations)} operations"),
        ("handoff", "held", f"{protected} path{'' if protected == 1 else 's'} read-only, parents pinned"),
        ("metadata", "held", "what is not writable is on read-only mounts"),
        ("visibility", "held", "/proc of the jail's own PID namespace"),
        ("survival", "held", "PID namespace that ends with the launcher"),
        ("unix-sockets", "held", "paths: not mounted; " + _abstract(spec)),
        ("shared-memory", "held", "private /dev/shm, IPC namespace"),
        ("terminals", "held", "private devpts"),
    ]
    if spec.net != "open":
        found.append(("network", "held", "network namespace with a loopback interface only"))
    if not view.fresh_proc:
        found[3] = (
            "visibility",
            "not held",
            "/proc is the machine's: parts of it are mounted over, so a fresh one is not allowed",
        )
    found += [("skipped", "layer", f"{path}: {reason}") for path, reason in view.skipped]
    return tuple(found)


def _abstract(spec: JailSpec) -> str:
    return "abstract names: Landlock's scope" if spec.net == "open" else "abstract names: network namespace"
