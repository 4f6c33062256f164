"""How output for people looks where git's would: colour, quoted paths, and the pager, by the user's own settings.

Only the system's and the user's configuration count. A repository's may be an agent's, and core.pager names a programme
that runs outside of every jail; so does no directory of PATH that an agent can write choose the pager.
"""

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from launcher.session import messages, places
from launcher.vcs import disk, git_config, written
from policy.errors import Refusal, unseen
from policy.pasted import bare, octal

RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"
"""As terminals number them (ECMA-48, SGR)."""

_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_FALSE = ("false", "no", "off", "0", "")


@functools.cache
def _settings() -> dict[str, str]:
    """The user's git configuration, by key; what an agent could write is left out, and conditions do not hold."""
    where = places.places(os.environ)
    found: dict[str, str] = {}
    try:
        reader = git_config.Reader(
            disk.Seen(), where.home, agents=lambda trail: bool(written.tree_of(trail)), holds=lambda *_: False
        )
        for path in (*git_config.SYSTEM, f"{os.path.dirname(where.config)}/git/config", f"{where.home}/.gitconfig"):
            found |= {each.key: "true" if each.value is None else each.value for each in reader.file(path) if each.own}
    except Refusal:
        return {}  # the record of what agents wrote cannot be read: then no file is known to be the user's
    return found


def styled(text: str, style: str) -> str:
    """In a colour, bold or dim where git would (color.ui); plain where NO_COLOR asks for that (no-color.org)."""
    wanted = _settings().get("color.ui", "auto").lower()
    if not style or os.environ.get("NO_COLOR") or wanted in (*_FALSE, "never"):
        return text
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return text if wanted != "always" and (dumb or not os.isatty(1)) else f"\x1b[{style}m{text}\x1b[m"


def marked(text: str, styles: dict[str, str]) -> str:
    """`text` with each line that begins with one of these words, behind its indentation, in that style."""
    return "\n".join(
        styled(line, next((style for word, style in styles.items() if line.lstrip().startswith(word)), ""))
        for line in text.splitlines()
    )


def path(name: str) -> str:
    r"""A path as git prints it (core.quotePath): ``"\303\244"`` for what is not ASCII, what is unseen always.

    Unlike git's it has no spaces by which it could look like several lines.
    """
    every = _settings().get("core.quotepath", "true").lower() not in _FALSE
    hidden = unseen(name) | bare(name) | {at for at, char in enumerate(name) if every and not char.isascii()}
    if not hidden and _ESCAPES.keys().isdisjoint(name):
        return name
    inner = (_quoted(char, escaped=at in hidden) for at, char in enumerate(name))
    return f'"{"".join(inner)}"'


def _quoted(char: str, *, escaped: bool) -> str:
    if char in _ESCAPES:
        return f"\\{_ESCAPES[char]}"
    return octal(char) if escaped else char


def _pager() -> str:
    """The user's pager as git chooses it (git-var(1), GIT_PAGER); "" for none."""
    for wanted in (os.environ.get("GIT_PAGER"), _settings().get("core.pager"), os.environ.get("PAGER"), "less"):
        if wanted is not None:
            return "" if wanted in ("", "cat") else wanted
    return ""


def paged(action: Callable[[], int]) -> int:
    """The exit status of a verb whose output goes through the user's pager where standard output is a terminal.

    The verb ends before its pager starts: its status does not depend on how much is read.
    """
    pager = _pager() if os.isatty(1) else ""
    if not pager:
        return action()
    written_down = io.StringIO()
    try:
        with contextlib.redirect_stdout(written_down):
            status = action()
    finally:
        _show(written_down.getvalue(), pager)
    return status


def _show(text: str, pager: str) -> None:
    if not text:
        return
    try:
        environment = {"LESS": "FRX", "LV": "-c", **os.environ, "PATH": _path()}
    except Refusal:  # the record of what agents wrote cannot be read
        messages.show(text.rstrip("\n"))
        return
    sys.stdout.flush()
    # Some pagers (delta) read the configuration of the repository around them.
    process = subprocess.Popen(["/bin/sh", "-c", pager], stdin=subprocess.PIPE, env=environment, cwd="/")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's
    try:
        process.communicate(text.encode(errors="surrogateescape"))
    finally:
        signal.signal(signal.SIGINT, before)
    if process.returncode in (126, 127):  # there is no such pager
        messages.show(text.rstrip("\n"))


def _path() -> str:
    """PATH without the directories that an agent could write, as an active virtual environment's is one."""
    own = [each for each in os.environ.get("PATH", os.defpath).split(":") if each.startswith("/")]
    trees = written.trees(places.places(os.environ).state, *own)
    return ":".join(each for each in own if not any(disk.in_hands_of(tree, each) for tree in trees))
