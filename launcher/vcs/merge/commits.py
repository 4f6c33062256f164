"""Writing many commits with one git process in place of one each: `git hash-object` with paths on standard input.

It checks each commit, writes it, and prints its id before it reads on. The content is made here, byte for byte as
git-commit-tree(1) would; where that is not sure (another encoding, text that git would mend), it is left to git.
"""

import subprocess
from collections.abc import Mapping, Sequence

from launcher.vcs import answers
from launcher.vcs.git import Git, GitFailed, kill

_WORDS = ("hash-object", "-t", "commit", "-w", "--no-filters", "--stdin-paths")


class CommitWriter:
    """Writes commits into one repository. `close` ends its process.

    Args:
        git: on the repository.
        who: author and committer, as variables, and where new objects go.
        path: of a private file that does not exist; its name has no newline.
    """

    def __init__(self, git: Git, who: Mapping[str, str], path: str) -> None:
        """Asks git how it would name author and committer."""
        self._git = git
        self._path = path
        names = [
            git.run("var", f"GIT_{role}_IDENT", environment=who).out.rstrip(b"\n") for role in ("AUTHOR", "COMMITTER")
        ]
        self._lines = b"author %s\ncommitter %s\n" % tuple(names)
        # 1: not set
        self._sure = not git.run("config", "--get", "i18n.commitEncoding", ok=(0, 1)).out and _plain(self._lines)
        self._process = git.start(
            *_WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, environment=who
        )

    def write(self, tree: str, parents: Sequence[str], message: bytes) -> str | None:
        """The id of a new commit; None where git itself has to make it.

        Raises:
            GitFailed: it could not be written.
        """
        if not self._sure or not _plain(message) or not message.endswith(b"\n") or len(set(parents)) < len(parents):
            return None
        head = b"".join(b"parent %s\n" % parent.encode() for parent in parents)
        with open(self._path, "wb") as file:
            file.write(b"tree %s\n%s%s\n%s" % (tree.encode(), head, self._lines, message))
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{self._path}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its standard error says why
        answer = answers.line(self._process)
        if answer is None or len(answer) != len(tree):
            raise self._failed("wrote no commit" if answer is not None else "does not answer")
        return answer

    def close(self) -> None:
        """Ends the process, which has nothing left to do."""
        kill(self._process)

    def _failed(self, why: str) -> GitFailed:
        assert self._process.stderr is not None
        self._process.kill()
        said = self._process.stderr.read(1 << 16)
        return GitFailed("git-failed", _WORDS, self._git.git_dir, why, status=None, err=said)


def _plain(text: bytes) -> bool:
    """Whether git takes the text for UTF-8 as it stands, and all of it (a NUL would end it)."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return False
    # What Unicode calls noncharacters is no UTF-8 to git.
    return not any(char == "\0" or ord(char) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(char) <= 0xFDEF for char in decoded)
