"""Whether a commit of an agent's has arrived: the trusted repository is asked, the private git directory never.

Not for the launch path: it starts git.
"""

from collections.abc import Iterable

from launcher.vcs.git import Git


def reached(git: Git, oid: str, *, tips: Iterable[str] = (), refs: Iterable[str] = ()) -> bool:
    """Whether the trusted repository has a commit, and one of its own tips is the commit or a descendant.

    Args:
        git: on the trusted repository.
        oid: object id that an agent's ref holds.
        tips: object ids.
        refs: full names, or what names begin with up to a slash (git-for-each-ref(1)); absent ones count for nothing.

    Raises:
        GitFailed: git failed for another reason than a missing commit.
    """
    names = tuple(refs)
    found = list(tips)
    if names:
        found += git.text("for-each-ref", "--format=%(objectname)", *names).split()
    if oid in found:
        return True
    # A commit that is not there is an error of git-rev-list(1), whose status is 128.
    asked = "".join((f"{oid}\n", *(f"^{tip}\n" for tip in found))).encode()
    listed = git.run("rev-list", "--max-count=1", "--stdin", input=asked, ok=(0, 128))
    return listed.status == 0 and not listed.out.strip()
