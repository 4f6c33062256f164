"""A session's ledger on disk: one line per kind, counts that add up, bounds, and what half-written lines do."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.egress import log
from launcher.ledger import ledgers
from launcher.ledger.denial import BRIDGE, GUARD, LANDLOCK, PROXY, SECCOMP, Denial, Process, of_guard
from launcher.session import denial_collector
from launcher.session.state import WRITES
from policy import egress_rules, promises
from policy.errors import Refusal
from policy.plan import VERSION, Plan


def plan(**fields: object) -> Plan:
    empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    return Plan(**(empty | {"version": VERSION, "worktree": "/w", "backend": promises.GUARD, "net": "proxy"} | fields))


def denial(path: str = "/etc/shadow", **changes: object) -> Denial:
    known = Denial(1.5, LANDLOCK, "read", path, rights=("fs.read_file",), process=Process(7, "cat", "/usr/bin/cat"))
    return known._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return ledgers.path_for(str(tmp_path), "review", 123)


def test_a_session_without_denials_leaves_nothing(path: str) -> None:
    """No file, and no directory for it."""
    with ledgers.Ledger(path, plan(), {}) as ledger:
        ledger.end(0, ())
    assert not os.path.exists(os.path.dirname(path))


def test_what_git_does_without_is_one_harmless_line(path: str) -> None:
    """Each object that git would only mark as used; a file that is none, or another change of one, stays what it is."""

    def told(call: str, name: str) -> Denial:
        return of_guard(1.0, (call, f"/app/.git/objects/{name}", "w", "", 0, "", 7, "git", "/usr/bin/git"))

    touched = [told("utimensat", name) for name in (f"ab/{'0' * 38}", f"cd/{'1' * 62}", "pack/pack-1.pack")]
    assert {found.key for found in touched} == {touched[0].key}
    assert (touched[0].path, touched[0].harmless) == ("/app/.git/objects", True)
    answer = ledgers.answer(touched[0], plan())
    assert (answer.flag, "nothing needs to be allowed" in answer.note) == ("", True)
    for call, name in (("utimensat", f"ab/{'x' * 38}"), ("utimensat", "info/alternates"), ("chmod", f"ab/{'0' * 38}")):
        other = told(call, name)
        assert (other.path, other.harmless) == (f"/app/.git/objects/{name}", False)
        assert ledgers.answer(other, plan()).flag


def test_what_repeats_is_one_line_with_a_count(path: str) -> None:
    """Of the same programme; another programme's is another line, unless it is the loader. The first comes at once."""
    with ledgers.Ledger(path, plan(), {"session": "review"}) as ledger:
        ledger.add(denial())
        assert len(Path(path).read_text().splitlines()) == 2
        for pid in range(100):
            ledger.add(denial(process=Process(pid, "cat", "/usr/bin/cat")))
        ledger.add(denial(process=Process()))  # the kernel dropped the record that names the programme
        ledger.add(denial(process=Process(8, "tac", "/usr/bin/tac")))
        for name in ("cat", "tac"):
            for path_of_loader in ("/etc/ld.so.preload", "/opt/lib/libx.so.1"):
                ledger.add(denial(path_of_loader, process=Process(9, name, f"/usr/bin/{name}")))
        ledger.end(3, ("a note",))
    contents = ledgers.read(path)
    assert contents.facts["session"] == "review"
    assert [(line["path"], line["process"]["comm"], line["count"]) for line in contents.denials] == [
        ("/etc/shadow", "cat", 102),
        ("/etc/shadow", "tac", 1),
        ("/etc/ld.so.preload", "cat", 2),
        ("/opt/lib/libx.so.1", "cat", 2),
    ]
    assert (contents.end["lost"], contents.end["notes"]) == (3, ["a note"])
    assert len(Path(path).read_text().splitlines()) == 9
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_there_are_bounds(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many kinds, denials are counted as lost."""
    monkeypatch.setattr(ledgers, "MOST_KINDS", 5)
    with ledgers.Ledger(path, plan(), {}) as ledger:
        for number in range(20):
            ledger.add(denial(f"/x/{number}"))
        ledger.end(0, ())
    contents = ledgers.read(path)
    assert (len(contents.denials), contents.end["lost"]) == (5, 15)


def test_a_ledger_has_an_end_in_bytes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes, and however long each line would be; what had no room is counted, and the last line has room."""
    monkeypatch.setattr(ledgers, "MOST_BYTES", 1 << 17)
    long = "\x01" * 4000
    with ledgers.Ledger(path, plan(), {"session": "review", "command": long * 10}) as ledger:
        ledger.add(denial("/first"))
        assert len(Path(path).read_bytes()) < ledgers.MOST_LINE
        kept = [ledgers.append(path, plan(), denial(f"/{number}/{long}")) for number in range(2)]
        kept += [ledgers.append(path, plan(), denial(f"/{number}/{'x' * 3000}")) for number in range(20)]
        assert (kept[0], kept[-1]) == (True, False)
        ledger.add(denial("/no/room"))
        ledger.add(denial("/first"))
        ledger.end(0, ("a note",))
    assert all(len(line) <= ledgers.MOST_LINE for line in Path(path).read_bytes().splitlines(keepends=True))
    assert os.stat(path).st_size <= ledgers.MOST_BYTES
    contents = ledgers.read(path)
    assert (contents.full, len(contents.denials), contents.end["lost"]) == (True, 1 + sum(kept), 2)
    assert contents.denials[0]["allow"]["flag"] == "--ro /first"
    assert contents.denials[1]["allow"]["flag"] == ""  # of a part of a path nothing is said
    assert contents.denials[3]["allow"]["flag"] == f"--ro /0/{'x' * 3000}"


def test_what_is_no_path_has_no_option(path: str) -> None:
    """The longest that can be one has."""
    for size, flag in ((4095, True), (4096, False)):
        assert bool(ledgers.answer(denial("/" + "x" * (size - 1)), plan()).flag) is flag


def test_another_process_appends(path: str) -> None:
    """To the same file, or to a new one, with what would allow it."""
    ledgers.append(path, plan(), denial())
    ledgers.append(path, plan(), denial("/data", layer=GUARD, wanted="w"))
    first, second = ledgers.read(path).denials
    assert first["allow"]["flag"] == "--ro /etc/shadow"
    assert first["risk"] == "password hashes of every user"
    assert second["allow"] == {"flag": "--rw /data", "toml": '[filesystem]\nwrite = ["/data"]', "note": ""}


@pytest.mark.parametrize("name", ["/a\nb", "/a\udcff", '/a"b', "/a\x1b[31m"])
def test_names_that_an_agent_chose_break_no_line_and_no_terminal(path: str, name: str) -> None:
    """They are JSON escapes in the file, and visible escapes on a terminal."""
    ledgers.append(path, plan(), denial(name))
    assert len(Path(path).read_bytes().splitlines()) == 2 - 1
    (line,) = ledgers.read(path).denials
    assert line["path"] == name
    assert all(text.isprintable() for text in ledgers.paragraph(line))


HINTS = (
    {"host": "a.example: --ro ~/.ssh --allow-domain a.example", "path": "", "layer": PROXY, "operation": "lookup"},
    {"host": "a.example:--net=open", "path": "", "layer": PROXY, "operation": "socks"},
    {"path": "/x: --ro ~/.ssh"},
    {"path": "/x': --ro ~/.ssh: '"},
    {"path": "/x" + " " * 70 + "paddock:   cat: read /x: --ro ~/.ssh"},
    {"process": Process(7, "ok: --net open", "/w/ok: --net open")},
    {"process": Process(7, "--net", "")},
    {"process": Process(7, "denied once", "")},
    {"path": "", "target": "process 9 (x): --ro ~/.ssh)", "operation": "signal"},
    {"path": "", "layer": BRIDGE, "operation": "call a method of the client", "target": "fs: --ro ~/.ssh"},
    {"path": "", "layer": BRIDGE, "operation": "run --net open", "target": "x"},
    {"path": "", "layer": BRIDGE, "target": "x", "rights": ("terminal/" + " " * 70 + "to allow it --ro ~/.ssh",)},
    {"path": "", "layer": BRIDGE, "target": "paddock run once", "rights": ("paddock run once",)},
)


@pytest.mark.parametrize("changes", HINTS)
def test_what_an_agent_chose_is_quoted(path: str, changes: dict[str, Any]) -> None:
    """In the summary and in the list no option of his stands outside of quotation marks, and no space fills a row. What
    would allow it is a path or a host that Paddock has read, as one word.
    """
    found = denial(**changes)
    ledgers.append(path, plan(), found)
    (content,) = ledgers.read(path).denials
    allow = ledgers.answer(found, plan()).flag
    for line in (ledgers.one_line(found, 1, plan()), *ledgers.paragraph(content)):
        ours = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line.replace(allow, "") if allow else line)
        assert not re.search(r"--net|~/|once| {20}", ours.replace("--net proxy", "")), line
        if line.startswith("  note"):
            assert "--" not in line


