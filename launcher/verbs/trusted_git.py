"""What git would obey in a git directory that sessions could write: shown to the user before he accepts it.

Nothing is followed to another place. What leads git elsewhere is refused, because there it can change unseen: a link, a
`commondir`, an included file, a file that has another name, an index with a path out of the checkout. So is what git
cannot read, or would wait for, and an operation in progress: its files name programmes and options. A jailed find(1)
and git(1) do the looking.

The checkouts that a git directory names are searched for other repositories, wherever they lie, and so is the tree in
which it lies. Other trees that sessions could write are not: a session can lead a `.git` there to what was accepted at
any later time, and nothing in that leads git to it; who works there works in a tree of an agent's.

Sources: gitrepository-layout(5), git-config(1), githooks(5).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.jail import confined
from launcher.session import nested
from launcher.session.machine import Machine
from launcher.vcs import checkout, git_config, jailed_git, written
from launcher.vcs.private import pointer
from policy.errors import EXIT_REFUSED, Refusal, in_rows
from policy.pasted import cited, quoted
from policy.plan import SYSTEM_PATH, beneath

_CONFIG = ("config", "config.worktree")
_ALTERNATES = "objects/info/alternates"
_IN_PROGRESS = ("rebase-merge", "rebase-apply", "sequencer", "MERGE_HEAD", "MERGE_AUTOSTASH", "CHERRY_PICK_HEAD",
                "REVERT_HEAD", "BISECT_", "NOTES_MERGE_")  # fmt: skip
"""Beginnings of what git's ``--continue`` and the like take up."""
_DIRECTORIES = ("hooks", "modules", "worktrees", "remotes", "branches")
"""What git looks into for more that it obeys."""
_DATA = ("refs", "logs", "objects", "lfs")
"""Where git has data. It writes there, and its reflogs in place."""
_MANY = ("refs", "logs", "objects/??", "objects/pack", "lfs/objects")
"""Where it may have so many files that none is named that is as it should be."""
_OBJECT = r".*/objects/\([0-9a-f][0-9a-f]/[0-9a-f]*\|pack/\(pack-\|multi-pack-index\)[^/]*\)"
"""Objects, which may be hard links (git-clone(1), `--local`): so many that few may be named. No file of another kind
has such a name, but refs and reflogs."""

_ODD = (
    "(", "-not", "-type", "f", "-not", "-type", "d", ")",
    "-o", "(", "-type", "f", "-links", "+1",
    "(", "-not", "-regex", _OBJECT, "-o", "-path", "*/refs/*", "-o", "-path", "*/logs/*", ")", ")",
    "-o", "-name", ".git",
)  # fmt: skip
_SEEN = ("-printf", r"%y\0%n\0%P\0%l\0")
_NAMES = (
    "HEAD", "index", "gitdir", "config*", "commondir", "attributes", "alternates",
    *(f"{name}*" for name in _IN_PROGRESS),
)  # fmt: skip
_FIND = (
    "(", *" -o ".join(f"-path ./{name}/*" for name in _MANY).split(), ")",
    "(", "(", *_ODD, ")", *_SEEN, "-o", "-true", ")", "-o",
    "(", *_ODD, "-o", *" -o ".join(f"-name {name}" for name in _NAMES).split(),
    "-o", "-path", "*/hooks/*", "-o", "-path", "*/remotes/*", "-o", "-path", "*/branches/*", ")",
    *_SEEN,
)  # fmt: skip
_LEAVING = r"(^|/)(\.{0,2}|\.git)(/|$)"
"""Paths that git itself puts into no index (`verify_path` in its read-cache.c), but follows in one that it finds."""
# Started at the root of the jail, or git would read the repository's configuration to begin with. An index can only be
# read with that; it goes to a programme for one thing alone.
_READ = """
entries() { git --git-dir="$dir" --work-tree=/ -c core.fsmonitor=false ls-files -z "$@"; }
here=$PWD; most=$0; leaving=$1; shift; cd /
for name; do
    case $name in
        c:*)
            complaint=$(git config --no-includes --list -z --file "$here/${name#c:}" 2>&1 >/dev/null); status=$?
            if [ "$status" = 0 ]; then git config --no-includes --list -z --file "$here/${name#c:}"
            else printf %s "$complaint"; fi;;
        [il]:*)
            dir=$here/${name#?:}; dir=${dir%/index}; status=0
            if [ -d "$dir/objects" ] || [ -e "$dir/commondir" ]; then
                complaint=$(entries 2>&1 >/dev/null); status=$?
                if [ "$status" != 0 ]; then printf %s "$complaint"
                elif [ "${name%%:*}" = i ]; then entries | grep -zaiEm 1 "$leaving"
                else entries --stage | grep -za '^160000 '; fi
            fi;;
        *)
            [ -r "$here/${name#t:}" ]; status=$?
            [ "$status" != 0 ] || head -c "$most" "$here/${name#t:}" | tr '\\0' '\\n';;
    esac
    printf '\\0\\0%s\\0' "$status"
done
"""
_VARIABLES = (
    ("PATH", SYSTEM_PATH),
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
)
_MOST_SHOWN = 1 << 20
_MOST_OF_TEXT = 2000
_MOST_NAMED = 20
_MOST_LINKS = 1_000
"""Submodules that an index may name: a jail takes a mount for each that is not populated."""
_MOST_SEARCHED = 2_000_000
"""Entries of a tree that are looked at for checkouts, and for repositories in them."""


