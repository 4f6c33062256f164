"""Many sandboxes of one programme, all alive at the same time; `PADDOCK_BOXES=500` for more than the suite makes."""

import os

import pytest

from tests.kernel.test_sandbox import run
from tests.support.features import need
from tests.support.paddock import Paddock

BOXES = int(os.environ.get("PADDOCK_BOXES", "8"))

REFUSED = ["sandbox-unopened", "session-not-ours", "session-unstartable"]

HELD = """
from concurrent.futures import ThreadPoolExecutor
def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
def below():  # this one, and the one that launchers are forked from
    above = [os.getpid()]
    for each in above:
        for task in os.listdir(f"/proc/{each}/task"):
            try:
                above += open(f"/proc/{each}/task/{task}/children").read().split()
            except OSError:
                pass
    return len(above)
Sandbox(".").close()
"""


@pytest.mark.timeout(60 + 2 * BOXES)
def test_many_sandboxes_at_once_cost_five_descriptors_each_and_leave_nothing(user_paddock: Paddock) -> None:
    """On eight threads, every second one a copy; no thread of their own, each its own jail, and all gone at the end."""
    need("userns")
    found = run(
        user_paddock,
        HELD
        + f"""
before = held()
number = {BOXES}
with ThreadPoolExecutor(8) as pool:
    boxes = list(pool.map(lambda each: Sandbox(".", cow=bool(each % 2)), range(number)))
    list(pool.map(lambda box: box.exec(["sh", "-c", "echo $1 >>/tmp/own", "sh", box.name]), boxes))
    found["own"] = sum(pool.map(lambda box: box.exec("cat /tmp/own").text.split() == [box.name], boxes)) == number
    found["names"] = len({{box.name for box in boxes}}) == number
    found["descriptors"] = (held()[0] - before[0]) / number
    found["alive"] = sum(box.exec("true").status == 0 for box in boxes) == number
    list(pool.map(Sandbox.close, boxes))
deadline = time.monotonic() + 30
while (held(), below()) != (before, 2) and time.monotonic() < deadline:
    time.sleep(0.05)
found["left"] = [held()[0] - before[0], held()[1] - before[1], below()]
""",
        patience=30 + BOXES,
    )
    assert found == {"own": True, "names": True, "descriptors": 5, "alive": True, "left": [0, 0, 2]}
    assert list((user_paddock.state / "sessions").iterdir()) == []
    assert list((user_paddock.state / "worktrees").iterdir()) != []


def test_a_process_without_descriptors_is_told_so_and_its_sandboxes_live_on(user_paddock: Paddock) -> None:
    """Whatever step comes to the limit: a sandbox or a command is refused, and what was opened for it is closed."""
    need("userns")
    found = run(
        user_paddock,
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
found["sandboxes"], found["commands"] = set(), set()
with Sandbox(".") as box:
    for room in range(14):
        spare = []
        while True:
            try:
                spare.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        [os.close(spare.pop()) for _ in range(room)]
        before = len(spare)
        found["commands"].add(refused(box.exec, "true"))
        found["sandboxes"].add(refused(lambda: Sandbox(".").close()))
        for _ in range(room):
            spare.append(os.open("/dev/null", os.O_RDONLY))  # no descriptor of theirs is left
        [os.close(each) for each in spare]
    found["alive"] = box.exec("true").status
found["commands"] = sorted(found["commands"], key=str)
found["sandboxes"] = sorted(found["sandboxes"], key=str)
""",
    )
    assert found.pop("sandboxes") == [None, *REFUSED], "one that cannot be told from a stranger's counts as that"
    assert found == {"commands": [None, "sandbox-unopened"], "alive": 0}