@pytest.mark.parametrize("what", ["/home/me/a-b_c.txt", "/opt/lib/libx.so.1", "/a/b@1,2%+~"])
def test_what_is_plain_is_shown_as_it_is(what: str) -> None:
    """And what is not can be read all the same."""
    assert ledgers.one_line(denial(what), 1, plan()).startswith(f"cat: read {what}: --ro ")
    assert ledgers.one_line(denial("/a b"), 1, plan()).startswith("cat: read '/a b': --ro ")
    host = denial("", host="::1", port=443, layer=PROXY, operation="HTTP GET")
    assert ledgers.one_line(host, 2, plan()).startswith("cat: HTTP GET ::1:443 (2 times): ")
    target = denial("", target="process 9 (sleep)", operation="signal")
    assert ledgers.one_line(target, 1, plan()).startswith("cat: signal process 9 (sleep): ")


def test_half_a_line_is_left_out(path: str) -> None:
    """A writer may be in the middle of it; nonsense is passed over."""
    ledgers.append(path, plan(), denial())
    with open(path, "a") as file:
        file.write('nonsense\n[1]\n{"kind": "denial", "pa')
    assert [line["path"] for line in ledgers.read(path).denials] == ["/etc/shadow"]


def test_the_oldest_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By age, by number, and by size; the newest stays, and what is no ledger too."""
    day = 24 * 3600
    for number in range(10):
        os.close(ledgers.create(ledgers.path_for(str(tmp_path), f"s{number}", int((1000 - number) * day * 1e9))))
    (tmp_path / "ledgers/mine").write_text("")
    monkeypatch.setattr(ledgers, "KEEP_FILES", 5)
    ledgers.prune(str(tmp_path), 1000 * day)
    assert [one.session for one in ledgers.kept(str(tmp_path))] == ["s0", "s1", "s2", "s3", "s4"]
    ledgers.prune(str(tmp_path), (998 + 30) * day - 1)
    assert [one.session for one in ledgers.kept(str(tmp_path))] == ["s0", "s1", "s2"]
    monkeypatch.setattr(ledgers, "KEEP_BYTES", 10)
    for one in ledgers.kept(str(tmp_path)):
        Path(one.path).write_text("more than ten bytes")
    ledgers.prune(str(tmp_path), 1000 * day)
    assert [one.session for one in ledgers.kept(str(tmp_path))] == ["s0"]
    assert (tmp_path / "ledgers/mine").exists()


@pytest.mark.parametrize("bound", ["KEEP_FILES", "KEEP_BYTES"])
@pytest.mark.parametrize("names", ["noisy", "files-noisy-{:08x}"])
def test_no_session_pushes_out_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, names: str
) -> None:
    """Who has most loses his oldest, whatever he calls each, also with the first line of one that is new."""
    monkeypatch.setattr(ledgers, bound, 30)
    for number in range(40):
        name = "quiet" if number == 3 else names.format(number)
        fd = ledgers.create(ledgers.path_for(str(tmp_path), name, time.time_ns()))
        os.write(fd, b"x\n")
        os.close(fd)
    ledgers.append(ledgers.path_for(str(tmp_path), "new", time.time_ns()), plan(), denial())
    left = [one.session for one in ledgers.kept(str(tmp_path))]
    assert left.count("quiet") == 1
    assert names.format(39) in left
    assert len(left) < 32
    assert left[0] == "new"


def test_a_name_that_came_again_means_the_latest(tmp_path: Path) -> None:
    """Names may hold dots; the time of the start tells sessions of one name apart."""
    for started in (5, 7, 6):
        os.close(ledgers.create(ledgers.path_for(str(tmp_path), "a.1", started)))
    assert ledgers.path_of(str(tmp_path), "a.1") == ledgers.path_for(str(tmp_path), "a.1", 7)
    assert ledgers.path_of(str(tmp_path), "a") is None


def test_a_ledger_that_cannot_be_read_is_a_refusal(path: str) -> None:
    """A directory in its place, say."""
    os.makedirs(path)
    with pytest.raises(Refusal) as caught:
        ledgers.read(path)
    assert caught.value.reference == "ledger-unreadable"


def line(**fields: object) -> dict[str, Any]:
    known = {"time": 1.5, "operation": "connect", "host": "example.com", "port": 443, "decision": "deny", "rule": "",
             "reason": "no rule allows example.com:443", "suggestion": "--allow-domain example.com:443"}  # fmt: skip
    return known | fields


def test_the_proxys_log_is_read(tmp_path: Path) -> None:
    """Denials only; what found no room in it is counted."""
    log = tmp_path / ledgers.PROXY_LOG
    lines = [line(), line(decision="allow"), {"operation": "fault", "reason": "x"}, {"operation": "lost", "count": 7}]
    log.write_text("".join(json.dumps(one) + "\n" for one in lines))
    (found,), lost = ledgers.read_proxy_log(str(log))
    assert (found.layer, found.host, found.port, lost) == (PROXY, "example.com", 443, 7)
    assert ledgers.answer(found, plan()).flag == "--allow-domain example.com:443"
    assert ledgers.read_proxy_log(str(tmp_path / "none")) == ([], 0)


def test_a_live_session_shows_what_the_proxy_has_decided(tmp_path: Path) -> None:
    """Its ledger has that at the end only; an earlier session's of the same name is not meant."""
    with ledgers.Ledger(ledgers.path_for(str(tmp_path), "review", 1), plan(), {}) as earlier:
        earlier.add(denial("/earlier"))
        earlier.end(0, ())
    os.utime(earlier.path, (1, 1))
    directory = tmp_path / "sessions/review"
    directory.mkdir(parents=True)
    (directory / WRITES).touch()
    lines = [line(), line(), line(decision="allow", rule="asked: once")]
    (directory / ledgers.PROXY_LOG).write_text("".join(json.dumps(one) + "\n" for one in lines))

    def shown() -> list[object]:
        found = ledgers.so_far(str(tmp_path), "review")
        assert found is not None
        assert [(each["host"], each["count"]) for each in found.denials if each["layer"] == PROXY] == [
            ("example.com", 2)
        ]
        assert [ledgers.decision(each) for each in found.decisions] == ["allowed connect example.com:443 (asked: once)"]
        return [each["path"] for each in found.denials if each["layer"] != PROXY]

    assert shown() == []
    with ledgers.Ledger(ledgers.path_for(str(tmp_path), "review", 2), plan(), {}) as ledger:
        ledger.add(denial("/now"))
        assert shown() == ["/now"]
    shutil.rmtree(directory)
    assert ledgers.so_far(str(tmp_path), "review") is None


