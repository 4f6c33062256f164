"""A private git directory as a session leaves it, planted by hand, and harvests of it in a process of their own."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launcher.vcs.private import record
from tests.support import warmed
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.repository import Repo

# Attacks on a harvest: what an agent can leave in its private git directory, and what must come of it.
#
# Each is a script of sh(1) that runs as the agent, with GIT_DIR (also `$G`) and GIT_WORK_TREE set. `$CANARY` is a
# directory outside: a programme that is executed by anybody leaves a file there. `$MAIN` is the main repository.

_HELPERS = r"""
set -eu
G=$GIT_DIR
zeros=$(printf %040d 5)
evil() { printf '#!/bin/sh\necho "$0 $*" >>"%s/%s"\ncat 2>/dev/null\n' "$CANARY" "$1" >"$2"; chmod +x "$2"; }
work() { echo "$1 $$" >work; git add work; git commit -qm "agent: $1."; }
pointer() {
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5\n' 1 >big; git add big; work pointer
}
raw() { git hash-object -t "$1" -w --stdin --literally; }
set_one() { git update-ref refs/heads/one "$1"; }
on() { set_one "$(git commit-tree -p refs/heads/one -m 'agent: Crafted.' "$1")"; }
at() { echo "$G/objects/$(echo "$1" | cut -c1-2)/$(echo "$1" | cut -c3-)"; }
link() { git update-index --add --cacheinfo "160000,$1,$2"; }
bin() { printf "\\$(printf %03o "0x$(echo "$1" | cut -c"$2"-"$(($2 + 1))")")"; }
oid() { i=1; while [ $i -lt 40 ]; do bin "$1" $i; i=$((i + 2)); done; }
entry() { printf '%s %s\000' "$1" "$2"; oid "$3"; }
commit() {
    printf 'tree %s\nparent %s\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n' "$1" "$2" | raw commit
}
"""


class Attack(NamedTuple):
    """One attack.

    Attributes:
        name: what is attacked.
        script: as the agent.
        outcomes: states of the harvest's result, or references that it may refuse with.
        said: must be in the refusal or the notes.
    """

    name: str
    script: str
    outcomes: tuple[str, ...]
    said: str = ""


def script(attack: Attack) -> str:
    """The attack with what all of them use in front."""
    return f"{_HELPERS}\n{attack.script}\n"


TAKEN = ("harvested",)
NOTHING = ("nothing",)
UNREADABLE = ("harvest-unreadable", "harvest-incomplete", "harvest-malformed")
MALFORMED = ("harvest-malformed",)
REPLACED = ("harvest-git-replaced",)
GITLINK = ("harvest-gitlink",)

_DRIVERS = """
for key in core.fsmonitor core.sshCommand core.pager core.editor core.gitProxy core.alternateRefsCommand core.askPass \
    credential.helper gpg.program uploadpack.packObjectsHook pager.log pager.rev-list alias.pack-objects alias.status \
    filter.x.clean filter.x.smudge filter.x.process diff.x.textconv diff.x.command diff.external merge.x.driver \
    remote.origin.uploadpack
