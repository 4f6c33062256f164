"""A real git repository with two linked worktrees and a submodule, owned by whom the test acts as."""

from dataclasses import dataclass
from pathlib import Path

from tests.support import templates
from tests.support.ground import Entry, Ground
from tests.support.identity import Who

# A repository with submodules two levels deep, checked out: `lib`, and `lib/inner` in it; and `doc` beside them.

LINES = "".join(f"{number}\n" for number in range(20))


def changed(*numbers: int) -> str:
    """Twenty lines, of which these are changed."""
    return "".join(f"changed {number}\n" if number in numbers else f"{number}\n" for number in range(20))


def link(commit: str) -> Entry:
    """A gitlink."""
    return Entry("160000", commit)


def modules(**paths: str) -> str:
    """A `.gitmodules` file: name=path; the URL is `../NAME-up`."""
    return "".join(f'[submodule "{name}"]\n\tpath = {path}\n\turl = ../{name}-up\n' for name, path in paths.items())


class Nested:
    """The repository `root/repo` and its submodules.

    Args:
        root: an empty directory; the upstreams lie there too.
    """

    def __init__(self, root: Path) -> None:
        self.main = Ground(root / "repo", None)
        self.lib = Ground(self.main.root / "lib", None)
        self.inner = Ground(self.main.root / "lib/inner", None)
        self.doc = Ground(self.main.root / "doc", None)

    @classmethod
    def make(cls, root: Path) -> None:
        """Makes it (about a second)."""
        inner = Ground(root / "inner-up", {"i": LINES})
        lib = Ground(
            root / "lib-up", {"l": LINES, ".gitmodules": modules(inner="inner"), "inner": link(inner.id("main"))}
        )
        doc = Ground(root / "doc-up", {"d": LINES})
        main = Ground(
            root / "repo",
            {"m": LINES, ".gitmodules": modules(lib="lib", doc="doc"), "lib": link(lib.id("main")),
             "doc": link(doc.id("main"))},
        )  # fmt: skip
        main.git("submodule", "--quiet", "update", "--init", "--recursive")

    @classmethod
    def copied(cls, root: Path) -> "Nested":
        """What `make` makes, as a copy of what it has made once."""
        templates.repeat(cls.make, root)
        return cls(root)

    def populate(self, worktree: Path) -> None:
        """Checks out all submodules of a worktree."""
        self.main.git("submodule", "--quiet", "update", "--init", "--recursive", at=worktree)

    def child(
        self,
        name: str,
        *,
        lib: str | None = None,
        inner: str | None = None,
        doc: str | None = None,
        main: str | None = None,
    ) -> None:
        """A branch of the main repository whose submodules have work of the same branch name.

        Args:
            name: of the branches.
            lib: new content of `l` in `lib`; inner, doc and main likewise. None for no change there.
        """
        tree: dict[str, str | bytes | Entry] = {}
        in_lib: dict[str, str | bytes | Entry] = {}
        if inner is not None:
            in_lib["inner"] = link(self.inner.branch(name, {"i": inner}, start=self.inner.id("HEAD")))
        if lib is not None:
            in_lib["l"] = lib
        if in_lib:
            tree["lib"] = link(self.lib.branch(name, in_lib, start=self.lib.id("HEAD")))
        if doc is not None:
            tree["doc"] = link(self.doc.branch(name, {"d": doc}, start=self.doc.id("HEAD")))
        if main is not None:
            tree["m"] = main
        self.main.branch(name, tree)

    def heads(self) -> dict[str, str]:
        """What is checked out in the main repository and its submodules."""
        grounds = {"": self.main, "lib": self.lib, "lib/inner": self.inner, "doc": self.doc}
        return {name: ground.id("HEAD") for name, ground in grounds.items()}

    def status(self) -> list[str]:
        """`git status` of everything."""
        return [line for each in (self.main, self.lib, self.inner, self.doc) for line in each.status()]

    def read(self, path: str) -> str:
        """Content of a file in the checkout."""
        return (self.main.root / path).read_text()


SUBMODULE = "library"

# Every worktree has its own checkout of the submodule. `protocol.file` is off by default since git 2.38.1.
_SCRIPT = """
git() { command git -c init.defaultBranch=main -c protocol.file.allow=always "$@"; }
identify() { git -C "$1" config user.name Tester; git -C "$1" config user.email tester@example.invalid; }

git init -q upstream
identify upstream
echo 'library = True' > upstream/library.py
git -C upstream add .
git -C upstream commit -q -m 'upstream: First.'

git init -q main
identify main
mkdir main/src
echo 'print("hello")' > main/src/hello.py
echo 'A repository for tests.' > main/README.md
git -C main submodule --quiet add ../upstream library
git -C main add .
git -C main commit -q -m 'main: First.'
for name in one two; do
    git -C main worktree add -q -b "$name" "$PWD/$name"
    git -C "$name" submodule --quiet update --init
done
"""


@dataclass(frozen=True)
class Repo:
    """Where the parts are.

    Args:
        who: owner of all files.
        main: the main checkout; its git directory is ``main/.git``.
        one: linked worktree on the branch ``one``.
        two: linked worktree on the branch ``two``.
        upstream: the repository that the submodule ``library`` was cloned from.
    """

    who: Who
    main: Path
    one: Path
    two: Path
    upstream: Path

    def git(self, *words: str, at: Path | None = None) -> str:
        """Runs git in `at` (the main checkout by default) as the owner and returns stdout without its last newline.

        Raises:
            subprocess.CalledProcessError: git failed; the error holds its stderr.
        """
        ended = self.who.run(["git", *words], cwd=at or self.main)
        ended.check_returncode()
        return ended.stdout.removesuffix("\n")


def make(who: Who, place: Path) -> Repo:
    """Makes the repository below `place`, which `who` owns."""
    templates.grow(who, place, _SCRIPT)
    return Repo(who, place / "main", place / "one", place / "two", place / "upstream")
