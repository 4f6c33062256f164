"""Path resolution against the kernel, on random trees."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policy.sandbox import Location, Reason, Unresolvable, WorktreeSandbox, by_kernel, by_walk, resolve, resolve_entry

BOX = WorktreeSandbox()


NAMES = st.sampled_from(["a", "b", "c", "A", "a b", "ü", "-x", "(deleted)", "x" * 255])
STEPS = st.one_of(NAMES, st.sampled_from(["..", ".", ""]))
PATHS = st.lists(STEPS, min_size=1, max_size=6).map("/".join)
NODES = st.lists(
    st.tuples(
        st.sampled_from(["dir", "file", "link", "absolute", "hard", "fifo"]),
        st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        PATHS,
    ),
    max_size=14,
)


@contextmanager
def tree(nodes: list[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """A temporary directory with a tree some levels below, so that `..` has somewhere to go: (top, root).

    Makes what can be made of `nodes`; a clash of names leaves the earlier one, and nothing is made outside `top`.
    """
    with tempfile.TemporaryDirectory() as name:
        top = os.path.realpath(name)
        root = f"{top}/1/2/3/4/5/wt"
        os.makedirs(root)
        for kind, place, target in ((kind, f"{root}/{place}", target) for kind, place, target in nodes):
            if not stays_in(top, place):
                continue
            try:
                if kind == "dir":
                    os.makedirs(place)
                elif kind == "file":
                    os.close(os.open(place, os.O_CREAT | os.O_EXCL))
                elif kind == "fifo":
                    os.mkfifo(place)
                elif kind == "hard":
                    os.link(f"{root}/{target}", place)
                else:
                    os.symlink(target if kind == "link" else f"{root}/{target}", place)
            except OSError:
                continue
        yield top, root


def stays_in(top: str, path: str) -> bool:
    """An opinion of its own on where `path` leads, so that a wrong resolver cannot make the tests touch the system."""
    return all(os.path.realpath(part).startswith(f"{top}/") for part in (path, os.path.dirname(path)))


def answer(resolver: Callable[[str], Location], path: str) -> Location | Reason:
    try:
        return resolver(path)
    except Unresolvable as error:
        return error.reason


@pytest.mark.spec("FR-013")
@settings(max_examples=300, deadline=None, database=None)
@given(nodes=NODES, paths=st.lists(PATHS, min_size=1, max_size=8))
def test_both_resolvers_agree_on_random_trees(nodes: list[tuple[str, str, str]], paths: list[str]) -> None:
    """Where the kernel has an answer the walk has the same, and where it has none the walk's is final."""
    with tree(nodes) as (_, root):
        for path in (f"{root}/{text}" for text in paths):
            walked = answer(by_walk, path)
            quick = by_kernel(path)
            assert quick is None or quick == walked
            assert answer(resolve, path) == walked
            opened = kernel_name(path)
            if opened is not None:
                assert walked == Location(opened, None)


@settings(max_examples=100, deadline=None, database=None)
@given(nodes=NODES, text=PATHS)
def test_what_a_write_creates_is_what_was_judged(nodes: list[tuple[str, str, str]], text: str) -> None:
    """The kernel itself makes the file: it appears at the canonical path, inside exactly when that was allowed."""
    with tree(nodes) as (top, root):
        path = f"{root}/{text}"
        assume(stays_in(top, path))
        result = BOX.validate(path, root, "WRITE")
        walked = answer(by_walk, path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
        except OSError:
            return
        try:
            where = os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        assert result.normalized_path == where
        assert isinstance(walked, Location)
        assert walked.path == where
        assert result.allowed is where.startswith(f"{root}/")


@settings(max_examples=100, deadline=None, database=None)
@given(nodes=NODES, text=PATHS)
def test_what_a_removal_removes_is_what_was_judged(nodes: list[tuple[str, str, str]], text: str) -> None:
    """unlink(2) takes away exactly the entry that the verdict named."""
    with tree(nodes) as (top, root):
        path = f"{root}/{text}"
        assume(stays_in(top, os.path.dirname(path)))
        entry = answer(resolve_entry, path)
        result = BOX.validate(path, root, "DELETE")
        before = entries(top)
        try:
            os.unlink(path)
        except OSError:
            return
        assert isinstance(entry, Location)
        assert before - entries(top) == {entry.path}
        assert result.allowed is entry.path.startswith(f"{root}/")


@pytest.mark.spec("FR-014")
@settings(max_examples=200, deadline=None, database=None)
@given(target=st.one_of(st.text(max_size=40), st.binary(max_size=40)), operation=st.text(max_size=6))
def test_no_input_raises(target: str | bytes, operation: str) -> None:
    """FR-014: a denial is a value with a JSON form."""
    for name in (operation, "READ", "DELETE"):
        result = BOX.validate(target, "/usr/lib", name)
        assert result.allowed or json.loads(result.to_error_json())["errorType"] == "SANDBOX_VIOLATION"
        assert result.model_dump_json()


def kernel_name(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def entries(top: str) -> set[str]:
    return {f"{folder}/{name}" for folder, folders, files in os.walk(top) for name in folders + files}
