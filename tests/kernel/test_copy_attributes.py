"""A copy (`--cow`) of a tree in which an earlier session has set overlayfs's own attributes (user.overlay.*)."""

import errno
import json
from pathlib import Path

import pytest

from tests.kernel.test_sandbox import run
from tests.support.features import need
from tests.support.identity import Who
from tests.support.paddock import Paddock

# Attributes by which overlayfs would look for a file's content, or a directory's, elsewhere in its layers, hide one, or
# not look below it (Documentation/filesystems/overlayfs.rst).
MARKS = (
    ("user.overlay.metacopy", ""), ("user.overlay.redirect", "/other/secret"), ("user.overlay.redirect", "secret"),
    ("user.overlay.opaque", "y"), ("user.overlay.opaque", "x"), ("user.overlay.whiteout", ""),
    ("user.overlay.origin", "x"), ("user.overlay.impure", "y"), ("user.overlay.nlink", "U+1"),
    ("user.overlay.protattr", "i"), ("user.overlay.upper", "x"), ("user.overlay.uuid", "x"),
)  # fmt: skip

PLANT = """
import errno, json, os, sys
planted = []
def mark(path, name, value):
    try:
        os.setxattr(path, name, value.encode())
    except OSError as error:
        assert error.errno in (errno.ENODATA, errno.EOPNOTSUPP), error
for number, (name, value) in enumerate(json.loads(sys.argv[1])):
    for kind in ("file", "empty", "directory"):
        path = f"{kind}{number}"
        if kind == "directory":
            os.mkdir(path)
            open(f"{path}/inner", "w").write("inner")
            open(f"{path}/nothing", "w").close()
            mark(f"{path}/nothing", "user.overlay.whiteout", "")
        else:
            open(path, "w").write(path if kind == "file" else "")
        mark(path, name, value)
        if name.endswith("redirect"):
            mark(path, "user.overlay.metacopy", "")
mark(".", "user.overlay.opaque", "x")
"""

SEEN = """
import json, os
found = {}
for place, _, names in os.walk("."):
    for name in names:
        path = os.path.join(place, name)[2:]
        if path != ".git":
            try:
                found[path] = open(path).read()
            except OSError as error:
                found[path] = error.errno
print(json.dumps(found))
"""


@pytest.fixture
def marked(user_paddock: Paddock) -> Paddock:
    """A worktree that a session has filled, with each mark on a file, an empty one and a directory."""
    need("userns")
    words = ("/usr/bin/python3", "-c", PLANT, json.dumps(MARKS))
    other = user_paddock.worktree / "other"
    other.mkdir()
    (other / "secret").write_text("secret")
    user_paddock.who.give(other)
    done = user_paddock.run("--", *words)
    assert done.returncode == 0, done.stderr
    return user_paddock


def _here(who: Who, tree: Path) -> dict[str, str]:
    done = who.run(["/usr/bin/python3", "-c", SEEN], cwd=tree)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_no_attribute_puts_anything_in_the_place_of_a_file(marked: Paddock) -> None:
    """A marked file shows its own content or cannot be opened, an empty one may be missing; nothing else changes."""
    here = _here(marked.who, marked.worktree)
    assert here["file0"] == "file0"
    found = run(
        marked,
        f"""
        with Sandbox(".", cow=True) as box:
            found["seen"] = json.loads(box.exec(["/usr/bin/python3", "-c", {SEEN!r}]).stdout)
            box.exec("echo own >own; mkdir -p made; setfattr -n user.overlay.opaque -v y made")
            box.reset()
            found["again"] = json.loads(box.exec(["/usr/bin/python3", "-c", {SEEN!r}]).stdout)
        """,
    )
    seen = found["seen"]
    assert found["again"] == seen
    assert {name for name, content in here.items() if content} <= seen.keys() <= here.keys()
    other = {name: content for name, content in seen.items() if content != here[name]}
    assert set(other.values()) == {errno.EPERM, errno.ENOENT}, "not tried, or something else is shown"
    assert {here[name] for name, content in other.items() if content == errno.ENOENT} == {""}
    assert {name for name in other if "/" in name} == {f"directory{number}/nothing" for number in range(len(MARKS))}
