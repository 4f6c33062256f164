"""Which commits the trunk already holds: asked of git once for all children, then answered without a process each."""

from collections.abc import Iterable

from launcher.vcs.git import Git


class History:
    """The commits that are reachable from some tips and not from the base, as a graph.

    Args:
        base: the trunk's commit before the run.
        parents: per commit outside of the base's history, its parents.
    """

    def __init__(self, base: str, parents: dict[str, tuple[str, ...]]) -> None:
        self._base = base
        self._parents = parents
        self._held: set[str] = set()

    @classmethod
    def of(cls, git: Git, base: str, tips: Iterable[str]) -> "History":
        """Reads the graph; one process whatever the number of tips.

        Raises:
            GitFailed: an object is missing.
        """
        lines = "".join(f"{tip}\n" for tip in dict.fromkeys(tips)) + f"^{base}\n"
        output = git.run("rev-list", "--parents", "--stdin", input=lines.encode()).out.decode()
        graph = {}
        for line in output.splitlines():
            commit, *parents = line.split(" ")
            graph[commit] = tuple(parents)
        return cls(base, graph)

    def contains(self, commit: str) -> bool:
        """Whether the trunk holds `commit`, with all that has been added so far."""
        return commit not in self._parents or commit in self._held

    def extends(self, commit: str) -> bool:
        """Whether `commit` holds the base, so that the trunk as it was could simply move forward to it."""
        return any(self._base in self._parents[each] for each in self._ancestors(commit)) or commit == self._base

    def add(self, commit: str) -> None:
        """The trunk now holds `commit` and all before it."""
        self._held.update(self._ancestors(commit))

    def _ancestors(self, commit: str) -> set[str]:
        """`commit` and its ancestors outside of the base and of what was added."""
        found: set[str] = set()
        todo = [commit]
        while todo:
            each = todo.pop()
            if each in self._parents and each not in found and each not in self._held:
                found.add(each)
                todo.extend(self._parents[each])
        return found
