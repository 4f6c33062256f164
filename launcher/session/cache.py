"""Finished Plans, kept so that the next launch of the same command skips everything that made them.

An entry is found by the launch's words, directory, user and groups; it is valid only while every recorded input
(`session.inputs`) would still give the same answer. Kept under XDG_CACHE_HOME, mode 0600, and no jail can reach it: an
agent that could write here would write its own rules. A damaged entry counts as absent.

Launch path: `os`, `sys`, `marshal` and `_imp`.
"""

import _imp
import marshal
import sys

from launcher.jail import syscalls
from launcher.lean import os
from launcher.safefs import walk
from launcher.session import inputs, messages, state
from launcher.session.places import Places, current_directory, made
from policy.errors import Refusal, Rows, printable
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MAGIC = b"paddock-plan-2\n"
_MOST_ENTRIES = 256
_MOST_BYTES = 8 << 20


_UNPLANNED = ("--env", "--session", "--report", "--dry-run", "--verbose", "--quiet", "--strict-handoff")
"""Options that no Plan depends on."""

SWITCHES = ("PATH", "PADDOCK_LANDLOCK_ABI", "PADDOCK_NO_USERNS", "PADDOCK_NO_LANDLOCK")
"""Variables on which every Plan depends, and that differ among the shells of one user: each has its own entry."""

RUNNERS = frozenset(
    "env nice nohup setsid stdbuf timeout node npx pnpx bunx npm pnpm yarn bun deno uvx uv pipx".split()  # noqa: SIM905
)
"""The keys of `policy.runners.TABLE`, which is imported only for them."""


Parsed = dict[str, str | list[str] | bool]


class Entry:
    """What one launch needs: the unbound Plan, the probed support and the assembled seccomp programme.

    `vouches` is what `state.vouches` gave before the Plan was made.
    """

    __slots__ = ("filter", "plan", "support", "vouches")

    def __init__(self, plan: Plan, support: tuple[object, ...], filter_program: bytes, vouches: object = None) -> None:
        self.plan = plan
        self.support = support
        self.filter = filter_program
        self.vouches = vouches


def key_words(options: Parsed, command: list[str]) -> tuple[tuple[object, ...], dict[str, str]]:
    """What a cached Plan is found by, and the values given with `--env NAME=VALUE`.

    The values stay out of the key, because the key is written to the cache. So do the command's arguments, but for the
    one that says what a runner (`env`, `npx` ...) starts: the provider may depend on it.
    """
    given: dict[str, str] = {}
    names = []
    environment = options.get("--env", [])
    for item in environment if isinstance(environment, list) else ():
        name, equals, value = item.partition("=")
        names.append(name + equals)
        if equals:
            given[name] = value
        elif name not in os.environ and not name.endswith("*"):
            messages.say(f"paddock: warning: --env {printable(name)}: not set in your environment")
    started = 0
    if command[0].rpartition("/")[2] in RUNNERS:
        from policy import runners

        started = runners.started(command)
        packages = tuple(runners.fetched(command))
        if "://" in " ".join((command[started], *packages)):  # no provider, and perhaps a password
            started = 0
    words: list[object] = [command[0], (started, command[started], *packages) if started else 0, tuple(names)]
    for name in sorted(options):
        if name not in _UNPLANNED:
            choice = options[name]
            words.append((name, tuple(choice) if isinstance(choice, list) else choice))
    return tuple(words), given


def entry(words: tuple[object, ...], options: Parsed, command: list[str], where: Places) -> Entry:
    """The Plan of a launch from the current directory, with what goes with it: the cached one, else a new one.

    Args:
        words: from `key_words`.
        options: by name, as the command line has them.
    """
    cwd = current_directory()
    # Its own directories are denied by the plan, so a plan belongs to them.
    key_bytes = key((*words, where.home, *where.own()), cwd)
    found = load(where, key_bytes, os.environ)
    if found is not None:
        return found

    def planned() -> Entry:
        from launcher.session import packages

        packages.enable()
        return planned_anew(options, command, cwd, where, key_bytes)

    return planned() if "launcher.session.planning" in sys.modules else _in_child(planned)


def planned_anew(options: Parsed, command: list[str], cwd: str, where: Places, key_bytes: bytes) -> Entry:
    """A new entry for one launch, stored for the next one that has the same key."""
    from launcher.session import machine, planning

    vouches = state.vouches(where)
    planned = planning.make(options, command, cwd, where)
    planning.prepare(planned, where)
    filter_program = planning.filter_program(planned.plan, planned.support, planned.machine)
    result = Entry(planned.plan, planned.support.to_data(), filter_program, vouches)
    planning.depend_on_code(planned.machine)
    store(where, key_bytes, machine.grouped_by_directory(planned.machine.recorded()), result)
    return result