do git config "$key" "$G/evil"; done
git config core.hooksPath "$G"; cp "$G/evil" "$G/reference-transaction"
git config extensions.partialClone origin; git config remote.origin.promisor true
git config remote.origin.url "ext::$G/evil"; git config protocol.ext.allow always
"""
_FORMAT = r"printf '[core]\n\trepositoryformatversion = 99\n[extensions]\n\tnonsense = 1\n' >$G/config"
_EMBEDDED = 'git init -q inner; evil inner inner/evil; git -C inner config core.fsmonitor "$PWD/inner/evil"'
_HOOKS = """
work x
for hook in post-update reference-transaction post-checkout pre-push post-index-change update pre-auto-gc post-commit
do evil hook "$G/hooks/$hook"; done
"""

EXECUTION = (
    Attack("hooks", _HOOKS, TAKEN),
    Attack("configuration", f'work x; evil config "$G/evil"; {_DRIVERS}', TAKEN),
    Attack(
        "includes",
        r"""work x; evil include "$G/evil"; printf '[core]\n\tfsmonitor = %s\n' "$G/evil" >"$G/more"
            git config include.path more; git config includeIf.onbranch:one.path more""",
        TAKEN,
    ),
    Attack("a configuration that no git reads", 'work x; echo "[" >"$G/config"', TAKEN),
    Attack("a format that no git knows", f"work x; {_FORMAT}", TAKEN),
    Attack(
        "attributes that ask for the user's own drivers",
        "echo '* filter=user diff=user merge=user' >.gitattributes; git add .gitattributes; work x",
        TAKEN,
    ),
    Attack("a FIFO as attributes", "work x; rm -f .gitattributes; mkfifo .gitattributes src/.gitattributes", TAKEN),
    Attack("an embedded repository with a monitor", f"work x; {_EMBEDDED}", TAKEN),
    Attack("an embedded repository as a submodule", f"{_EMBEDDED}; link $zeros inner; git commit -qm x", GITLINK),
)

PLACES = (
    Attack(
        "alternates that name another's objects",
        """foreign=$CANARY/../foreign/.git; echo "$foreign/objects" >>"$G/objects/info/alternates"
           on "$(git --git-dir="$foreign" rev-parse 'HEAD^{tree}')" """,
        UNREADABLE,
    ),
    Attack("alternates that lead nowhere", 'work x; echo /nowhere >"$G/objects/info/alternates"', TAKEN),
    Attack("commondir", 'work x; for f in commondir gitdir; do echo "$MAIN/.git" >"$G/$f"; done', TAKEN),
    Attack("objects as a link", 'work x; mv "$G/objects" "$G/o"; ln -s "$MAIN/.git/objects" "$G/objects"', REPLACED),
    Attack("packs as a link", 'work x; rmdir "$G/objects/pack"; ln -s / "$G/objects/pack"', REPLACED),
    Attack("an object as a FIFO", 'work x; o=$(at $(git rev-parse HEAD:work)); rm -f "$o"; mkfifo "$o"', REPLACED),
    Attack(
        "packs kept by what is no file",
        """work x; git repack -adq; for p in "$G"/objects/pack/*.pack; do ln -s / "${p%.pack}.keep"; done
           mkdir "$G/objects/pack/a.keep"; ln -s / "$G/objects/pack/a.keep/a"; mkfifo "$G/objects/pack/b.keep"
           ln -s "$MAIN/.git/config" "$G/objects/pack/c.keep" """,
        TAKEN,
    ),
    Attack("a pack as a link", 'work x; ln -s / "$G/objects/pack/a.idx"', REPLACED, "objects/pack/a.idx; paddock"),
    Attack("no git directory at all", 'work x; rm -r "$G"', REPLACED),
    Attack("a file in its place", 'work x; rm -r "$G"; echo gitdir: "$MAIN/.git" >"$G"', REPLACED),
    Attack("HEAD as a FIFO", 'work x; rm "$G/HEAD"; mkfifo "$G/HEAD"', TAKEN),
    Attack("HEAD as a link", 'work x; ln -sf /etc/passwd "$G/HEAD"', TAKEN),
    Attack("HEAD without end", 'work x; truncate -s 1T "$G/HEAD"', ("harvest-refs-too-large",)),
    Attack("HEAD on another worktree's", 'work x; echo "ref: worktrees/two/HEAD" >"$G/HEAD"', TAKEN),
    Attack(
        "refs as a link",
        'work x; rm -r "$G/refs"; ln -s "$MAIN/.git/refs" "$G/refs"',
        ("harvest-ref-unreadable",),
        "something else",
    ),
    Attack(
        "the own branch as a link",
        'ln -sf "$MAIN/.git/refs/heads/two" "$G/refs/heads/one"',
        ("harvest-ref-unreadable",),
        "something else",
    ),
    Attack(
        "the own branch as a FIFO",
        'rm "$G/refs/heads/one"; mkfifo "$G/refs/heads/one"',
        ("harvest-ref-unreadable",),
        "something else",
    ),
    Attack("the own branch deleted", "work x; git checkout -q --detach; git branch -q -D one", ("kept",), "detached"),
    Attack("others' branches moved", "work x; for b in two main; do git update-ref refs/heads/$b HEAD; done", TAKEN),
    Attack(
        "branches by names that lead out",
        r"""work x; for name in ../../config a..b -x HEAD.lock "$(printf '\033[31mred')"
            do echo "$(git rev-parse HEAD) refs/heads/$name" >>"$G/packed-refs"; done""",
        TAKEN,
    ),
    Attack("packed refs as a FIFO", 'work x; mkfifo "$G/packed-refs"', TAKEN),
    Attack("packed refs without end", 'work x; truncate -s 1T "$G/packed-refs"', TAKEN, "not harvested"),
    Attack(
        "a million refs",
        'work x; seq -f "$(git rev-parse HEAD) refs/heads/b%.0f" 1000000 >"$G/packed-refs"',
        TAKEN,
        "not harvested",
    ),
    Attack(
        "replacements and grafts",
        """work x; git replace HEAD^ "$(git commit-tree -m fake 'HEAD^{tree}')"
           for file in shallow info/grafts; do git rev-parse HEAD >"$G/$file"; done""",
        TAKEN,
    ),
)

OBJECTS = (
    Attack("a deleted blob", 'work x; rm -f "$(at $(git rev-parse HEAD:work))"', UNREADABLE),
    Attack(
        "a truncated blob",
        'work x; o=$(at $(git rev-parse HEAD:work)); chmod +w "$o"; truncate -s 5 "$o"',
        UNREADABLE,
    ),
    Attack(
        "a blob overwritten by another",
        """work x; o=$(at $(git rev-parse HEAD:work)); chmod +w "$o"
           n=$(echo other | git hash-object -w --stdin); cat "$(at $n)" >"$o" """,
        UNREADABLE,
    ),
    Attack(
        "a base commit overwritten by another",
        """work x; o=$(at $(git rev-parse HEAD^)); mkdir -p "$(dirname "$o")"
           cp "$(at $(git rev-parse HEAD))" "$o" """,
        (*TAKEN, *UNREADABLE),
    ),
    Attack("a tree that is nowhere", 'set_one "$(commit $zeros "$(git rev-parse HEAD)")"', UNREADABLE),
    Attack("a parent that is nowhere", """set_one "$(commit "$(git rev-parse 'HEAD^{tree}')" $zeros)" """, UNREADABLE),
    Attack(
        "a blob as the own branch",
        'o=$(git rev-parse HEAD:README.md); echo $o >"$G/refs/heads/one"',
        ("git-failed", *UNREADABLE),
    ),
    Attack("a commit that is nowhere", 'echo $zeros >"$G/refs/heads/one"', UNREADABLE),
    *(
        Attack(
            f"{what} in a tree",
            f"""o=$(echo evil | git hash-object -w --stdin); on "$(entry {mode} '{name}' $o | raw tree)" """,
            MALFORMED,
        )
        for what, mode, name in (
            (".git", 100644, ".git"),
            ("..", 100644, ".."),
            (".git as HFS reads it", 100644, ".g\u200cit"),
            (".git as NTFS reads it", 100644, "git~1"),
            ("a slash", 100644, ".git/hooks"),
            (".gitmodules as a link", 120000, ".gitmodules"),
        )
    ),
    *(
        Attack(
            f"a mode that git never writes: {mode}",
            f"""on "$(entry {mode} src "$(git rev-parse {of})" | raw tree)" """,
            MALFORMED,
            f"the mode {mode}",
        )
        for mode, of in (
            ("40755", "HEAD:src"),
            ("20000040000", "HEAD:src"),
            ("100777", "HEAD:README.md"),
            ("120777", "HEAD:README.md"),
            ("160755", "HEAD"),
            ("1", "HEAD"),
        )
    ),
    *(
        Attack(
            f".gitmodules with {what}",
            f"""printf '[submodule "{name}"]\\n\\tpath = {path}\\n\\turl = {url}\\n{more}' >.gitmodules
                o=$(git hash-object -w .gitmodules); on "$(entry 100644 .gitmodules $o | raw tree)" """,
            MALFORMED,
        )
        for what, name, path, url, more in (
            ("a name that leads out", "../../x", "x", "./x", ""),
            ("a path that is an option", "x", "-x", "./x", ""),
            ("a URL that is an option", "x", "x", "-u./evil", ""),
            ("a command", "x", "x", "./x", "\\tupdate = !evil\\n"),
        )
    ),
    Attack("a gitlink that nobody knows", "link $zeros unknown; git commit -qm x", GITLINK),
    Attack("a gitlink to nowhere in a known submodule", "link $zeros library; git commit -qm x", GITLINK),
    Attack(
        "a gitlink to nowhere in an earlier commit",
        """o=$(git rev-parse HEAD:library); link $zeros library; git commit -qm x; link $o library; git commit -qm y""",
        GITLINK,
    ),
    Attack(
        "an LFS object with another's name",
        """pointer; mkdir -p "$G/lfs/objects/00/00"; echo evil >"$G/lfs/objects/00/00/$(printf %064d 1)" """,
        ("harvest-lfs",),
    ),
    Attack(
        "an LFS object that is a link",
        """pointer; mkdir -p "$G/lfs/objects/00/00"; ln -s /etc/passwd "$G/lfs/objects/00/00/$(printf %064d 1)" """,
        ("harvest-lfs",),
    ),
)

ALL = (*EXECUTION, *PLACES, *OBJECTS)


PROGRAM = Path(__file__).with_name("harvesting.py")

_IDENTITY = ("-c", "user.name=Agent", "-c", "user.email=agent@example.invalid", "-c", "protocol.file.allow=always")


@dataclass(frozen=True)
class Planted:
    """The private git directory of one worktree.

    Args:
        repo: the main repository and its worktrees.
        worktree: the one that is worked in.
        directory: of Paddock's: record, lock, git.
        installed: the sources under test.
    """

    repo: Repo
    worktree: Path
    directory: Path
    installed: Installed

    @property
    def who(self) -> Who:
        """Whose all of it is."""
        return self.repo.who

    @property
    def git_dir(self) -> Path:
        """What the agent writes."""
        return self.directory / record.GIT

    def agent(self, *words: str, at: str = "", check: bool = True, stdin: str = "") -> str:
        """Runs git as the agent would: in the worktree (or the submodule `at`) on the private git directory."""
        git_dir = self.git_dir / f"modules/{at}" if at else self.git_dir
        ended = self.who.run(
            ["git", f"--git-dir={git_dir}", f"--work-tree={self.worktree / at}", *_IDENTITY, *words],
            cwd=self.worktree / at,
            stdin=stdin,
        )
        if check:
            assert ended.returncode == 0, ended.stderr
        return ended.stdout.removesuffix("\n")

    def commit(self, name: str, content: str, *, at: str = "", link: str = "") -> str:
        """Commits one file as the agent; returns the commit. With `link` the commit names that one of the submodule."""
        path = self.worktree / at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.who.give(path)
        self.agent("add", name, at=at)
        if link:
            # The `.git` of the submodule on the disk is the host's, so git must be told.
            self.agent("update-index", "--cacheinfo", f"160000,{link},library")
        self.agent("commit", "-q", "-m", f"agent: {name}.", at=at)
        return self.agent("rev-parse", "HEAD", at=at)

    def harvest(self, **spec: object) -> dict[str, Any]:
        """The result of a harvest, or the Refusal as `as_dict` gives it. See `harvesting.py` for what `spec` holds."""
        ended = self.start(**spec)
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer

    def start(self, **spec: object) -> "subprocess.CompletedProcess[str]":
        """Runs a harvest to its end, or to its kill."""
        env, words = spec.get("environment"), (json.dumps(spec), self.directory)
        env = env if isinstance(env, dict) else None
        return warmed.run(self.who, self.installed.python, words, env=env, program=PROGRAM.read_text())

    def host(self, *words: str, at: Path | None = None) -> str:
        """Runs git as the user, outside."""
        return self.repo.git(*words, at=at or self.worktree)


def plant(repo: Repo, worktree: Path, installed: Installed, place: Path, *, submodule: bool = False) -> Planted:
    """Makes a private git directory for a worktree of `repo` (and for its submodule)."""
    directory = place / "state" / worktree.name
    (directory / record.GIT).mkdir(parents=True)
    made = Planted(repo, worktree, directory, installed)
    repo.who.give(place / "state")
    said = repo.git("rev-parse", "--absolute-git-dir", "--git-common-dir", at=worktree).split("\n")
    git_dir, common = Path(said[0]), Path(os.path.normpath(worktree / said[1]))
    found = [_repository(made, "", worktree, git_dir, common)]
    if submodule:
        inner = Path(repo.git("rev-parse", "--absolute-git-dir", at=worktree / "library"))
        found.append(_repository(made, "library", worktree / "library", inner, inner))
    kind = "main" if git_dir == common else "linked"
    record.write(str(directory), record.Record(str(worktree), kind, record.MOUNTED, tuple(found)))
    repo.who.give(place / "state")
    return made


_PRIVATE = r"""
base=$(git rev-parse HEAD); branch=$(git symbolic-ref -q HEAD || :); printf '%s\n' "$base" "$branch"
git update-ref "$3" "$base"
git init -q --bare "$1"; cd "$1"
printf '%s/objects\n' "$2" >objects/info/alternates
sed -i 's/bare = true/bare = false/' config; printf '[gc]\n\tauto = 0\n' >>config
printf '%s\n' "${branch:+ref: }${branch:-$base}" >HEAD
[ -z "$branch" ] || { mkdir -p "$(dirname "$branch")"; printf '%s\n' "$base" >"$branch"; }
GIT_DIR=. git read-tree "$base"
"""


def _repository(made: Planted, name: str, path: Path, git_dir: Path, common: Path) -> record.Repository:
    repo = made.repo
    private = f"modules/{name}" if name else ""
    here = made.git_dir / private
    made_of = (here, common, record.pin(made.directory.name))
    ended = repo.who.run(["sh", "-euc", _PRIVATE, "sh", *made_of], cwd=path)
    assert ended.returncode == 0, ended.stderr
    base, branch = ended.stdout.split("\n")[0], ended.stdout.split("\n")[1] or None
    stores = (f"{common}/objects",)
    return record.Repository(name, str(path), str(git_dir), str(common), private, branch, base, "sha1", stores)


def tree_state(directory: Path, *, ignore: tuple[str, ...] = ()) -> dict[str, tuple[object, ...]]:
    """Everything below `directory`, bit for bit (mode, content, time); names that begin with `ignore` left out."""
    found: dict[str, tuple[object, ...]] = {}
    for here, names, files in os.walk(directory):
        for name in (*names, *files):
            path = Path(here, name)
            relative = str(path.relative_to(directory))
            if relative.startswith(ignore):
                continue
            entry = path.lstat()
            content: object = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[relative] = (entry.st_mode, entry.st_ino, content, *(
                () if path.is_dir() else (entry.st_size, entry.st_mtime_ns)))  # fmt: skip
    return found
