"""A real git repository with two linked worktrees and a submodule, owned by whom the test acts as."""

from dataclasses import dataclass
from pathlib import Path

from tests.support import templates
from tests.support.identity import Who

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