class _Entry(NamedTuple):
    """Something that git may obey.

    Attributes:
        kind: as find(1) has it: f, d, l ...
        names: how many it has (hard links).
        path: in the git directory that is shown.
        target: of a link.
        around: the git directory that it belongs to: "", or one in `modules` or `worktrees`.
        nearest: whether none that it belongs to is nearer.
    """

    kind: str
    names: int
    path: str
    target: str
    around: str
    nearest: bool

    @property
    def name(self) -> str:
        """The path in the git directory that it belongs to."""
        return self.path[len(self.around) + 1 :] if self.around else self.path


def named(file: str) -> str:
    """The git directory that a user names: itself, its checkout, or a linked worktree of it.

    Refusals: trust-no-git-directory.
    """
    machine = Machine(os.environ)
    place = os.path.realpath(file)
    if os.path.basename(place) != ".git" and (git_dir := _git_dir(place, machine)) != place:
        pointer = machine.kind(f"{place}/.git") == "file"
        place = (pointer and machine.resolve(checkout.common_dir(git_dir, machine))) or git_dir
    if os.path.islink(place) or not _is_git_dir(place, machine):
        raise Refusal(
            "trust-no-git-directory",
            f"{place} is not a git directory",
            hint="name a .git directory, a bare repository, or a checkout",
        )
    return place


def _git_dir(directory: str, machine: Machine) -> str:
    """The git directory that git uses in a directory: by its `.git`, whatever else is there; else itself."""
    place = f"{directory}/.git"
    kind = machine.kind(place)
    if kind == "file":
        return nested.led_to(place, machine) or place  # else git fails
    return place if kind in ("dir", "link") and _is_git_dir(place, machine) else directory


def _is_git_dir(place: str, machine: Machine) -> bool:
    """Whether git takes a directory for a git directory (`is_git_directory` in its setup.c)."""
    if os.path.islink(f"{place}/HEAD"):
        head = os.readlink(f"{place}/HEAD").startswith("refs/")
    else:
        text = machine.read(f"{place}/HEAD") or b""
        head = text.startswith(b"ref:") and text[4:].lstrip().startswith(b"refs/")
        head = head or re.match(rb"[0-9a-fA-F]{40}", text) is not None
    common = checkout.common_dir(place, machine)
    return head and all(os.access(f"{common}/{name}", os.X_OK) for name in ("objects", "refs"))


