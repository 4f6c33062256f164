"""Single values of a configuration: paths, units, variable names and file patterns.

Each function takes what TOML (or a flag) gave and returns the canonical form, or raises ValueError with a text that
completes the sentence "KEY ...".
"""

import re
from typing import NamedTuple

from policy.egress_rules import MARK, parse_egress_rule, require
from policy.errors import Refusal
from policy.hosts import parse_rule
from policy.keys import parse_key
from policy.tables import Choice, Many, One, Pairs, Part, Version, boolean, key, string, toml_type

UNLIMITED = "unlimited"

# Compiled where they are used: most launches need none of them.
_SIZE = r"([0-9]{1,18})([kmgt]?)(?:ib)?"
_TIME = r"([0-9]{1,18})([smhd]?)"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PUBLISHED = r"(?:(\[[0-9A-Fa-f:]+\]|localhost|[0-9]+(?:\.[0-9]+){3}):)?([0-9]{1,5})(?::([0-9]{1,5}))?"
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_AMOUNTS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9}
_AMOUNT = r"([0-9]{1,18})([kmg]?)"
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LARGEST = (1 << 63) - 1  # rlimits are unsigned 64 bit, cgroup files and off_t signed

# fmt: off
DANGEROUS_NAMES = frozenset({
    "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "CDPATH", "GLOBIGNORE", "IFS", "ZDOTDIR",
    "NODE_OPTIONS", "NODE_PATH", "PERL5LIB", "PERL5OPT", "PERL5DB", "PERLLIB", "RUBYOPT", "RUBYLIB",
    "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "GCONV_PATH", "GETCONF_DIR",
    "HOSTALIASES", "LOCPATH", "LOCALDOMAIN", "MALLOC_TRACE", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS",
    "TERMINFO", "TERMINFO_DIRS", "TERMPATH", "TZDIR", "PAGER", "EDITOR", "VISUAL", "BROWSER", "LESSOPEN",
    "LESSCLOSE", "LUA_INIT", "LUA_PATH", "LUA_CPATH", "PHPRC", "PHP_INI_SCAN_DIR", "RUSTC_WRAPPER", "RUSTFLAGS",
    "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO",
    "KRB5CCNAME", "XAUTHORITY", "DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS",
    "DOCKER_HOST", "XDG_RUNTIME_DIR", "HOME", "TMPDIR", "TMP", "TEMP",
})
# fmt: on
"""Variables that make ordinary programmes load code, or point to the user's own sessions."""

DANGEROUS_PREFIXES = ("LD_", "DYLD_", "PYTHON", "GIT_", "PADDOCK_", "BASH_FUNC_", "LUA_INIT_", "NPM_CONFIG_", "CARGO_")

_SECRET = r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE|SIGNATURE|_URL|_DSN"


def text(value: object) -> str:
    """A string without NUL."""
    written = string(value)
    if "\0" in written:
        raise ValueError("contains a NUL character")
    return written