END = """
import sys
sys.path.append(sys.argv[1])
from launcher.session import denial_collector
from policy.plan import VERSION, Plan
plan = Plan(**(dict.fromkeys(Plan.FIELDS, ()) | {"version": VERSION, "worktree": "/w", "net": "proxy"}))
denials = denial_collector.Denials(sys.argv[2], "one", sys.argv[2], plan, -1)
print(denials.close(), denials.total, "json" in sys.modules)
"""


def test_a_session_that_the_proxy_refused_nothing_reads_no_json(tmp_path: Path) -> None:
    """Importing what it takes would make up half of a short command's launch; one refusal is worth it."""
    assert ledgers.PROXY_LOG == denial_collector._PROXY_LOG == log.FILE
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-I", "-S", "-c", END, str(root), str(tmp_path)]

    def end() -> str:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert end() == "[] 0 False"
    file = tmp_path / ledgers.PROXY_LOG
    file.write_text(json.dumps(line(decision="allow", host='"deny"', reason='"lost"')) + "\n")
    assert end() == "[] 0 False"
    with file.open("a") as more:
        more.write(json.dumps(line()) + "\n" + json.dumps({"operation": "lost", "count": 7}) + "\n")
    assert end() == "[] 8 True"


def test_the_proxy_knows_better_what_would_help() -> None:
    """A rule that denies has to go; a name that leads inside needs a rule for the address."""
    for hint, flag in (("without --deny-domain example.com", ""), ("--allow-domain 10.0.0.1:443", "10.0.0.1:443")):
        found = ledgers.of_decision(line(suggestion=hint))
        assert found is not None
        answer = ledgers.answer(found, plan())
        assert (answer.flag, answer.note) == ((hint, "") if flag else ("", hint))
        assert flag in answer.toml


