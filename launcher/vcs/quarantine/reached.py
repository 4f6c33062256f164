"""Whether a commit of an agent's has arrived: the trusted repository is asked, the private git directory never.

Not for the launch path: it starts git.
"""

from collections.abc import Collection, Iterable

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
    found = _found(git, tips, refs)
    if oid in found:
        return True
    # A commit that is not there is an error of git-rev-list(1), whose status is 128.
    asked = "".join((f"{oid}\n", *(f"^{tip}\n" for tip in found))).encode()
    listed = git.run("rev-list", "--max-count=1", "--stdin", input=asked, ok=(0, 128))
    return listed.status == 0 and not listed.out.strip()


def unreached(git: Git, oids: Collection[str], *, tips: Iterable[str] = (), refs: Iterable[str] = ()) -> set[str]:
    """Those of `oids` that are not `reached`, asked by as many processes for an agent's thousands as for one.

    Args:
        git: as there.
        oids: as there; tags count as what they are of.
        tips: as there.
        refs: as there.

    Raises:
        GitFailed: git failed.
    """
    if not oids:
        return set()
    found = _found(git, tips, refs)
    peeled: dict[str, str] = {}
    gone: set[str] = set()
    asked = [oid for oid in oids if oid not in found]
    if not asked:
        return set()
    lines = git.run("cat-file", "--batch-check", input="".join(f"{oid}^{{}}\n" for oid in asked).encode()).out
    for oid, line in zip(asked, lines.decode().splitlines(), strict=True):
        name, _, facts = line.partition(" ")
        if facts == "missing":
            gone.add(oid)
        elif facts.startswith("commit "):
            peeled[oid] = name
    wanted = "".join((*(f"{name}\n" for name in peeled.values()), *(f"^{tip}\n" for tip in found))).encode()
    beyond = set(git.run("rev-list", "--stdin", input=wanted).out.decode().split()) if peeled else set()
    return gone | {oid for oid, name in peeled.items() if name in beyond}


def _found(git: Git, tips: Iterable[str], refs: Iterable[str]) -> set[str]:
    names = tuple(refs)
    listed = git.text("for-each-ref", "--format=%(objectname)", *names).split() if names else []
    return {*tips, *listed}
