"""What the guard lets through, judged without a kernel."""

import marshal
import os
import select
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import wire
from launcher.jail import reports, syscall_tables, syscalls
from launcher.jail.guard import server, watch
from launcher.jail.guard.call import Call, Listener, Refused, Rules
from launcher.jail.spec import JailSpec
from policy import promises
from policy.plan import VERSION, Plan
from policy.verdict import decide


def plan(**fields: object) -> Plan:
    """A Plan that grants nothing but what `fields` say."""
    return Plan(**(dict.fromkeys(Plan.FIELDS, ()) | {"version": VERSION, "net": "none"} | fields))


def spec(some: Plan) -> JailSpec:
    """What the guard reads of it."""
    return JailSpec(
        grants=some.grants, denied=some.denied, read_only=some.read_only, narrowed=some.narrowed, net=some.net
    )


PATHS = st.lists(st.sampled_from(["a", "b", "cc", "a b", "(deleted)"]), max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
PLANS = st.builds(
    lambda grants, denied, read_only, narrowed: plan(
        grants=tuple(grants),
        denied=tuple((path, "") for path in denied),
        read_only=tuple((path, "") for path in read_only),
        narrowed=tuple((path, access, "--ro") for path, access in narrowed.items()),
    ),
    st.lists(
        st.tuples(PATHS, st.sampled_from(["r", "rx", "rw", "rwx"]), st.sampled_from(["worktree", promises.NESTED])),
        max_size=4,
    ),
    st.lists(PATHS.filter(lambda path: path != "/"), max_size=2),
    st.lists(PATHS, max_size=2),
    st.dictionaries(PATHS, st.sampled_from("rw"), max_size=3),
)


@given(PLANS, PATHS)
def test_the_guard_says_what_the_plan_says(some: Plan, path: str) -> None:
    """A path may be changed exactly where `paddock explain` says "write"; of nested trees only writable ones count."""
    nested = all("w" in access for _, access, source in some.grants if source == promises.NESTED)
    if nested:
        assert Rules(spec(some)).may_write(path) is ("w" in decide(some, path).access)
    else:
        assert not Rules(spec(some)).may_write(path) or "w" in decide(some, path).access


RULES = Rules(
    JailSpec(
        grants=(
            ("/w", "rwx", "worktree"),
            ("/r", "rx", "system"),
            ("/f", "rw", "file"),
            ("/w/d/n", "rwx", promises.NESTED),
        ),
        denied=(("/w/d", "--deny"),),
        read_only=(("/w/o", "context"),),
    )
)


def test_names_are_compared_by_components() -> None:
    """A name that only begins like a granted one is not granted."""
    yes = ("/w", "/w/x", "/w/x/y", "/f", "/w/d/n", "/w/d/n/x", "/w/oo", "/w/dd")
    no = ("/", "/ww", "/wx/y", "/r", "/r/x", "/ff", "/w/d", "/w/d/x", "/w/d/nn", "/w/o", "/w/o/x", "")
    assert [path for path in yes if not RULES.may_write(path)] == []
    assert [path for path in no if RULES.may_write(path)] == []


def test_what_has_no_name_is_judged_by_what_it_is() -> None:
    """Sockets, memory files and unnamed files of the jail may be changed; a pipe may be somebody else's."""
    yes = ("socket:[1]", "/memfd:x (deleted)", "/w/#12 (deleted)", "/w/x (deleted)", "/w/x (deleted) (deleted)")
    no = ("pipe:[1]", "anon_inode:[eventpoll]", "/r/x (deleted)", "/f (deleted)", "/w/d (deleted)", "/w/o (deleted)",
          "(unreachable)/w/x", "/memfd:x", "w/x")  # fmt: skip
    assert [name for name in yes if not RULES.may_change(name)] == []
    assert [name for name in no if RULES.may_change(name)] == []


V4, OTHER = bytes((127, 0, 0, 1)), bytes((127, 0, 0, 2))
MAPPED = bytes(10) + b"\xff\xff" + V4
V6 = bytes(15) + b"\x01"


def test_addresses_are_compared_whole() -> None:
    """Only the very address and port may be reached; IPv4 in IPv6 is IPv4."""
    rules = Rules(JailSpec(addresses=((V4, 3128), (V6, 1))))
    yes = ((V4, 3128), (MAPPED, 3128), (V6, 1))
    no = ((V4, 3129), (OTHER, 3128), (V6, 3128), (bytes(4), 3128), (bytes(16), 1), (bytes(12) + V4, 3128), (b"", 3128))
    assert [address for address in yes if not rules.may_reach(*address)] == []
    assert [address for address in no if rules.may_reach(*address)] == []


def test_the_networks_mode_decides_where_no_address_is_named() -> None:
    """Without addresses nothing is reached with --net none, and everything with --net open."""
    assert not Rules(JailSpec()).may_reach(V4, 80)
    assert not Rules(JailSpec(net="proxy")).may_reach(V4, 80)
    assert Rules(JailSpec(net="open")).may_reach(V4, 80)


@pytest.mark.parametrize("char", ["a", "\u6f22", "\U0001f512", "\udcff"], ids=["ascii", "han", "astral", "no-text"])
def test_what_is_refused_is_told_however_its_path_is_written(char: str) -> None:
    """As much of the path, and of the programme's, as a pipe takes at once."""
    reading, writing = os.pipe()
    long = "/" + char * 4000
    server._tell(writing, "chmod", (7, "name", long), Refused(1, long))
    os.close(writing)
    with open(reading, "rb") as stream:
        ((kind, payload),) = wire.Decoder().feed(stream.read())
    call, path, *_, program = marshal.loads(payload)
    assert (kind, call) == (reports.DENIED, "chmod")
    for told in (path, program):
        assert long.startswith(told)
        assert len(told) > 300


@pytest.mark.parametrize("char", ["a", "\u6f22", "\udcff"], ids=["ascii", "han", "no-text"])
def test_what_is_wanted_fits_into_one_write(char: str) -> None:
    """Several threads write to the pipe, and the jail's init: what is longer could be cut in two by another message."""
    long = "/" + char * 1300
    arguments = (syscalls.AT_FDCWD, 1, os.O_RDONLY)
    call = SimpleNamespace(
        number=syscall_tables.number("openat", syscalls.MACHINE),
        arguments=arguments,
        integer=arguments.__getitem__,
        string=lambda address: os.fsencode(long),
        caller=lambda: (7, "name", long),
    )
    found: list[watch.Want] = []
    assert watch.Observer(found.append).look(cast(Call, call))
    ((_, path, *_, program),) = found
    assert long.startswith(path)
    assert long.startswith(program)
    assert len(marshal.dumps(found[0])) + 5 <= select.PIPE_BUF


def test_what_is_refused_is_told_before_the_caller_goes_on() -> None:
    """With the answer the command may end, and with the command who tells."""
    order: list[str] = []
    reading, writing = os.pipe()
    listener = SimpleNamespace(fd=reading, answer=lambda *words: order.append("answered"))
    call = SimpleNamespace(number=-1, listener=listener, identity=1, caller=lambda: (7, "", ""), close=lambda: None)

    def refuse(_: Call, __: Rules) -> None:
        raise Refused(1)

    served = server.Server(
        cast(Listener, listener), Rules(JailSpec()), lambda error: None, lambda *words: order.append("told")
    )
    handlers: dict[int | None, Callable[[Call, Rules], None]] = {-1: refuse}
    served._handlers = handlers  # type: ignore[assignment]  # what handlers return is not of interest
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(server._NAMES, -1, "chmod")
        served._serve(cast(Call, call))
    os.close(reading)
    os.close(writing)
    assert order == ["told", "answered"]
