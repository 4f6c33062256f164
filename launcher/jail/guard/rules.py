"""What the guard lets through: a pure reading of the JailSpec.

A path may be changed, and a socket file connected to, where the spec says "write" and no exception takes it away. The
arithmetic is the one of `policy.verdict.decide`; a test holds the two against each other.

Launch path: nothing is imported but `os`, the spec and the promises.
"""

from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy import promises

DELETED = " (deleted)"

# Sources of grants that hold although a denied path lies above them: the slots lie in Paddock's own state, which is
# denied (as in `namespaces.layout`, where they are exempt).
_BEYOND_DENIAL = (promises.NESTED, promises.PRIVATE_HOME, promises.PRIVATE_TEMP, promises.PRIVATE_GIT)


class Refused(PermissionError):
    """The spec does not let it happen; what it was is for the ledger.

    Args:
        number: the errno for the caller.
        path: the file that it was about, "" when it was about none.
        host: the address, with `port`.
        target: what it was about in other cases.
    """

    def __init__(self, number: int, path: str = "", *, host: str = "", port: int = 0, target: str = "") -> None:
        super().__init__(number, os.strerror(number))
        self.number = number
        self.subject = (path, "w", host, port, target)


class Rules:
    """The answers for one jail."""

    __slots__ = ("_denied", "_nested", "_read_only", "_writable", "addresses")

    def __init__(self, spec: JailSpec) -> None:
        grants = [(path, source) for path, access, source in spec.grants if "w" in access]
        self._writable = frozenset(path for path, _ in grants)
        self._nested = frozenset(path for path, source in grants if source in _BEYOND_DENIAL)
        self._denied = frozenset(path for path, _ in spec.denied)
        self._read_only = frozenset(path for path, _ in spec.read_only)
        self.addresses = None if spec.net == "open" else frozenset(spec.addresses)

    def may_write(self, path: str) -> bool:
        """Whether the spec lets `path` (absolute, canonical) be written."""
        granted = nested = False
        while True:
            nested = nested or path in self._nested
            if path in self._read_only or (path in self._denied and not nested):
                return False
            granted = granted or path in self._writable
            if path in ("/", ""):
                return granted
            path = path.rpartition("/")[0] or "/"

    def may_change(self, name: str) -> bool:
        """Whether an open file may be changed that the kernel calls `name` (readlink(2) on /proc/self/fd/N)."""
        if not name.startswith("/"):
            # "socket:[N]" and others exist only as descriptors. A pipe may be the caller's of the launcher.
            return name.startswith("socket:")
        if name.endswith(DELETED):
            # The name is gone or really ends like this: both have to be allowed.
            bare = name.removesuffix(DELETED)
            return name.startswith("/memfd:") or (self.may_write(bare) and self.may_write(name))
        return self.may_write(name)

    def may_reach(self, address: bytes, port: int) -> bool:
        """Whether a TCP connection to an address (4 or 16 bytes) and port may be made."""
        if self.addresses is None:
            return True
        if address.startswith(bytes(10) + b"\xff\xff"):
            address = address[12:]  # IPv4 in IPv6's clothes
        return (address, port) in self.addresses