def obeyed(place: str, tree: str, state: str) -> list[str]:
    """What git takes orders from in a git directory and in those inside of it, one thing a line.

    Args:
        place: of the git directory, canonical.
        tree: that sessions could write, for which it counts as theirs (`written.agents_tree`).
        state: Paddock's state directory.

    Refusals: trust-indirect, trust-in-progress, trust-nested, trust-unreadable; those of a jail.
    """
    entries = _entries(place)
    shown = {entry.around for entry in entries}
    for entry in entries:
        _check_kind(entry, place, shown)
    lines, checkouts = _read(entries, place)
    lines += _indexed(entries, place)
    _check_nested(place, {f"{place}/{around}".rstrip("/") for around in shown}, checkouts, tree, state)
    return lines


def _check_nested(place: str, shown: set[str], named: set[str], tree: str, state: str) -> None:
    """Refuses a git directory with another repository in a checkout of it that sessions could write: git enters it.

    A checkout is where the git directory lies as `.git`, what it names, and where a `.git` in the tree leads to it or
    into it. Those in the git directory itself are shown along with it, but not where git has nothing but data.

    Args:
        named: checkouts that the git directory names.
    """
    machine = Machine(os.environ)
    home = _home(place)
    named = {*named, home} if home else named
    led = _led(place, (tree, *sorted(named)), machine)
    checkouts = [os.path.dirname(entry) for entry, places in led.items()
                 if os.path.basename(entry) == ".git" and any(beneath(each, place) for each in places)]  # fmt: skip
    checkouts += named
    for entry, places in led.items():
        if not places and machine.kind(entry) in ("file", "link") and any(beneath(entry, root) for root in checkouts):
            raise _unreadable(place, f"{cited(entry)} points to nothing now, and can later", _removal(entry))
    theirs = {
        each
        for entry, places in led.items() if any(beneath(entry, root) for root in checkouts)
        for each in places if each not in shown and written.agents_tree(each, state)
    }  # fmt: skip
    if theirs:
        inside_first = sorted(theirs, key=lambda each: (-each.count("/"), each))[:_MOST_NAMED]
        raise Refusal(
            "trust-nested",
            f"git enters other repositories in checkouts of {place}, which agents could write",
            context="`git status` and others obey what is in them: " + ", ".join(map(cited, inside_first)),
            hint=in_rows(
                "remove each of them, or accept it first:", *(f"paddock trust {quoted(each)}" for each in inside_first)
            ),
        )


def _led(place: str, trees: tuple[str, ...], machine: Machine) -> dict[str, tuple[str, ...]]:
    """The `.git` and bare repositories in trees: the git directory of each, and the one it shares configuration with.

    Refusals: trust-unreadable.
    """
    led: dict[str, tuple[str, ...]] = {}
    searched: list[str] = []
    left = _MOST_SEARCHED
    for root in trees:
        # What lies in a `.git` is not searched from around it.
        around = any(beneath(root, each) and ".git" not in root[len(each) :].split("/") for each in searched)
        if around or _is_absent(root):
            continue
        searched.append(root)
        found, seen, unread = nested.existing(root, left)
        left -= seen
        if left < 0:
            raise _unreadable(place, f"{root} is too large to be searched for repositories")
        if unread:
            raise _unreadable(place, f"{unread[0]} cannot be searched for repositories",
                              f"chmod -R u+rX {quoted(unread[0])}, or remove it")  # fmt: skip
        for entry in found:
            if os.path.basename(entry) != ".git" and _git_dir(entry, machine) != entry:
                continue  # a checkout, which only looks like a bare repository
            git_dir, kind = nested.led_to(entry, machine), machine.kind(entry)
            unknown = kind in ("file", "link") and machine.read(entry, pointer.MOST_BYTES) is None
            if kind is None or (git_dir is None and unknown):
                raise _unreadable(place, f"{entry} cannot be read, or is too long for a path", _removal(entry))
            common = git_dir and machine.resolve(checkout.common_dir(git_dir, machine))
            led[entry] = tuple(filter(None, (git_dir, common)))
    return led


