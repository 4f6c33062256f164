"""What an agent's few objects describe is bounded before it is held: lengths of paths, gitlinks, commits, hand-offs."""

import base64
import os
from typing import Any

from launcher.vcs.harvest import crossing
from tests.support.private_git import Planted

NOBODYS = "1234567890" * 4


def _committed(planted: Planted, lines: str) -> str:
    """A commit on the agent's branch of entries as `git update-index --index-info` has them."""
    planted.agent("update-index", "-z", "--index-info", stdin=lines)
    planted.agent("commit", "-q", "-m", "x")
    return planted.agent("rev-parse", "HEAD")


def _line(planted: Planted, path: str) -> str:
    blob = planted.agent("hash-object", "-w", "--stdin", stdin="x")
    return f"100644 {blob}\t{path}\0"


def _longest(planted: Planted) -> str:
    """A path of which Linux can just have a file below the root of the worktree."""
    size = 4095 - len(os.fsencode(f"{planted.worktree}/"))
    return ("n" * 250 + "/") * (size // 251) + "n" * (size % 251)


def test_a_path_that_no_checkout_could_have_is_refused_and_the_longest_is_taken(planted: Planted) -> None:
    """Of a file and of a gitlink alike; the refusal says which limit."""
    before = planted.agent("rev-parse", "HEAD")
    long = f"{_longest(planted)}n"
    most = 4095 - len(os.fsencode(f"{planted.worktree}/"))
    for line, limit in (
        (_line(planted, long), most), (_line(planted, "n" * 256), 255), (f"160000 {NOBODYS}\t{long}\0", most)
    ):  # fmt: skip
        _committed(planted, line)
        refused = planted.harvest()
        assert (refused["errorType"], f"limit {limit}" in refused["context"]) == ("harvest-too-large", True), refused
        assert len(refused["context"]) < 400
        planted.agent("reset", "-q", "--mixed", before)
    new = _committed(planted, _line(planted, _longest(planted)) + _line(planted, "n" * 255))
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new


def test_a_long_name_of_the_users_is_no_reason_to_refuse_what_is_done_beside_it(planted: Planted) -> None:
    """Only what new commits put is judged: he may have names from another system. One can be removed, too."""
    blob = planted.host("hash-object", "-w", "README.md")
    planted.host("update-index", "--add", "--cacheinfo", f"100644,{blob},{'n' * 300}")
    planted.host("commit", "-q", "-m", "From elsewhere.")
    planted.agent("reset", "-q", "--mixed", planted.host("rev-parse", "HEAD"))
    planted.agent("reset", "-q", "--mixed", planted.agent("rev-parse", "HEAD"))
    assert planted.commit("beside", "beside\n")
    assert planted.harvest()["state"] == "harvested"
    new = _committed(planted, f"0 {'0' * 40}\t{'n' * 300}\0")
    assert planted.harvest()["state"] == "harvested"
    assert planted.host("rev-parse", "HEAD") == new


def test_submodules_without_end_are_not_remembered(planted: Planted) -> None:
    """Each gitlink is looked for by its path: more than a number of them, at any places, are refused."""
    links = "".join(f"160000 commit {NOBODYS}\ts{number}\n" for number in range(crossing.MOST_LINKS + 1))
    tree = planted.agent("mktree", "--missing", stdin=links)
    planted.agent("update-ref", "HEAD", planted.agent("commit-tree", "-p", "HEAD", "-m", "x", tree))
    refused = planted.harvest()
    assert (refused["errorType"], "commits of submodules" in refused["context"]) == ("harvest-too-large", True), refused


def test_a_commit_of_megabytes_is_refused(planted: Planted) -> None:
    """A message is text for people; as large as a file may be, it is held by whoever reads the commit."""
    before = planted.agent("rev-parse", "HEAD")
    for size, state in ((2 << 20, "harvest-too-large"), (1 << 19, "harvested")):
        new = planted.agent("commit-tree", "-p", before, f"{before}^{{tree}}", stdin="x" * size)
        planted.agent("update-ref", "HEAD", new)
        result = planted.harvest()
        assert result.get("errorType", result.get("state")) == state
        assert (f"commit {new} has" in result.get("context", "")) is (state != "harvested")


def test_a_tag_of_megabytes_is_refused(planted: Planted) -> None:
    """It compresses to nothing, and git holds it whole to list it. The branch arrives, as beside any refusal."""
    for size, taken in ((2 << 20, False), (1 << 19, True)):
        new = planted.commit("beside", f"{size}\n")
        planted.agent("tag", "-f", "-a", "-F", "-", "large", stdin="x" * size)
        (note,) = planted.harvest()["notes"] or [""]
        assert (f"tag {planted.agent('rev-parse', 'large')} has" in note) is not taken, note
        assert ("refs/tags/large" in planted.host("for-each-ref")) is taken
        assert planted.host("rev-parse", "HEAD") == new


def test_a_committer_date_that_no_commit_graph_holds_is_refused(planted: Planted) -> None:
    """Its 34 bits hold less, and git would read another date there: fsck fails, and ancestors are none. The encoding
    that a commit claims to have hides no date. An author's date is in no graph: git-fsck(1) alone is asked of it.
    """
    top = f"tree {planted.agent('rev-parse', 'HEAD^{tree}')}\nparent {planted.agent('rev-parse', 'HEAD')}\n"
    other = base64.b64encode("\ncommitter C <c@b> 7 -0000\n".encode("utf-16-be")).decode().rstrip("=")

    def harvested(authored: str, committed: str) -> dict[str, Any]:
        lines = f"author A <a@b> {authored} -0000\ncommitter C <c@b> {committed} -0000\nencoding UTF-7\nx +{other}-\n"
        words = ("hash-object", "-t", "commit", "-w", "--stdin", "--literally")
        planted.agent("update-ref", "HEAD", planted.agent(*words, stdin=f"{top}{lines}\nx\n"))
        return planted.harvest()

    before = planted.host("rev-parse", "HEAD")
    for date in ("17179869184", "9223372036854775807", "9223372036854775808", "-5", "x"):
        refused = harvested("7", date)
        assert refused["errorType"] == "harvest-malformed", (date, refused)
        assert planted.agent("rev-parse", "HEAD") in refused["context"], (date, refused)
        if date.isdigit() and int(date) < 1 << 63:  # else index-pack has refused it
            assert f"has the date {date}" in refused["context"], refused
        assert planted.host("rev-parse", "HEAD") == before
    assert harvested(str((1 << 63) - 1), str((1 << 34) - 1))["state"] == "harvested"
    planted.host("commit", "-q", "--allow-empty", "-m", "user: After it.")
    planted.host("commit-graph", "write", "--reachable")
    planted.host("fsck", "--strict", "--no-dangling")
    planted.host("merge-base", "--is-ancestor", before, "HEAD")


def test_a_name_that_git_fsck_refuses_is_not_read(planted: Planted) -> None:
    """A tree's entry of megabytes is refused before git walks paths with it; which git of these days does itself."""
    blob = planted.agent("hash-object", "-w", "--stdin", stdin="x")
    tree = planted.agent("mktree", stdin=f"100644 blob {blob}\t{'n' * (1 << 20)}\n")
    planted.agent("update-ref", "HEAD", planted.agent("commit-tree", "-p", "HEAD", "-m", "x", tree))
    refused = planted.harvest()
    assert refused["errorType"] in ("harvest-too-large", "harvest-malformed"), refused
    assert planted.host("rev-parse", "HEAD") != planted.agent("rev-parse", "HEAD")
