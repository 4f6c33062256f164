"""Signing at the harvest: the agent's commits are made once more by the user's own git, with his signature.

In the jail there is no key. What has crossed and passed every check is signed in the quarantine, oldest first: the same
tree, author, committer and message, parents that are signed themselves, and the header ``gpgsig`` on top; a tree that
names commits of submodules names the signed ones. That nothing else differs is checked on the result; what the user's
git would write otherwise is refused.
Format: gitformat-signature(5), and "commit" in git-hash-object(1).
"""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from launcher.vcs.added_packs import Quarantine
from launcher.vcs.git import Git
from launcher.vcs.gitlinks import of_tree
from launcher.vcs.harvest import as_user, crossing
from launcher.vcs.harvest.as_user import AsUser
from launcher.vcs.harvest.gather import Found
from launcher.vcs.harvest.jail import KEPT
from launcher.vcs.private.record import read_signed, write_signed
from policy.errors import Refusal, in_rows

# Trees in which commits of submodules are named by their signed counterparts.
#
# Signing makes a submodule's commit anew, under another id, so what names it has to be made anew as well. Only
# gitlinks that new commits have put are replaced; that nothing else differs is checked on the result. Formats:
# "tree" in git-ls-tree(1) and git-mktree(1).


_GITLINK = b"160000"

Links = Mapping[str, Mapping[str, str]]
"""Path of a submodule -> (commit that is named there -> the one to name instead)."""


def retreed(git: Git, tree: str, links: Links, where: Mapping[str, str]) -> list[str]:
    """Makes a tree with other gitlinks.

    Args:
        where: names the quarantine, where new trees go.

    Returns:
        Object ids of all trees that were made, the whole last; [] when nothing is to be replaced.

    Refusals: harvest-sign.
    """
    changes: dict[bytes, bytes] = {}
    for path, oid in of_tree(git, tree, links, where).items():
        new = links.get(path, {}).get(oid)
        if new is not None:
            changes[os.fsencode(path)] = new.encode()
    if not changes:
        return []
    made = _made(git, tree, changes, where)
    _check(git, tree, made[-1], changes, where)
    return made


def _made(git: Git, tree: str, changes: Mapping[bytes, bytes], where: Mapping[str, str]) -> list[str]:
    """The trees of all directories that lead to a changed path, each behind those in it: they may be thousands deep."""
    new = dict(changes)
    made: list[str] = []
    # By depth, the innermost first: held together, what leads to a path may take a thousand times its length.
    waiting: defaultdict[int, set[bytes]] = defaultdict(set)
    for path in changes:
        waiting[path.count(b"/")].add(path.rpartition(b"/")[0])
    while waiting:
        depth = max(waiting)
        directory = waiting[depth].pop()
        if not waiting[depth]:
            del waiting[depth]
        if depth:
            waiting[depth - 1].add(directory.rpartition(b"/")[0])
        lines: list[bytes] = []
        listing = git.run("ls-tree", "-z", "--full-tree", f"{tree}:{os.fsdecode(directory)}", environment=where).out
        for entry in filter(None, listing.split(b"\0")):
            info, _, name = entry.partition(b"\t")
            mode, kind, oid = info.split(b" ")
            path = b"%s/%s" % (directory, name) if directory else name
            lines.append(b"%s %s %s\t%s\0" % (mode, kind, new.pop(path, oid), name))
        new[directory] = git.run("mktree", "-z", input=b"".join(lines), environment=where).out.strip()
        made.append(new[directory].decode())
    return made


def _check(git: Git, old: str, new: str, changes: Mapping[bytes, bytes], where: Mapping[str, str]) -> None:
    differing = {
        one.path: one.new.encode() if one.old_mode == one.new_mode == _GITLINK else b""
        for one in git.differences(old, new, where)
    }
    if differing != changes:
        raise Refusal(
            "harvest-sign",
            f"the tree {old} cannot name signed commits of submodules, so nothing is harvested",
            context="git would rewrite more than that: it has entries that git does not write",
            hint="paddock worktree harvest --no-sign",
        )


PATIENCE = 600.0
"""Seconds for one commit: the user may be asked for a passphrase."""

_BATCH = 50
_IDENTITY = re.compile(rb"(.*) <([^<>\n]*)> (-?[0-9]+ [-+][0-9]{4})", re.DOTALL)
_ENCODING = re.compile(rb"[A-Za-z0-9._:-]+")
_SIGNATURES = (b"gpgsig", b"gpgsig-sha256")