def _is_absent(path: str) -> bool:
    """Whether nothing is there; not where that cannot be told."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _removal(entry: str) -> str:
    return f"remove {quoted(entry)}"


def _home(place: str) -> str:
    """The checkout in which a git directory lies as its `.git`; "" for another one."""
    root, name = os.path.split(place)
    return root if name == ".git" else ""


def _entries(place: str) -> list[_Entry]:
    """What find(1) has seen, for each git directory it belongs to: a name can mean more than one thing."""
    find = shutil.which("find", path=SYSTEM_PATH) or "/usr/bin/find"
    output, status = _jailed(place, (os.path.realpath(find), ".", *_FIND), (place,))
    if status:
        raise _unreadable(place, "a file or directory in it cannot be read", "chmod -R u+rX, or clone it")
    parts = output.split("\0")
    seen = list(zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4], strict=False))
    directories = {"", *(os.path.dirname(path) for _, _, path, _ in seen if os.path.basename(path) == "HEAD")}
    found = []
    for kind, names, path, target in seen:
        around, nearest = path, True
        while around:
            around = os.path.dirname(around)
            if around in directories:
                found.append(_Entry(kind, int(names), path, target, around, nearest))
                nearest = False
    return found


def _check_kind(entry: _Entry, place: str, shown: set[str]) -> None:
    """Refuses what leads git out of the git directory, and what is no file where git reads one."""
    name = entry.name
    files = (*_CONFIG, "commondir", "gitdir", "index", _ALTERNATES)
    source = name in files or name.startswith(("remotes/", "branches/"))
    inside = name.startswith(("modules/", "worktrees/"))
    data = name.partition("/")[0] in _DATA
    if os.path.basename(name) == ".git":
        raise _indirect(place, entry.path, "it makes a checkout of a directory in the git directory",
                        "move that one out of it, or remove it")  # fmt: skip
    if name.startswith(_IN_PROGRESS):
        raise Refusal(
            "trust-in-progress",
            f"an operation of git's is in progress in {place}: {cited(entry.path)}",
            context="what it would execute when it continues cannot be shown",
            hint="finish or abort it in a jail (git rebase --abort, git cherry-pick --abort, git bisect reset ...), or "
            f"rm -r {quoted(f'{place}/{entry.path}')}; then paddock trust {quoted(place)}",
        )
    symbolic = name == "HEAD" and entry.target.startswith("refs/") and ".." not in entry.target.split("/")
    # Git follows links where it writes: of a message, an index, packed refs. Those of hooks are shown.
    other = entry.nearest and (inside or not (symbolic or name.startswith("hooks/")))
    if entry.kind == "l" and (source or data or name in _DIRECTORIES or other):
        raise _indirect(place, entry.path, f"it is a link to {cited(entry.target)}",
                        "replace it with a copy of what it points to, or remove it")  # fmt: skip
    if entry.kind not in "fdl" or (name in files and entry.kind != "f"):
        raise _unreadable(
            place, f"{cited(entry.path)} is not a regular file", f"remove {quoted(f'{place}/{entry.path}')}"
        )
    single = name == _ALTERNATES or not name.startswith("objects/")
    if entry.kind == "f" and entry.names > 1 and entry.nearest and single:
        raise _indirect(place, entry.path, "the same file has another name (a hard link), by which it can be written",
                        "replace it with a copy of itself, or remove it")  # fmt: skip
    common, worktrees = os.path.split(os.path.dirname(entry.around))
    if name == "commondir" and not (worktrees == "worktrees" and common in shown):
        raise _redirected(place, entry.path)


def _read(entries: list[_Entry], place: str) -> tuple[list[str], set[str]]:
    """What is to be shown, and the checkouts that the git directory names."""
    config = dict.fromkeys(entry.path for entry in entries if entry.name in _CONFIG)
    files = [entry for entry in entries if entry.kind == "f"]
    common = dict.fromkeys(entry.path for entry in entries if entry.name == "commondir")
    linked = dict.fromkeys(entry.path for entry in files if re.fullmatch("worktrees/[^/]+/gitdir", entry.name))
    texts = dict.fromkeys(
        entry.path
        for entry in files
        if entry.name in (_ALTERNATES, "info/attributes") or entry.name.startswith(("remotes/", "branches/"))
    )
    contents = _contents(place, [f"c:{path}" for path in config] + [f"t:{path}" for path in (*common, *texts, *linked)])
    for path in common:
        if "".join(contents[f"t:{path}"]).rstrip("\n") != "../..":
            raise _redirected(place, path)
    checkouts = {_linked(place, path, "".join(contents[f"t:{path}"])) for path in linked}
    for path in config:
        for key, _, value in (record.partition("\n") for record in contents[f"c:{path}"]):
            checkouts |= {_configured(place, path, value)} if key == "core.worktree" else set()
    return list(_lines(entries, place, config, texts, contents)), checkouts


def _indexed(entries: list[_Entry], place: str) -> Iterator[str]:
    """The submodules that indexes name: git status enters each, which is why jails keep those that are empty so.

    Refuses an index with a path out of the checkout, or into a `.git`: git enters a submodule there, too. Git reads
    them by their repository's configuration, so that is looked at before.
    """
    indexes = dict.fromkeys(entry.path for entry in entries if entry.kind == "f" and entry.name == "index")
    contents = _contents(place, [f"{what}:{path}" for what in "il" for path in indexes])
    for path in indexes:
        if found := contents[f"i:{path}"]:
            raise _indirect(place, path, f"git itself puts no such path into an index: {found[0]}",
                            f"rm {quoted(f'{place}/{path}')}, and git reset in a jail")  # fmt: skip
        links = dict.fromkeys(record.partition("\t")[2] for record in contents[f"l:{path}"])
        if len(links) > _MOST_LINKS:
            raise _unreadable(place, f"{path} names more than {_MOST_LINKS} submodules")
        if links:
            yield f"{path}:"
            yield from (f"  {name}: a submodule, which git enters" for name in links)


def _lines(
    entries: list[_Entry], place: str, config: Iterable[str], texts: Iterable[str], contents: dict[str, list[str]]
) -> Iterator[str]:
    for path in config:
        yield f"{path}:"
        yield from _settings(place, path, contents[f"c:{path}"])
    for path in texts:
        yield f"{path}:"
        text = "".join(contents[f"t:{path}"])
        yield from (f"  {line}" for line in text.splitlines())
        if len(text) >= _MOST_OF_TEXT:
            yield "  ..."
    for path, target in dict.fromkeys((entry.path, entry.target) for entry in entries if _is_named(entry)):
        yield f"{path} -> {target}" if target else path


def _is_named(entry: _Entry) -> bool:
    """Whether a thing is shown by its name alone."""
    if entry.name.startswith("hooks/"):
        return entry.kind in "fl" and not entry.name.endswith(".sample")
    return entry.kind == "l"


def _settings(place: str, path: str, records: list[str]) -> Iterator[str]:
    inner = os.path.dirname(f"{place}/{path}")
    values = dict(record.partition("\n")[::2] for record in records)
    base = os.path.dirname(inner) if os.path.basename(inner) == ".git" else inner
    base = os.path.join(base, values.get("core.worktree", ""))
    for record in records:
        key, _, value = record.partition("\n")
        if key == "include.path" or (key.startswith("includeif.") and key.endswith(".path")):
            raise _indirect(place, path, f"its {key} reads another file: {value}",
                            "copy the settings of that file in its place, or remove the line")  # fmt: skip
        yield f"  {key} = {value}" if "\n" in record else f"  {key}"
        if key == "core.hookspath" and value:
            directory = os.path.realpath(git_config.expanded(value, os.path.expanduser("~"), base))
            yield from (f"    {directory}/{name}" for name in _programs(directory))


def _configured(place: str, path: str, value: str) -> str:
    """The checkout that a `core.worktree` names: the one whose `.git` this is, or which leads back; others are refused.

    That of a submodule may lack its `.git`, anywhere in the checkout around it (git-submodule(1), `deinit`).
    """
    git_dir = os.path.dirname(f"{place}/{path}")
    named_so = os.path.join(git_dir, value)
    root, home = os.path.realpath(named_so), _home(place)
    if own := _home(git_dir):
        right = root == own
    else:
        right = nested.led_to(f"{root}/.git", Machine(os.environ)) == git_dir
        right = right or bool(git_dir != place and home and beneath(root, home))
    if root != os.path.normpath(named_so) or beneath(root, place) or not right:
        raise _indirect(place, path, f"its core.worktree is not the checkout whose .git this is: {value}",
                        "correct the line, or remove it")  # fmt: skip
    return root


def _linked(place: str, path: str, text: str) -> str:
    """The linked worktree that a `gitdir` names, as git writes it: canonical, and not in the git directory."""
    line = text.rstrip(" \t\r\n")
    root, name = os.path.split(line)
    whole = len(os.fsencode(text)) < _MOST_OF_TEXT
    # A relative one is read from wherever git was started, or from here (git 2.48).
    absolute = root.startswith("/") and "\n" not in line
    if not (whole and absolute) or name != ".git" or os.path.realpath(root) != root or beneath(root, place):
        raise _indirect(place, path, f"it names no worktree in a place of its own: {line[:200]}",
                        "write the absolute path of the worktree's .git there, or remove that directory")  # fmt: skip
    return root


def _programs(directory: str) -> list[str]:
    """The programmes in a directory of hooks."""
    if not os.path.isdir(directory):
        return []
    find = shutil.which("find", path=SYSTEM_PATH) or "/usr/bin/find"
    words = (".", "-maxdepth", "1", "(", "-type", "f", "-o", "-type", "l", ")", "-perm", "/111", "-printf", r"%P\0")
    output, status = _jailed(directory, (os.path.realpath(find), *words), (directory,))
    if status:
        raise _unreadable(directory, "core.hooksPath names it, and it cannot be read")
    return sorted(filter(None, output.split("\0")))


def _contents(place: str, wanted: list[str]) -> dict[str, list[str]]:
    """What is in configuration files and texts, in records; as the script prints it."""
    if not wanted:
        return {}
    shell = os.path.realpath(shutil.which("sh", path=SYSTEM_PATH) or "/bin/sh")
    output, status = _jailed(place, (shell, "-c", _READ, str(_MOST_OF_TEXT), _LEAVING, *wanted), (place,))
    if status:
        raise _unreadable(place, "a file in it cannot be read")
    records = iter(output.split("\0"))
    found: dict[str, list[str]] = {}
    for name in wanted:
        found[name] = []
        while record := next(records, ""):
            found[name].append(record)
        status_of = next(filter(None, records), "")
        if status_of != "0":
            complaint = found[name][-1].strip() if found[name] else "git cannot read it"
            complaint = complaint.removeprefix("fatal: ").replace(f"{place}/", "")
            raise _unreadable(place, f"{name[2:]}: git says: {complaint}", f"correct {quoted(f'{place}/{name[2:]}')}")
    return found


def _jailed(start: str, words: tuple[str, ...], readable: tuple[str, ...]) -> tuple[str, int]:
    """Standard output of a command in a jail, and its status. Refusals: trust-unreadable; those of a jail."""
    spec = (start, words, (readable, (), ()), _VARIABLES, (("memory", 1 << 30),))
    with jailed_git.start(spec, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with open(process.stdout.fileno(), "rb", closefd=False) as whole:
            output = os.fsdecode(whole.read(_MOST_SHOWN))
        if len(output) == _MOST_SHOWN:
            process.kill()
            raise _unreadable(start, "it is more than 1 MiB")
    refusal = confined.refusal_in(output) if process.returncode == EXIT_REFUSED else None
    if refusal is not None:
        raise refusal
    return output, process.returncode


def _redirected(place: str, path: str) -> Refusal:
    return _indirect(place, path, "git would take its configuration and hooks from where this file says",
                     f"remove it: rm {quoted(f'{place}/{path}')}")  # fmt: skip


def _indirect(place: str, path: str, why: str, hint: str) -> Refusal:
    return Refusal(
        "trust-indirect",
        f"{cited(f'{place}/{path}')} leads git elsewhere, so what it would obey cannot be shown",
        context=why,
        hint=f"{hint}; then paddock trust {quoted(place)}",
    )


def _unreadable(place: str, why: str, hint: str = "clone it to a place of your own") -> Refusal:
    return Refusal("trust-unreadable", f"what git obeys in {place} cannot be shown", context=why, hint=hint)