def path(value: object, directory: str | None, home: str | None) -> str:
    """An absolute path, as the caller wrote it but for the leading part. Links and ``..`` are left to the kernel.

    Args:
        value: absolute, below ``~/``, or relative where `directory` is known.
        directory: what relative paths are relative to; None where they have no meaning.
        home: the user's home directory; None where ``~`` has no meaning.
    """
    written = text(value)
    if not written:
        raise ValueError("is an empty path")
    if "*" in written or "?" in written:
        raise ValueError(f"{written!r} contains a wildcard; name the path itself, or a directory above it")
    if re.search(r"\$[A-Za-z_{(]", written):
        raise ValueError(f"{written!r} contains a variable, which is not expanded here; write the path out")
    if written == "~" or written.startswith("~/"):
        if home is None:
            raise ValueError(f"{written!r} has no meaning here: there is no one home directory")
        written = home + written[1:]
    elif written.startswith("~"):
        raise ValueError(f"{written!r} names another user's home; write the path out, or ./ before the name")
    elif not written.startswith("/"):
        if directory is None:
            raise ValueError(
                f"{written!r} is relative, which only a project's file and options may use; start it with / or ~/"
            )
        written = f"{directory}/{written}"
    if len(written.encode("utf-8", "surrogateescape")) > 4095:
        raise ValueError("is longer than 4095 bytes, the longest path there can be")
    parts = [part for part in written.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def home_path(value: object, directory: str | None, home: str | None) -> str:
    """A path below the home directory, as ``~/NAME``, whoever's home that is. Arguments as for `path`."""
    above = (home or "/~").rstrip("/")
    name = path(value, directory, above).removeprefix(f"{above}/")
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{text(value)!r} is not below your home directory (~/NAME, without ..)")
    return f"~/{name}"


def pattern(value: object) -> str:
    """A hand-off pattern: relative to the worktree's root, ``*`` and ``?`` within one component."""
    written = text(value)
    parts = written.removesuffix("/").split("/")
    if written.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{written!r} is not a plain path relative to the worktree's root")
    if "**" in written:
        raise ValueError(
            f"{written!r}: ** is not supported; patterns are anchored at the root, and * stays within one component"
        )
    if sum("*" in part or "?" in part for part in parts) > 2:
        raise ValueError(f"{written!r} has wildcards in more than two components")
    return "/".join(parts)


def absolute_pattern(value: object) -> str:
    """An absolute path whose components may hold ``*`` and ``?``."""
    written = text(value)
    if not written.startswith("/") or written == "/":
        raise ValueError(f"{written!r} is not an absolute path below /")
    return "/" + pattern(written[1:])


def size(value: object) -> int | None:
    """Bytes: an integer, or a string with a unit of powers of 1024 (``512M``, ``2GiB``); None for unlimited."""
    return _measured(value, _SIZE, _SIZES, "a size such as 536870912, '512M' or '2G' (powers of 1024)")


def seconds(value: object) -> int | None:
    """Seconds: an integer, or a string with a unit (``90s``, ``10m``, ``2h``, ``1d``); None for unlimited."""
    return _measured(value, _TIME, _TIMES, "a time such as 600 (seconds), '90s', '10m' or '2h'")


def amount(value: object) -> int | None:
    """A number: an integer, or a string with a unit of powers of 1000 (``500k``, ``2M``); None for unlimited."""
    return _measured(value, _AMOUNT, _AMOUNTS, "a number such as 20000, '500k' or '2M'")


def count(value: object) -> int | None:
    """A count: an integer, also as a string of digits; None for unlimited."""
    return _measured(value, _TIME, {"": 1}, "a whole number such as 4096")


def _measured(value: object, form: str, units: dict[str, int], wanted: str) -> int | None:
    if value in (UNLIMITED, "none"):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be {wanted}, or 'unlimited', not {toml_type(value)}")
    if isinstance(value, str):
        found = re.fullmatch(form, value.strip(), re.IGNORECASE | re.ASCII)
        factor = units.get(found[2].lower()) if found else None
        if found is None or factor is None or (not found[2] and not value.strip().isdigit()):
            raise ValueError(f"{value!r} is not {wanted}, or 'unlimited'")
        value = int(found[1]) * factor
    if not 1 <= value <= _LARGEST:
        raise ValueError(f"must be between 1 and {_LARGEST}")
    return value


def variable(value: object) -> str:
    """The name of an environment variable (IEEE Std 1003.1, 8.1, lower case too)."""
    name = text(value)
    if not re.fullmatch(_NAME, name, re.ASCII):
        raise ValueError(f"{name!r} is not a variable name (letters, digits and _, not starting with a digit)")
    return name


def variable_pattern(value: object) -> str:
    """A variable's name, or ``PREFIX*``. A prefix that could match a dangerous name is not accepted:
    those pass only when they are named in full.
    """  # fmt: skip
    written = text(value)
    if written == "*":
        raise ValueError("'*' would pass the whole environment, secrets included; name what is needed")
    prefix = variable(written.removesuffix("*"))
    if prefix == written:
        return written
    for name in DANGEROUS_NAMES:
        if name.startswith(prefix):
            raise ValueError(f"{written!r} would pass {name}; name what is needed in full")
    for dangerous in DANGEROUS_PREFIXES:
        if dangerous.startswith(prefix) or prefix.startswith(dangerous):
            raise ValueError(f"{written!r} would pass {dangerous}* variables; name what is needed in full")
    return written


def variable_value(value: object) -> str:
    """The value of an environment variable."""
    return text(value)


def line(value: object) -> str:
    """A line, or nothing."""
    written = string(value)
    if "\n" in written or "\0" in written:
        raise ValueError("must be one line")
    return written


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests that its value must not be shown."""
    return re.search(_SECRET, name, re.IGNORECASE) is not None


def domain(value: object) -> str:
    """An egress rule in canonical form (`policy.egress_rules`), or the name of a bundle (`policy.egress_rules`)."""
    written = text(value)
    try:
        return MARK + require(written).name if written.startswith(MARK) else str(parse_egress_rule(written))
    except Refusal as refusal:
        raise ValueError(f"{refusal.message}; {refusal.hint}") from None


def loopback(value: object) -> str:
    """A port of this machine's own loopback: ``PORT``, ``localhost:PORT`` or ``ADDRESS:PORT``."""
    written = text(value)
    try:
        rule = parse_rule(f"127.0.0.1:{written}" if written.isdigit() else written)
    except Refusal as refusal:
        raise ValueError(refusal.message) from None
    if rule.name == "localhost" and not rule.wildcard and rule.port is not None:
        return f"127.0.0.1:{rule.port}"
    network = rule.network
    if network is None or network.num_addresses > 1 or not network.is_loopback or rule.port is None:
        raise ValueError(f"{written!r} is not a port of the loopback, such as 5432, 127.0.0.1:5432 or [::1]:5432")
    return str(rule)


def published(value: object) -> str:
    """A port of the machine's loopback that leads into the jail, ``[ADDRESS:]PORT[:JAIL'S PORT]``, in full."""
    written = text(value)
    found = re.fullmatch(_PUBLISHED, written, re.ASCII)
    if found is None:
        raise ValueError(f"{written!r} is not [ADDRESS:]PORT[:PORT], such as 8080, 8080:3000 or 127.0.0.1:8080:3000")
    outside = loopback(f"{found[1]}:{found[2]}" if found[1] else found[2])
    inside = loopback(found[3] or found[2])
    return f"{outside}:{inside.rpartition(':')[2]}"


def injected(value: object) -> str:
    """A key that stays outside (`policy.keys.parse_key`), as it was written."""
    written = text(value)
    try:
        found = parse_key(written)
    except Refusal as refusal:
        raise ValueError(f"{refusal.message}; {refusal.hint}") from None
    for name in (found.variable, *(name for name, _ in found.environment)):
        if name == "PATH" or name in DANGEROUS_NAMES or name.startswith(DANGEROUS_PREFIXES):
            raise ValueError(f"{name} means something to ordinary programmes, and cannot hold a key or its URL")
    return written


def access(value: object) -> str:
    """Access letters of a device, in the order of `policy.plan`."""
    letters = text(value)
    if not re.fullmatch("rw?x?i?", letters):
        raise ValueError(f"{letters!r} is not r, optionally followed by w, x and i (rw, rwi)")
    return letters


# One configuration file. Names are the keys of the TOML file.

SCHEMA = 1


class Base(NamedTuple):
    """What paths in one layer are relative to; None where the form has no meaning."""

    directory: str | None
    home: str | None


def _path(value: object, base: object) -> str:
    assert isinstance(base, Base), "layers are read with a Base"
    return path(value, base.directory, base.home)


def _home_path(value: object, base: object) -> str:
    assert isinstance(base, Base), "layers are read with a Base"
    return home_path(value, base.directory, base.home)


PATHS = Many(One(_path, based=True))


class Filesystem(Part):
    """Grants and exceptions. `deny` beats every grant, whichever layer it comes from."""

    read: tuple[str, ...] = key(PATHS, ())
    """Read and execute, at and below these paths."""
    write: tuple[str, ...] = key(PATHS, ())
    """Write, too. Of `read` and `write`, the longer path wins."""
    deny: tuple[str, ...] = key(PATHS, ())
    """Nothing at or below these paths can be read or written, whatever else is granted."""
    freeze_root: bool | None = key(boolean, None)
    """Accept that directories around a denied path get no new entries, where there are no mounts."""


class Network(Part):
    """How far connections reach."""

    mode: str | None = key(Choice("none", "auto", "proxy", "open"), None)
    """How far connections reach; auto is proxy with a provider or an allowed host, else none."""
    allow_domains: tuple[str, ...] = key(Many(domain), ())
    """Hosts that the proxy lets through: [METHODS ]HOST[:PORT][/PATH], *.HOST, or @NAME for a list."""
    deny_domains: tuple[str, ...] = key(Many(domain), ())
    """Hosts that it never lets through, whatever else is allowed."""
    proxy_env: str | None = key(Choice("auto", "yes", "no"), None)
    """Whether HTTPS_PROXY and the like are set; auto: only where hosts cannot be reached by name without them."""
    ask: str | None = key(Choice("auto", "yes", "no"), None)
    """Whether a person is asked about a host that no rule allows; auto: at a terminal, about known agents."""
    notify: str | None = key(line, None)
    """A line of sh(1), run outside of the jail with a question in its environment: PADDOCK_HOST and others."""
    keys: str | None = key(Choice("phantom", "pass"), None)
    """What a jail gets of a known agent's API key: a phantom, which the proxy replaces, or the key itself (pass)."""
    inject: tuple[str, ...] = key(Many(injected), ())
    """Further keys that stay outside: VARIABLE=URL[,base=NAME][,header=NAME][,path=PATH]...[,from=SOURCE]."""
    server_name: str | None = key(Choice("match", "require"), None)
    """Whether a TLS handshake in a tunnel must name its server (require), or may omit the name (match)."""
    reach: tuple[str, ...] = key(Many(loopback), ())
    """Ports of this machine's loopback that the command may connect to: [ADDRESS:]PORT."""
    publish: tuple[str, ...] = key(Many(published), ())
    """Ports of this machine's loopback that are forwarded to a port of the jail: [ADDRESS:]PORT[:PORT]."""


class Environment(Part):
    """Variables that pass, by name or prefix, and variables that are set."""

    pass_: tuple[str, ...] = key(Many(variable_pattern), ())
    """Variables of the caller that pass, by name or as PREFIX_*."""
    set_: dict[str, str] = key(Pairs(variable, variable_value), {})
    """Variables that are set."""


class Git(Part):
    """Access to the repository's git data."""

    mode: str | None = key(Choice("auto", "private", "readonly", "shared"), None)
    """Access to git; auto is private where that can be enforced, else readonly."""
    branch_policy: str | None = key(Choice("keep", "follow"), None)
    """New branches and tags of the agent: left inside (keep), or harvested, and the checkout follows its HEAD."""
    sign: bool | None = key(boolean, None)
    """Whether your own git signs what is harvested."""


class Limits(Part):
    """Upper bounds; "unlimited" lifts one."""

    processes: int | None = key(count, None)
    """How many processes and threads a session may have."""
    memory: int | None = key(size, None)
    """Memory of the session; without control groups of each process, with a watchdog over all of them."""
    open_files: int | None = key(count, None)
    """Open files of each process."""
    file_size: int | None = key(size, None)
    """The largest file that may be written."""
    disk: int | None = key(size, None)
    """Size of the private home and temporary directories."""
    cpu_time: int | None = key(seconds, None)
    """Processor time of the session."""
    tokens: int | None = key(amount, None)
    """Tokens that a session's requests with keys that stay outside may take, in and out together."""
    requests: int | None = key(count, None)
    """Such requests in a minute."""
    upload: int | None = key(size, None)
    """What such requests may send, all together."""


class Backend(Part):
    """What enforces the jail."""

    choice: str | None = key(Choice("auto", "landlock", "bubblewrap"), None)
    """auto is Landlock where it is available, else bubblewrap."""


class Provider(Part):
    """The agent whose own flags and environment are derived too."""

    name: str | None = key(text, None)
    """A known agent; auto recognises the one that the command line starts, none switches this off."""
    dialect: str | None = key(Choice("native", "contract"), None)
    """Flags that the real agent accepts (native), or exactly those of the specification (contract)."""
    keep_prompts: bool | None = key(boolean, None)
    """Whether the agent's own permission prompts stay on although the jail confines it."""
    logins: str | None = key(Choice("none", "phantom", "copy", "exchange"), None)
    """The agent's own login: kept out (none), phantoms of it (phantom), a copy (copy), or a copy whose refreshed tokens
    come back (exchange)."""


class Bring(Part):
    """The user's own things that a jail sees, read-only, at their place in the home directory."""

    agents: bool | None = key(boolean, None)
    """Whether the agent's instructions, skills, commands and MCP servers are brought."""
    files: tuple[str, ...] = key(Many(One(_home_path, based=True)), ())
    """Files and directories below the home directory, as ~/NAME; missing ones are skipped."""


class Handoff(Part):
    """Files that another tool would execute later."""

    protect: tuple[str, ...] = key(Many(pattern), ())
    """Read-only in the jail: paths relative to the worktree's root, * and ? stay within one component."""
    report: tuple[str, ...] = key(Many(pattern), ())
    """Compared when the command has ended; patterns of the same form."""

    def consistent(self) -> None:
        """No name is in both."""
        if twice := sorted({*self.protect} & {*self.report}):
            raise ValueError(f"names {twice[0]!r} under both protect and report")


class System(Part):
    """What every programme of this operating system needs."""

    read_trees: tuple[str, ...] = key(PATHS, ())
    """Trees of programmes and libraries: read and execute. Missing ones are skipped."""
    etc_files: tuple[str, ...] = key(Many(absolute_pattern), ())
    """Single files to read; * and ? stay within one component."""
    kernel_files: tuple[str, ...] = key(PATHS, ())
    """Files below /proc and /sys to read."""
    devices: dict[str, str] = key(Pairs(absolute_pattern, access), {})
    """Devices and what may be done with them: r, optionally followed by w (write), x (execute) and i (ioctl)."""


class Configuration(Part):
    """A whole file."""

    schema_: int = key(Version(SCHEMA), SCHEMA)
    filesystem: Filesystem = key(Filesystem, Filesystem())
    network: Network = key(Network, Network())
    environment: Environment = key(Environment, Environment())
    git: Git = key(Git, Git())
    limits: Limits = key(Limits, Limits())
    backend: Backend = key(Backend, Backend())
    provider: Provider = key(Provider, Provider())
    bring: Bring = key(Bring, Bring())
    handoff: Handoff = key(Handoff, Handoff())
    system: System = key(System, System())