@pytest.mark.parametrize(
    ("backend", "heard", "kinds"),
    [
        (promises.GUARD, True, 0),
        (promises.GUARD, False, 1),
        (promises.NAMESPACES, True, 1),
        (promises.NAMESPACES, False, 2),
        (promises.BUBBLEWRAP, False, 1),
    ],
)
def test_the_kinds_that_are_missing_are_named(backend: str, heard: bool, kinds: int) -> None:
    """By what the session's own hearing was proven to be."""
    assert len(ledgers.missing_kinds(backend, heard=heard)) == kinds


def test_a_refused_socket_has_a_remedy_where_there_is_no_network() -> None:
    """The filter tells no arguments; with a network, sockets of that family are not what it refuses."""
    refused = denial("", layer=SECCOMP, operation="system call", target="41 of c000003e")
    assert "--net open" in ledgers.one_line(refused, 1, plan(net="none"))
    assert "no option allows it" in ledgers.one_line(refused, 1, plan())
    assert "no option allows it" in ledgers.one_line(refused._replace(target="42 of c000003e"), 1, plan(net="none"))


def test_tmpdir_is_named_for_what_is_refused_in_tmp() -> None:
    """Where the jail has a /tmp of its own, it is not."""
    refused = denial("/tmp", operation="make a file in", wanted="w")
    assert ledgers.one_line(refused, 1, plan()).startswith("cat: make a file in /tmp: --rw /tmp (")
    assert "$TMPDIR" in ledgers.one_line(refused, 1, plan())
    assert "$TMPDIR" not in ledgers.one_line(refused, 1, plan(backend=promises.NAMESPACES))


def test_the_loopback_is_reached_by_port_unless_it_was_asked_of_the_proxy() -> None:
    """A client that came to the proxy comes there again."""
    refused = denial("", operation="connect", host="127.0.0.1", port=5432)
    assert ": --reach 5432 (" in ledgers.one_line(refused, 1, plan())
    asked = refused._replace(layer=PROXY, hint="--allow-domain 127.0.0.1:5432")
    assert ledgers.one_line(asked, 1, plan()).endswith(": --allow-domain 127.0.0.1:5432")


def test_a_registry_that_is_refused_names_its_list() -> None:
    """What npx or pip needs is one word; of a list's other hosts none was asked for yet."""
    for word in ("@node", "@python"):
        host, _, port = egress_rules.require(word).rules[0].rpartition(":")
        refused = denial("", layer=PROXY, operation="connect", host=host, port=int(port))
        assert f"(--allow-domain {word} allows it with others: " in ledgers.one_line(refused, 1, plan())
    other = denial("", layer=PROXY, operation="connect", host="registry.example.com", port=443)
    assert ledgers.one_line(other, 1, plan()).endswith(": --allow-domain registry.example.com:443")
