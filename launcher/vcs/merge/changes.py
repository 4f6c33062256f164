"""What separates the children from the trunk, file by file: asked of git once for all of them."""

from typing import NamedTuple

from launcher.vcs.merge.store import Store

_GITLINK = b"160000"


class Change(NamedTuple):
    """How one child's tree differs from the trunk's, before anything is merged.

    Attributes:
        paths: number of paths that differ.
        attributes: a `.gitattributes` file differs.
        submodules: a gitlink or a `.gitmodules` file differs.
    """

    paths: int
    attributes: bool
    submodules: bool


_SAME = Change(0, False, False)


def changes(store: Store, base: str, commits: list[str]) -> list[Change]:
    """Compares every commit of `commits` with `base` (two processes in all).

    Raises:
        GitFailed: an object is missing.
    """
    base_tree, *trees = store.trees([base, *commits])
    pairs = list(dict.fromkeys(tree for tree in trees if tree != base_tree))
    found = {base_tree: _SAME}
    if pairs:
        lines = "".join(f"{base_tree} {tree}\n" for tree in pairs).encode()
        words = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev")
        output = store.git.run(*words, input=lines).out
        found |= _parsed(output, base_tree, pairs)
    return [found[tree] for tree in trees]


def _parsed(output: bytes, base: str, trees: list[str]) -> dict[str, Change]:
    """Each pair's line, then `:MODES IDS STATUS NUL PATH NUL` for every path; a pair without differences has no line.

    Read strictly from the front: a path may hold anything but NUL, lines that look like the next pair's too.
    """
    known = {f"{base} {tree}".encode(): tree for tree in trees}
    found = dict.fromkeys(trees, _SAME)
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        tree = known[output[at:end]]
        at = end + 1
        count, attributes, submodules = 0, False, False
        while output.startswith(b":", at):
            info_end = output.index(b"\0", at)
            path_end = output.index(b"\0", info_end + 1)
            info, path = output[at:info_end], output[info_end + 1 : path_end]
            at = path_end + 1
            count += 1
            attributes |= path.rpartition(b"/")[2] == b".gitattributes"
            submodules |= path == b".gitmodules" or _GITLINK in info[1:14].split(b" ")
        found[tree] = Change(count, attributes, submodules)
    return found