class _Commit(NamedTuple):
    headers: tuple[tuple[bytes, bytes], ...]
    message: bytes

    def content(self) -> bytes:
        lines = [b"%s %s\n" % header for header in self.headers if header[0] not in _SIGNATURES]
        return b"".join((*lines, b"\n", self.message))

    def with_tree(self, tree: str) -> "_Commit":
        return self._replace(
            headers=tuple((name, tree.encode() if name == b"tree" else value) for name, value in self.headers)
        )

    def first(self, name: bytes) -> bytes:
        return next((value for header, value in self.headers if header == name), b"")


def sign(
    git: Git,
    quarantine: Quarantine,
    wanted: tuple[str, ...],
    known: Mapping[str, str],
    user: AsUser,
    step: Callable[[str], None],
    *,
    links: Links,
    others: frozenset[str],
) -> dict[str, str]:
    """Signs what is new of the history of `wanted`, into the quarantine.

    Args:
        quarantine: holds the commits, and gets the signed ones.
        wanted: object ids of commits.
        known: commits that have been signed already -> the signed ones, which exist.
        links: commits of submodules that stand for those that new commits name.
        others: commits that another repository of the worktree has signed: there is one that stands for each.

    Returns:
        Each new commit -> the signed one; known ones are not among them.

    Refusals: harvest-sign.
    """
    where = quarantine.environment
    listing = git.run("rev-list", "--topo-order", "--reverse", *wanted, "--not", "--all", environment=where).out
    new = [oid for oid in listing.decode().split() if oid not in known]
    if twice := next((oid for oid in new if oid in others), None):
        raise _refused(twice, "it is new in two repositories of the worktree, with a signature of its own in each")
    made: dict[str, str] = {}
    trees: list[str] = []
    for number, (oid, commit) in enumerate(_commits(git, where, new), 1):
        step(f"sign {number} of {len(new)}")
        if links and (renamed := retreed(git, commit.first(b"tree").decode(), links, where)):
            commit = commit.with_tree(renamed[-1])
            trees += renamed
        made[oid] = _signed(git, oid, commit, {**known, **made}, user, where)
    if made:
        oids = "".join(f"{oid}\n" for oid in dict.fromkeys((*made.values(), *trees))).encode()
        git.run("pack-objects", "-q", f"{quarantine.directory}/pack/pack", input=oids, environment=where)
    return made


def _commits(git: Git, where: Mapping[str, str], oids: list[str]) -> Iterator[tuple[str, _Commit]]:
    for at in range(0, len(oids), _BATCH):
        batch = oids[at : at + _BATCH]
        for oid, content in zip(batch, git.contents(batch, where), strict=True):
            yield oid, _parsed(content)


def _parsed(content: bytes) -> _Commit:
    head, _, message = content.partition(b"\n\n")
    headers: list[tuple[bytes, bytes]] = []
    for line in head.split(b"\n"):
        if line.startswith(b" ") and headers:
            headers[-1] = (headers[-1][0], headers[-1][1] + b"\n" + line)
        else:
            name, _, value = line.partition(b" ")
            headers.append((name, value))
    return _Commit(tuple(headers), message)