def _in_child(planned: "Callable[[], Entry]") -> Entry:
    """Has a child process make the Plan, so that what this imports is gone while the session lives."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(source)
            try:
                planned_entry = planned()
                answer: tuple[Any, ...] = _data_of(planned_entry)
            except Exception as error:
                from launcher.jail import init

                why = error if isinstance(error, Refusal) else init.failure("paddock failed unexpectedly", error)
                answer = (why.reference, why.message, why.context, why.hint, why.exit_code)
            with os.fdopen(sink, "wb") as file:
                file.write(_dumped(answer))
            status = 0
        finally:
            os._exit(status)  # without a word after an interrupt: the parent was interrupted too
    os.close(sink)
    with os.fdopen(source, "rb") as file:
        content = file.read()
    _, status = os.waitpid(child, 0)
    if status or not content:
        raise Refusal(
            "plan-not-made",
            "the process that plans the launch ended early",
            context=f"wait status {status}",
            hint="was it killed for lack of memory?",
        )
    answer = marshal.loads(content)
    if len(answer) != 4:
        reference, message, context, hint, exit_code = answer
        raise Refusal(reference, message, context=Rows(context), hint=Rows(hint), exit_code=exit_code)
    plan_data, *others = answer
    plan = Plan.from_data(plan_data)
    assert plan is not None  # made by this very code
    return Entry(plan, *others)


def _data_of(entry: Entry) -> "tuple[Any, ...]":
    return (entry.plan.to_data(), entry.support, entry.filter, entry.vouches)


def key(words: tuple[object, ...], cwd: str) -> bytes:
    """The key of a launch: `words` (options and command, no secret values), directory, user, variables, container."""
    who = (os.geteuid(), os.getegid(), os.getgroups())
    variables = tuple(map(os.environ.get, SWITCHES))
    return _dumped((sys.version_info[:3], sys.executable, words, cwd, who, variables, _surroundings()))


def _surroundings() -> tuple[object, ...]:
    """What tells a container, or another jail, from the host whose home directory it sees: other plans are right there.

    The mounts, the users, and whether this process is under a filter already.
    """
    found: list[object] = [syscalls.prctl(syscalls.PR_GET_SECCOMP)]
    for name in ("mnt", "user"):
        try:
            found.append(os.stat(f"/proc/self/ns/{name}").st_ino)
        except OSError:
            found.append(None)  # no /proc here: told apart by that
    return tuple(found)


def _dumped(value: "Any") -> bytes:  # noqa: ANN401  # typeshed names no type for what marshal takes
    # Version 2: later ones mark shared objects, so that equal values could give different bytes.
    return marshal.dumps(value, 2)


def _path(places: Places, key_bytes: bytes) -> str:
    # SipHash, built into every CPython for .pyc files: hashlib costs 2 ms to import. Collisions only cost a
    # miss, because the whole key is compared.
    return f"{places.cache}/plans/{_imp.source_hash(0, key_bytes).hex()}"


def load(places: Places, key_bytes: bytes, environ: "os._Environ[str] | dict[str, str]") -> Entry | None:
    """The entry for `key_bytes` if there is one and all its inputs are unchanged, else None."""
    try:
        descriptor = os.open(_path(places, key_bytes), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if (
            found.st_mode & 0o170077 != 0o100000
            or found.st_uid != os.geteuid()
            or found.st_nlink > 1  # none: another launch has just replaced it
            or not len(_MAGIC) + 16 < found.st_size < _MOST_BYTES
        ):
            return None
        content = os.read(descriptor, found.st_size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    head, body = content[: len(_MAGIC) + 8], content[len(_MAGIC) + 8 :]
    # The checksum keeps a torn write from reaching marshal, which does not survive damaged data.
    if head != _MAGIC + _imp.source_hash(1, body):
        return None
    try:
        stored_key, recorded, (plan_data, *others) = marshal.loads(body)
    except (EOFError, TypeError, ValueError):  # whole, but of another shape: another version wrote it
        return None
    if stored_key != key_bytes or not inputs.unchanged(recorded, environ):
        return None
    plan = Plan.from_data(plan_data)
    return None if plan is None else Entry(plan, *others)


def store(places: Places, key_bytes: bytes, recorded: tuple[inputs.Input, ...], entry: Entry) -> None:
    """Keeps an entry, atomically. A cache that cannot be written is not an error: the launch goes on without."""
    body = _dumped((key_bytes, recorded, _data_of(entry)))
    content = _MAGIC + _imp.source_hash(1, body) + body
    if len(content) >= _MOST_BYTES:
        return
    path = _path(places, key_bytes)
    try:
        made(places.cache)
        _prune(made(os.path.dirname(path)))
        walk.replace(path, content, temporary=f"{os.path.basename(path)}.{os.getpid()}", lasting=False)
    except OSError:
        return


def _prune(directory: str) -> None:
    """Removes what a killed launch left half written, and the oldest entries once there are too many."""
    names = []
    for name in os.listdir(directory):
        writer = name.partition(".")[2]
        if writer.isdigit() and not os.path.lexists(f"/proc/{writer}"):
            try:
                os.unlink(f"{directory}/{name}")
            except FileNotFoundError:
                continue  # another launch was quicker
        else:
            names.append(name)
    if len(names) < _MOST_ENTRIES:
        return
    dated = []
    for name in names:
        try:
            dated.append((os.lstat(f"{directory}/{name}").st_mtime_ns, name))
        except FileNotFoundError:
            continue  # another launch pruned it
    for _, name in sorted(dated)[: len(dated) - _MOST_ENTRIES // 2]:
        try:
            os.unlink(f"{directory}/{name}")
        except FileNotFoundError:
            continue
