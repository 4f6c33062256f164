"""From what a command missed to the smallest set of grants that gives it: the thinking behind `paddock learn`. Pure.

Small in both senses: few lines, and no line wider than it must be. A grant that would open a secret, a whole home
directory or a file that other tools execute is withheld: it is named with its risk, and somebody has to write it down.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from policy.plan import Plan, beneath
from policy.remedy import READS, WRITES, string
from policy.verdict import decide, risk_of

FEW = 3
"""So many neighbours that are read become one grant of their directory."""

_CACHES = ("__pycache__", ".pyc")


class Missed(NamedTuple):
    """One thing that a command did not get.

    Attributes:
        path: what a grant has to cover; for a file that is to be made, its directory, or the topmost one missing.
        access: the letter that is needed there: "r", "w" or "x".
        directory: it is a directory, or would be one.
        exists: it is there.
        seen_only: the command only asked whether it is there.
        asked: the path that was asked for, canonical.
        call: the system call.
        who: the programme's name.
    """

    path: str
    access: str
    directory: bool
    exists: bool
    seen_only: bool
    asked: str
    call: str
    who: str


class Standing(StrEnum):
    """What a line is."""

    PROPOSED = "proposed"
    OPTIONAL = "optional"
    """Programmes ask for such things and do without."""
    WITHHELD = "withheld"


class Line(NamedTuple):
    """One grant.

    Attributes:
        key: "read" or "write", as in the table [filesystem].
        path: canonical.
        standing: whether it is proposed.
        reason: who wanted what.
        risk: what it opens.
        prepare: "directory" or "file" when it has to be made first; else "".
    """

    key: str
    path: str
    standing: Standing
    reason: str
    risk: str
    prepare: str

    @property
    def flag(self) -> str:
        """The option of `paddock run` that grants the same."""
        return "--rw" if self.key == "write" else "--ro"


def propose(missed: Iterable[Missed], plan: Plan) -> list[Line]:
    """The grants for all that was missed: those for writing first, each kind sorted by path."""
    lines: dict[tuple[str, str], Line] = {}
    for one in missed:
        line = _line(one, plan)
        known = lines.get((line.key, line.path))
        if known is None or (known.standing, line.standing) == (Standing.OPTIONAL, Standing.PROPOSED):
            lines[line.key, line.path] = line
    found = _collapsed(list(lines.values()), plan)
    kept = [line for line in found if not any(_covers(other, line) for other in found)]
    return sorted(kept, key=lambda line: (line.key != "write", line.path))


def _line(one: Missed, plan: Plan) -> Line:
    key = "write" if one.access == "w" else "read"
    path, prepare = one.path, "" if one.exists else "directory" if one.directory else "file"
    if key == "write" and one.directory and one.exists and one.asked != path and _too_wide(path, plan):
        # A single file in a directory that holds much else: that file.
        path, prepare = one.asked, "file"
    found = decide(plan, path)
    text, special = risk_of(path), bool(risk_of(path)) or _too_wide(path, plan)
    standing = Standing.OPTIONAL if one.seen_only or any(mark in one.asked for mark in _CACHES) else Standing.PROPOSED
    if found.limits:
        special, text = True, f"{text or (WRITES if key == 'write' else READS)}; {found.hint}"
    elif special and not text:
        text = "it holds the worktree, or the home directory, with all that lies beside"
    if not _can_be_written(path):
        special, text = True, "its name is not UTF-8, so no configuration file can hold it"
    if special:
        standing = Standing.WITHHELD
    reason = f"{one.who or '?'}: {one.call} {one.asked}"
    return Line(key, path, standing, reason, text or (WRITES if key == "write" else READS), prepare)


def _can_be_written(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_wide(path: str, plan: Plan) -> bool:
    """Whether a grant of this directory would open much more than anybody meant."""
    homes = [value for name, value in plan.env_set if name == "HOME"]
    return (
        path.count("/") < 2
        or beneath(plan.worktree, path)
        or any(beneath(home, path) for home in homes if home.startswith("/"))
        or any(beneath(where, path) for where, _ in plan.denied)
        or bool(risk_of(path))
    )


def widened(line: Line, plan: Plan) -> Line | None:
    """The directory around what had to be made first; None when that is too wide, or `line` is no such grant."""
    parent = line.path.rpartition("/")[0] or "/"
    if not line.prepare or _too_wide(parent, plan):
        return None
    return line._replace(path=parent, prepare="")


def _covers(wide: Line, narrow: Line) -> bool:
    if wide is narrow or wide.standing is Standing.WITHHELD or narrow.standing is Standing.WITHHELD:
        return False
    if wide.standing is Standing.OPTIONAL and narrow.standing is Standing.PROPOSED:
        return False
    if wide.path == narrow.path:
        return (wide.key, narrow.key) == ("write", "read")
    return beneath(narrow.path, wide.path) and (wide.key == "write" or narrow.key == "read")


def _collapsed(lines: list[Line], plan: Plan) -> list[Line]:
    """Neighbours that are read become their directory, as far up as that is not too wide."""
    while True:
        groups: dict[tuple[str, Standing], list[Line]] = {}
        for line in lines:
            if line.key == "read" and line.standing is not Standing.WITHHELD:
                groups.setdefault((line.path.rpartition("/")[0] or "/", line.standing), []).append(line)
        full = [(key, group) for key, group in groups.items() if len(group) >= FEW and not _too_wide(key[0], plan)]
        if not full:
            return lines
        (directory, standing), group = max(full, key=lambda item: item[0][0].count("/"))
        reason = f"{group[0].reason} and {len(group) - 1} more below"
        lines = [line for line in lines if line not in group]
        lines.append(Line("read", directory, standing, reason, READS, ""))


def toml(lines: Iterable[Line], heading: Iterable[str]) -> str:
    """The lines as a configuration file; what is not proposed stands in comments."""
    lines = list(lines)
    out = [f"# {text}".rstrip() for text in heading]
    out += ["schema = 1", ""]
    proposed = [line for line in lines if line.standing is Standing.PROPOSED]
    if proposed:
        out.append("[filesystem]")
    for key in ("read", "write"):
        chosen = [line for line in proposed if line.key == key]
        if chosen:
            out.append(f"{key} = [")
            for line in chosen:
                out += [*_comments(line, "    "), f"    {string(line.path)},"]
            out.append("]")
    for standing, title in (
        (Standing.WITHHELD, "Not proposed, because of what it would open; write it down yourself if you mean it:"),
        (Standing.OPTIONAL, "Asked for, and hardly needed:"),
    ):
        rest = [line for line in lines if line.standing is standing]
        if rest:
            out += ["", f"# {title}"]
        for line in rest:
            out += [*_comments(line, ""), f"#   {line.key}: {string(line.path)}"]
    return "\n".join(out) + "\n"


def _comments(line: Line, indent: str) -> list[str]:
    out = [f"{indent}# {_plain(line.reason)}", f"{indent}# risk: {_plain(line.risk)}"]
    if line.prepare:
        out.append(f"{indent}# it has to be made first, as a {line.prepare}")
    return out


def _plain(text: str) -> str:
    """One line of a comment: a path may hold anything."""
    return string(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\")