def _signed(
    git: Git, oid: str, commit: _Commit, known: Mapping[str, str], user: AsUser, where: Mapping[str, str]
) -> str:
    """Makes the signed counterpart of one commit; returns its object id."""

    def renewed(name: bytes, value: bytes) -> tuple[bytes, bytes]:
        return name, known.get(value.decode(), value.decode()).encode() if name == b"parent" else value

    wanted = commit._replace(headers=tuple(renewed(*header) for header in commit.headers))
    author, committer = (_identity(oid, wanted.first(name)) for name in (b"author", b"committer"))
    encoding = wanted.first(b"encoding") or b"UTF-8"
    if not _ENCODING.fullmatch(encoding):
        raise _refused(oid, f"its encoding is {encoding!r}")
    words = [*user.words, "-c", f"i18n.commitEncoding={encoding.decode()}", "commit-tree", _key(user)]
    for name, value in wanted.headers:
        words += ["-p", value.decode()] if name == b"parent" else []
    words.append(wanted.first(b"tree").decode())
    environment: dict[bytes, bytes] = {os.fsencode(key): os.fsencode(value) for key, value in user.environment.items()}
    environment |= {os.fsencode(key): os.fsencode(value) for key, value in where.items()}
    environment[b"GIT_NO_REPLACE_OBJECTS"] = b"1"
    for role, (person, mail, date) in ((b"AUTHOR", author), (b"COMMITTER", committer)):
        environment |= {b"GIT_%s_NAME" % role: person, b"GIT_%s_EMAIL" % role: mail, b"GIT_%s_DATE" % role: b"@" + date}
    try:
        done = subprocess.run(
            words, env=environment, cwd="/", input=wanted.message, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise _refused(oid, f"it was not signed within {PATIENCE:.0f} seconds") from None
    if done.returncode != 0:
        raise _refused(oid, in_rows(*done.stderr.decode(errors="replace").strip().splitlines()[-8:]))
    made = done.stdout.decode().strip()
    ((_, result),) = _commits(git, where, [made])
    if not any(result.first(name) for name in _SIGNATURES):
        raise _refused(oid, "git made a commit without a signature")
    if result.content() != wanted.content():
        raise _refused(oid, "git would rewrite more than the signature: it has headers or names git never writes")
    return made


def _key(user: AsUser) -> str:
    """The option that names the key. Without one git would take the committer's, who is whom the agent likes."""
    key = user.settings.get("user.signingkey", "")
    if key or user.settings.get("gpg.format", "openpgp") == "ssh":
        return f"-S{key}"
    name, mail = (
        os.environ.get(f"GIT_COMMITTER_{word.upper()}")
        or user.settings.get(f"committer.{word}")
        or user.settings.get(f"user.{word}", "")
        for word in ("name", "email")
    )
    mail = mail or user.environment.get("EMAIL", "")
    if not mail:
        raise Refusal(
            "harvest-sign",
            "there is no key to sign with, so nothing is harvested",
            context="neither user.signingKey nor user.email is set",
            hint="git config --global user.signingKey KEY",
        )
    return f"-S{name} <{mail}>"


def _identity(oid: str, value: bytes) -> tuple[bytes, bytes, bytes]:
    found = _IDENTITY.fullmatch(value)
    if found is None:
        raise _refused(oid, f"{value!r} is not an identity that git would write")
    return found[1], found[2], found[3]


def _refused(oid: str, why: str) -> Refusal:
    return Refusal(
        "harvest-sign",
        f"{oid} cannot be signed, so nothing is harvested",
        context=why,
        hint="git commit-tree -S, in a terminal, shows whether git itself can sign; or paddock worktree harvest "
        f"--no-sign; {KEPT}",
    )


# What stands for the agent's commits where a harvest signs: in the worktree's own repository and its submodules.
#
# Innermost first, because commits name those of the submodules in them.


class Signatures:
    """The agent's commits and the signed ones, of this harvest and of earlier ones.

    Args:
        wanted: whether new ones are to be made.
    """

    def __init__(self, directory: str, step: Callable[[str], None], *, wanted: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._step = step
        self._known = read_signed(directory)

    def standing(self, oid: str) -> str:
        """What stands for a commit of the agent's in the repository that it is for."""
        return self._known.get(oid, oid)

    def put(self, founds: Iterable[Found], gathered: Iterable[Found], worktree: str) -> None:
        """Puts signed commits in the place of the agent's in `gathered`, and makes them where they are wanted.

        Args:
            founds: all repositories of the worktree.
            gathered: those with something new; those around before those inside.

        Refusals: harvest-sign, and those of `as_user.prepare`.
        """
        if not (self._wanted or self._known):
            return
        have = {found.part.private: self._present(found) for found in founds}
        places = {found.part.path: found.part.private for found in founds}
        made: dict[str, str] = {}
        for found in reversed(tuple(gathered)):
            known = have[found.part.private]
            if self._wanted:
                new = self._made(found, known, have, places, worktree)
                made |= new
                known |= new
                found.links = tuple(known.get(oid, oid) for oid in found.links)
            found.signed = known.get(found.new, "")
            found.detached = known.get(found.detached, found.detached)
            found.extra = {name: known.get(oid, oid) for name, oid in found.extra.items()}
        if made:
            self._known |= made
            write_signed(self._directory, self._known)

    def _made(
        self,
        found: Found,
        known: Mapping[str, str],
        have: Mapping[str, Mapping[str, str]],
        places: Mapping[str, str],
        worktree: str,
    ) -> dict[str, str]:
        part = found.part
        assert found.quarantine is not None
        elsewhere = {old: new for inside, pairs in have.items() if inside != part.private for old, new in pairs.items()}
        links: dict[str, Mapping[str, str]] = {}
        for where, oids in found.gitlinks.items():
            inside = places.get(os.path.normpath(f"{part.path}/{where}"))
            pairs = elsewhere if inside is None else have[inside]  # a submodule that was moved or added there
            if renamed := {oid: pairs[oid] for oid in oids if oid in pairs}:
                links[where] = renamed
        user = as_user.prepare(part.git_dir, part.common_dir, worktree)
        others = frozenset(elsewhere) - known.keys()
        return sign(found.git, found.quarantine, found.work, known, user, self._step, links=links, others=others)

    def _present(self, found: Found) -> dict[str, str]:
        gone = frozenset(crossing.missing(found.git, tuple(self._known.values()), found.quarantine))
        return {old: new for old, new in self._known.items() if new not in gone}
