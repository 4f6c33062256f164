"""At a terminal, after a command that failed: what it named, and its jail did not show or let it write.

The view refuses without a word to anybody: what it does not show is "not there" (ENOENT), what it shows read-only is
EROFS. What the command line and the last lines on the terminal name is a hint, from an agent perhaps: of each path no
more is believed than what the Plan says, and that it is there outside.

Imported when a command has failed at a terminal, and by `paddock learn`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from launcher.session import messages, state
from launcher.session.machine import Machine
from launcher.session.places import Places
from policy import promises, remedy, verdict
from policy.derive import canonical_form
from policy.errors import printable
from policy.pasted import cited, quoted
from policy.plan import SLOTS, Plan, beneath
from policy.remedy import Missed, Standing

_REFUSED = re.compile(r"no such file|not found|read-only file system|permission denied", re.IGNORECASE)
_PATH = re.compile(r"""(?<![\w.~/-])(?:~|\.{1,2})?/[^\s'"`:;,()<>|&$*?\\]+|(?<=')[^'\n]*/[^'\n]*(?=')""")
_MOST_LINES, _MOST_PATHS, _LONGEST, _SHOWN = 40, 40, 4096, 3
_NOT_LOOKED_AT = ("/proc", "/sys", "/dev", "/net")
"""The jail's own, or what a look may mount."""


def bound(plan: Plan, places: Places) -> Plan:
    """The Plan with the private home's place. Other slots are known in a session alone: they are beneath nothing."""
    return plan.bind({name: f"@{name}" for name in SLOTS} | {"home": state.home_of(places, plan.worktree_id)})


def outside(places: Places, machine: Machine) -> remedy.Outside:
    """What is the user's own on this machine."""
    found = [canonical_form(os.path.normpath(entry), machine)
             for entry in (machine.env("PATH") or os.defpath).split(":") if entry.startswith("/")]  # fmt: skip
    hidden: list[str] = []
    for directory, first in ((places.home, "."), (f"{places.home}/.config", "")):
        with suppress(OSError), os.scandir(directory) as entries:
            hidden += [canonical_form(entry.path, machine) for entry in entries
                       if entry.name.startswith(first) and entry.name != ".cache" and entry.is_symlink()]  # fmt: skip
    return remedy.Outside(canonical_form(places.home, machine), tuple(dict.fromkeys(found)), tuple(hidden))


def say(plan: Plan, words: Sequence[str], output: bytes, places: Places) -> None:
    """Tells on standard error what was denied by the view, where anything was.

    Args:
        plan: of a backend with mounts.
        output: the last of what the command has written to its terminal.
    """
    lines = _lines(bound(plan, places), words, output, places)
    if lines:
        messages.say("paddock: named by the command, and denied by the jail's view")
        for line in lines[:_SHOWN]:
            messages.say(f"paddock:   {printable(line)}")
        if len(lines) > _SHOWN:
            messages.say(f"paddock:   and {len(lines) - _SHOWN} more")
        messages.say("paddock:   more: paddock why PATH; paddock learn -- COMMAND")


def of_command(plan: Plan, words: Sequence[str], places: Places) -> list[str]:
    """What a command line names and its jail's view denies, one a line; for what fails without a word to a person."""
    lines = _lines(bound(plan, places), words, b"", places) if promises.has_mounts(plan.backend) else []
    return [f"named by the command, and denied by the jail's view: {line}" for line in lines]


def _lines(plan: Plan, words: Sequence[str], output: bytes, places: Places) -> list[str]:
    machine = Machine(os.environ)
    own = outside(places, machine)
    found: dict[str, str] = {}
    for text, write, seen in _named(words, output):
        path = canonical_form(os.path.normpath(os.path.join(plan.cwd, os.path.expanduser(text))), machine)
        if path not in found and not any(beneath(path, root) for root in _NOT_LOOKED_AT):
            found[path] = _line(plan, path, own, write=write, seen=seen)
    return [line for line in found.values() if line]


def _named(words: Sequence[str], output: bytes) -> Iterator[tuple[str, bool, bool]]:
    """Paths that the last lines and the command line name: whether writing was refused, and whether anything was."""
    found: dict[str, tuple[bool, bool]] = {}
    for line in output.decode(errors="surrogateescape").splitlines()[-_MOST_LINES:]:
        if _REFUSED.search(line):
            write = "read-only" in line.lower()
            found.update((path, (write, True)) for path in _PATH.findall(line))
    for word in words:
        found = dict.fromkeys(_PATH.findall(word[:_LONGEST]), (False, False)) | found
    for path, (write, seen) in list(found.items())[:_MOST_PATHS]:
        if "\0" not in path and len(path) < _LONGEST:
            yield path, write, seen


def _line(plan: Plan, path: str, own: remedy.Outside, *, write: bool, seen: bool) -> str:
    """What was denied, and what would allow it; "" when nothing was, or it would have failed outside, too."""
    asked = path
    if write and not os.path.lexists(path):
        path = os.path.dirname(path)  # it was to be made there
    wanted = "w" if write else "r"
    if wanted in verdict.decide(plan, path).access or not os.access(path, os.W_OK if write else os.R_OK):
        return ""
    if not write and not seen and verdict.is_way(plan, path):
        return ""  # there is a directory, with what is granted in it
    directory = os.path.isdir(path)
    (line,) = remedy.propose([Missed(path, wanted, directory, True, False, asked, "", "")], plan, own)
    allow = f"{line.flag} {quoted(line.path, own=False)}" if line.standing is Standing.PROPOSED else line.risk
    return f"{'write' if write else 'read'} {cited(asked)}: {allow}"
