"""What phantoms are used for is counted and bounded, whatever their clients do (`launcher.egress.spending`)."""

import asyncio
import json
from asyncio import StreamWriter as Writer
from pathlib import Path

import h11
import pytest

from launcher.egress import spending, vendors
from launcher.egress.spending import Exceeded, Spending, Tally
from tests.support.proxied import asked, lines, looped, proxy, run
from tests.unit.test_egress_vendors import NOTHING, Vendor, ended, held, request, serving

WORDS = json.dumps({"input": "w" * 787})
"""Content of a request, of 800 bytes."""

EVENTS = (
    b'data: {"message":{"usage":{"input_tokens":100,"cache_read_input_tokens":7,"output_tokens":1}}}\n\n'
    b'data: {"type":"message_delta","usage":{"output_tokens":50}}\n\n'
)


def test_a_budget_of_tokens_ends_with_a_clear_refusal(tmp_path: Path) -> None:
    """After the answer that reached it; what the vendor reports is counted, and nothing is compressed on the way."""

    async def test() -> None:
        async def stream(got: h11.Request, _body: bytes, writer: Writer) -> bytes:
            assert dict(got.headers)[b"accept-encoding"] == b"identity"
            assert b"upgrade" not in dict(got.headers)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + EVENTS)
            return b""

        vendor, counts = Vendor(stream), Spending({"tokens": 200}, str(tmp_path / "usage.json"))
        async with serving(vendor) as url, proxy(tmp_path, held=held(url), spending=counts) as port:
            for _ in range(2):
                said = await asked(
                    port, request("/v1/messages", "Accept-Encoding: gzip", "Connection: close", body=WORDS)
                )
                assert EVENTS in said
            said = await asked(port, request("/v1/messages", "Connection: close", body=WORDS))
            assert said.startswith(b"HTTP/1.1 403 ")
            assert b"budget of 200 tokens is used up: 314" in said
        assert len(vendor.requests) == 2
        kept = json.loads((tmp_path / "usage.json").read_text())
        assert kept.pop("upload") > 10  # heads, too
        assert kept == {
            "requests": 2,
            "input": 214,
            "output": 100,
            "estimated": 0,
            "refused": 1,
            "aside": 0,
            "recent": 2,
            "budget": 200,
        }
        assert [line["reason"] for line in lines(tmp_path) if line["decision"] == "deny"] == [
            "the session's budget of 200 tokens is used up: 314 used"
        ]

    run(test())


def test_a_stream_that_says_nothing_of_tokens_is_estimated(tmp_path: Path) -> None:
    """Else a client would choose not to be counted; the same where it leaves before the end."""

    async def test() -> None:
        began = asyncio.Event()

        async def stream(_request: h11.Request, _body: bytes, writer: Writer) -> bytes | None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 4000\r\n\r\n")
            writer.write(b"x" * 2000)
            await writer.drain()
            if began.is_set():
                return None
            began.set()
            return b"x" * 2000

        vendor, counts = Vendor(stream), Spending({})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            await asked(port, request("/v1/messages", "Connection: close", body="w" * 400))
            assert (counts.input, counts.output, counts.estimated) == (100, 1000, 1100)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/messages", body="w" * 400))
            await reader.readuntil(b"x" * 2000)
            await ended(writer)
            vendor.left.clear()
            await vendor.left.wait()
            while counts.input == 100:
                await asyncio.sleep(0.01)
            assert (counts.input, counts.output) == (200, 1500)

    run(test())


@pytest.mark.parametrize("reads", ["", "HTTP/1.1 200", "}}"])
def test_a_client_that_hangs_up_is_counted_all_the_same(tmp_path: Path, reads: str) -> None:
    """At once, after the head, after the last byte: what the vendor's answer says is read to its end."""

    async def test() -> None:
        body = b'{"padding": "' + b"x" * 3000 + b'", "usage": {"input_tokens": 70, "output_tokens": 50}}'

        async def slow(_request: h11.Request, _body: bytes, writer: Writer) -> bytes:
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 1000):
                await asyncio.sleep(0.02)
                piece = body[at : at + 1000]
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0.1)
            return b"0\r\n\r\n"

        vendor, counts = Vendor(slow), Spending({"tokens": 100})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/messages", body=WORDS))
            if reads:
                await reader.readuntil(reads.encode())
            else:
                while not vendor.requests:
                    await asyncio.sleep(0.005)
            writer.close()
            if reads == "}}":  # it has all that it wants, and asks again at once
                said = await asked(port, request("/v1/messages", "Connection: close", body=WORDS))
                assert said.startswith(b"HTTP/1.1 403 "), said
            while not counts.input:
                await asyncio.sleep(0.01)
            assert (counts.input, counts.output) == (70, 50)

    run(test())


def test_with_a_budget_a_stream_is_read_to_its_end_whoever_waits_for_it(tmp_path: Path) -> None:
    """A client could leave just before the vendor says how many tokens went into thoughts, which are in no size."""

    async def test() -> None:
        left = asyncio.Event()

        async def stream(_request: h11.Request, _body: bytes, writer: Writer) -> bytes:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            writer.write(b'data: {"text": "all of it"}\n\n')
            await left.wait()
            await asyncio.sleep(0.1)
            return b'data: {"response": {"usage": {"input_tokens": 9, "output_tokens": 30000}}}\n\n'

        vendor, counts = Vendor(stream), Spending({"tokens": 10**6})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/responses", body=WORDS))
            await reader.readuntil(b"all of it")
            await ended(writer)
            left.set()
            while not counts.input:
                await asyncio.sleep(0.01)
            assert (counts.input, counts.output, counts.estimated) == (9, 30_000, 0)

    run(test())


TEXT = b'[DONE] \\"type\\": \\"message_stop\\" \\n\\ndata: [DONE]'


@pytest.mark.parametrize(
    ("last", "over"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\r\n\r\n", True),
        (b'event: message_stop\ndata: {"type":"message_stop"}\n\n', True),
        (b'data: {"response":{},\ndata: "type": "response.completed"}\n\n', True),
        (b'data: {"type":"content_block_delta","delta":{"text":"%b"}}\n\n' % TEXT, False),
        (b'data: {"delta":{"type":"message_stop"}}\n\n', False),
        (b": [DONE]\n\n", False),
        (b"event: [DONE]\n\n", False),
        (b'data: "%b\ndata: [DONE]\n\n' % TEXT, False),
        (b'data: {"text":"' + b"x" * (1 << 20) + b"[DONE]\n\n", False),
    ],
)
def test_a_stream_is_over_with_its_last_event(tmp_path: Path, last: bytes, over: bool) -> None:
    """Some clients hang up then: what it has told counts, and nothing is estimated. What a model says ends none."""

    async def test() -> None:
        async def stream(_request: h11.Request, _body: bytes, writer: Writer) -> bytes | None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENTS + b": \n" * 900 + last)
            await writer.drain()
            return None

        vendor, counts = Vendor(stream), Spending({})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 << 20)
            writer.write(request("/v1/messages", body=WORDS))
            await reader.readuntil(last[-40:])
            await ended(writer)
            await vendor.left.wait()
            await asyncio.sleep(0.1)
            size = len(EVENTS + last) + 3 * 900
            made = (50, 0) if over else (size // 4, size // 4)
            assert (counts.input, counts.output, counts.estimated) == (107, *made)

    run(test())


def test_counts_go_on_where_an_earlier_attempt_left_them(tmp_path: Path) -> None:
    """What was under way when it ended took all that it could; a rate holds across its end, too."""
    path = str(tmp_path / "usage.json")

    async def test() -> None:
        first = Spending({"tokens": 500_000, "requests": 3, "upload": 100}, path)
        for _ in range(2):
            aside = await first.begin(b"POST", {b"content-length": b"10"})
            first.sent(30)
        first.end(aside)
        second = Spending({"tokens": 500_000, "requests": 3, "upload": 100}, path)
        assert (second.requests, second.output, second.estimated, second.upload) == (2, 128_010, 128_010, 60)
        await second.begin(b"GET", {})
        with pytest.raises(Exceeded, match="3 requests in a minute"):
            await second.begin(b"GET", {})
        with pytest.raises(Exceeded, match="100 bytes"):
            second.sent(41)
        with pytest.raises(Exceeded, match="tokens is used up: 128,010 used"):
            await Spending({"tokens": 100_000}, path).begin(b"GET", {})

    looped(test())


@pytest.mark.parametrize("bounds", [{"tokens": 10**6}, {"upload": 10_000}, {"requests": 5}])
def test_with_a_budget_no_connection_is_upgraded(tmp_path: Path, bounds: dict[str, int]) -> None:
    """Nothing of a WebSocket would be counted. The request itself is made, without the wish."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending(bounds)
        wish = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/ws", *wish, method="GET"))
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            await ended(writer)
        assert not {b"upgrade", b"connection"} & {name for name, _ in vendor.requests[0].headers}

    run(test())


@pytest.mark.parametrize(
    ("headers", "bounds", "status"),
    [
        (("Content-Encoding: gzip",), {"tokens": 10**6}, 403),
        (("content_encoding: zstd",), {"tokens": 10**6}, 403),
        (("Content-Encoding: identity", "Content-Encoding: br"), {"tokens": 10**6}, 403),
        (("Content-Encoding: identity",), {"tokens": 10**6}, 200),
        (("Content-Encoding: gzip",), {"upload": 10**6}, 200),
        (("Content-Encoding: gzip",), {}, 200),
    ],
)
def test_a_compressed_request_passes_no_budget_of_tokens(
    tmp_path: Path, headers: tuple[str, ...], bounds: dict[str, int], status: int
) -> None:
    """Its bytes say nothing of what the vendor reads; other budgets bound what is sent."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending(bounds)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            said = await asked(port, request("/v1/messages", *headers, "Connection: close", body=WORDS))
            assert said.startswith(b"HTTP/1.1 %d " % status), said
            assert (b"compressed request" in said) is (status == 403)
            chunked = request("/v1/messages", "Transfer-Encoding: gzip, chunked").replace(b"Content-Length: 0\r\n", b"")
            assert (await asked(port, chunked)).startswith(b"HTTP/1.1 501 ")
        assert len(vendor.requests) == (status == 200)

    run(test())


_COUNTED = [
    ("POST", "/v1/messages?beta=true", True),
    ("POST", "/v1/messages/count_tokens?beta=true", True),
    ("POST", "/v1/responses", True),
    ("POST", "/v1/responses/compact", True),
    ("POST", "/v1/chat/completions", True),
    ("POST", "/v1/embeddings", True),
    ("POST", "/v1/models/g:generateContent", True),
    ("POST", "/v1/models/g:streamGenerateContent?alt=sse", True),
    ("GET", "/v1/models", True),
    ("GET", "/v1/responses/resp_1", True),
    ("POST", "/v1/messages;/count_tokens", False),
    ("POST", "/v1/messages%3F/count_tokens", False),
    ("POST", "/v1/messages;x", False),
    ("POST", "/v1/async/chat/completions", False),
    ("POST", "/v1/fine_tuning/jobs", False),
    ("POST", "/v1/evals/eval_1/runs", False),
    ("POST", "/v1/videos", False),
    ("POST", "/v1/audio/speech", False),
    ("POST", "/v1/threads/t/runs", False),
    ("POST", "/v1/interactions", False),
    ("POST", "/v1/models/g:batchEmbedContents", False),
    ("PUT", "/v1/messages", False),
]


@pytest.mark.parametrize(("method", "target", "counted"), _COUNTED)
def test_a_budget_of_tokens_lets_pass_only_what_it_can_count(
    tmp_path: Path, method: str, target: str, counted: bool
) -> None:
    """What reads, and what is known to report its tokens; without one, all that the phantom is good for."""

    async def test() -> None:
        for bounds in ({"tokens": 10**6}, {"requests": 9}):
            vendor, counts = Vendor(), Spending(bounds)
            async with serving(vendor) as url, proxy(tmp_path, held=held(url, "method=*"), spending=counts) as port:
                wanted = request(target, "Connection: close", method=method, body="{}" if method == "POST" else "")
                said = await asked(port, wanted)
            passes = counted or "tokens" not in bounds
            assert said.startswith(b"HTTP/1.1 200 " if passes else b"HTTP/1.1 403 "), said
            assert (b"not known to report its tokens" in said) is not passes
            assert (b"ask the user to start Paddock without --budget tokens" in said) is not passes
            assert len(vendor.requests) == passes

    run(test())


def test_what_reads_only_in_name_passes_no_budget(tmp_path: Path) -> None:
    """A `GET` with content could be taken for more; without a budget it is the vendor's affair."""

    async def test() -> None:
        for bounds, status in (({"tokens": 10**6}, 403), ({"requests": 9}, 200)):
            vendor, counts = Vendor(), Spending(bounds)
            async with serving(vendor) as url, proxy(tmp_path, held=held(url, "method=*"), spending=counts) as port:
                wanted = request("/v1/responses", "Connection: close", "Content-Length: 2", method="GET")
                said = await asked(port, wanted + b"{}")
            assert said.startswith(b"HTTP/1.1 %d " % status), said

    run(test())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"model": "m", "background": true}', "background"),
        ('{"background": true, "background": false}', "background"),
        ('{"background": "yes"}', "background"),
        ('{"b\\u0061ckground": 1, "stream": true}', "background"),
        ('{"Background": {}}', "background"),
        ('{"messages": [], "deferred": true}', "deferred"),
        ("background=true", "as JSON"),
        ("[" * 100_000, "as JSON"),
        ("", "as JSON"),
        ('{"n": 128}', "several answers to one request (n)"),
        ('{"prompt": "p", "best_of": 2.5}', "(best_of)"),
        ('{"generationConfig": {"candidateCount": 8}}', "(candidateCount)"),
        ('{"generation_config": {"candidate_count": "8"}}', "(candidate_count)"),
        ('{"prompt": ["p", "q"]}', "(prompt)"),
        ('{"prompt": [[1, 2], [3]]}', "(prompt)"),
        ('{"background": false, "deferred": null}', ""),
        ('{"n": 1, "best_of": null, "prompt": [1, 2, 3], "generationConfig": {"candidateCount": 1}}', ""),
        ('{"messages": [{"generationConfig": {"candidateCount": 8}, "n": 2}], "prompt": ["p"]}', ""),
        ('{"tools": [{"type": "image_generation", "background": "opaque"}], "input": "\\"background\\": true"}', ""),
    ],
)
def test_work_in_the_background_passes_no_budget_of_tokens(tmp_path: Path, content: str, why: str) -> None:
    """Its answer is there before its tokens are. The vendor gets nothing of it, and of all else every byte."""

    async def test() -> None:
        for bounds in ({"tokens": 10**6}, {"requests": 9}):
            vendor, counts = Vendor(), Spending(bounds)
            async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
                said = await asked(port, request("/v1/responses", "Connection: close", body=content))
            if why and "tokens" in bounds:
                assert said.startswith(b"HTTP/1.1 403 "), said
                assert why.encode() in said
                assert b"without --budget tokens" in said
                assert (vendor.bodies, counts.input, counts.output) == ([], 0, 0)
            else:
                assert said.startswith(b"HTTP/1.1 200 "), said
                assert vendor.bodies == [content.encode()]

    run(test())


def test_a_client_that_waits_for_a_word_before_it_sends_its_content_gets_it(tmp_path: Path) -> None:
    """The vendor cannot say it: it is asked once all is there."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending({"tokens": 10**6})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head, content = request("/v1/responses", "Expect: 100-continue", body=WORDS).split(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(content)
            await reader.readuntil(b"\r\n\r\n" + content)
            await ended(writer)
        assert vendor.bodies == [content]

    run(test())


def test_who_leaves_before_its_content_is_whole_takes_nothing(tmp_path: Path) -> None:
    """With a budget the vendor has nothing of it then."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending({"tokens": 10**6})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/responses", body=WORDS)[:-1])
            while not counts.upload:
                await asyncio.sleep(0.005)
            await ended(writer)
            while counts._aside:
                await asyncio.sleep(0.005)
        assert (vendor.requests, counts.input, counts.output) == ([], 0, 0)

    run(test())


def test_a_request_that_is_too_long_to_be_looked_at_passes_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held back until it is whole."""
    monkeypatch.setattr(vendors, "LARGEST", 1000)

    async def test() -> None:
        vendor, counts = Vendor(), Spending({"tokens": 10**6})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            for size, status in ((900, 200), (1100, 403)):
                body = json.dumps("w" * size)
                said = await asked(port, request("/v1/responses", "Connection: close", body=body))
                assert said.startswith(b"HTTP/1.1 %d " % status), said
        assert len(vendor.bodies) == 1

    run(test())


@pytest.mark.parametrize(
    ("bounds", "passed", "together"),
    [({"tokens": 150}, 2, 1), ({"tokens": 300_000}, 8, 2), ({"requests": 3}, 3, 3), ({}, 8, 8)],
)
def test_requests_at_once_do_not_pass_a_budget_together(
    tmp_path: Path, bounds: dict[str, int], passed: int, together: int
) -> None:
    """Each has aside what it could take, so that one at most goes beyond; what only reads waits for nobody."""

    async def test() -> None:
        now = most = 0
        everybody = asyncio.Event()

        async def slow(_request: h11.Request, _body: bytes, _writer: Writer) -> bytes:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == together:
                everybody.set()
            await asyncio.wait_for(everybody.wait(), 20)
            await asyncio.sleep(0.05)
            now -= 1
            usage = b'{"usage":{"input_tokens":100,"output_tokens":0}}'
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(usage)}\r\n\r\n".encode()
            return head + usage

        vendor, counts = Vendor(slow), Spending(bounds)
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            one = request("/v1/messages", "Connection: close", body=WORDS)
            said = await asyncio.gather(*(asked(port, one) for _ in range(8)))
            assert most == together
            assert [each.split(b" ")[1] == b"200" for each in said].count(True) == passed
            assert (counts.requests, counts.input, counts.refused) == (passed, 100 * passed, 8 - passed)
            assert counts._aside == 0

    run(test())


def test_a_request_that_waits_too_long_may_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way may take an hour; a request without a length goes alone, and what only reads at once."""
    monkeypatch.setattr(spending, "_HELD", 0.2)

    async def test() -> None:
        counts = Spending({"tokens": 1_000_000})
        aside = await counts.begin(b"POST", {b"transfer-encoding": b"chunked"})
        assert await counts.begin(b"GET", {}) == 0
        with pytest.raises(Exceeded, match="under way") as caught:
            await counts.begin(b"POST", {b"content-length": b"5"})
        assert caught.value.wait > 0
        counts.end(aside)
        assert await counts.begin(b"POST", {b"content-length": b"5"}) == 128_005

    looped(test())


def test_who_has_left_while_it_waited_takes_nothing(tmp_path: Path) -> None:
    """Its request is none any more when its turn comes: else all of those would go at once, and nobody would wait."""

    async def test() -> None:
        goes_on = asyncio.Event()

        async def slow(_request: h11.Request, _body: bytes, _writer: Writer) -> bytes:
            await goes_on.wait()
            usage = b'{"usage":{"input_tokens":100,"output_tokens":0}}'
            return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(usage), usage)

        vendor, counts = Vendor(slow), Spending({"tokens": 3000})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            first = asyncio.create_task(asked(port, request("/v1/messages", "Connection: close", body=WORDS)))
            while not vendor.requests:
                await asyncio.sleep(0.005)
            for _ in range(5):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request("/v1/messages", body=WORDS))
                await writer.drain()
                await asyncio.sleep(0.02)
                writer.close()
            await asyncio.sleep(0.1)
            goes_on.set()
            assert b" 200 " in await first
            assert b" 200 " in await asked(port, request("/v1/messages", "Connection: close", body=WORDS))
        assert len(vendor.requests) == 2

    run(test())


@pytest.mark.parametrize(("strict", "counted"), [(True, (400, 128_000)), (False, (0, 0))])
def test_what_reports_nothing_counts_as_the_most_that_it_could_take(strict: bool, counted: tuple[int, int]) -> None:
    """With a budget, a whole answer without a word of tokens, or with zeros: else it would pass for nothing."""
    for text in (b"", b'{"x": "y"}', b'{"usage": {"input_tokens": 0}}', b'{"status": "queued", "usage": null}', b"x"):
        tally = Tally(strict=strict)
        tally.sent = 400
        tally.answered(200, {b"content-type": b"application/json"})
        tally.feed(text)
        tally.complete()
        assert tally.end()[:2] == counted, text


def test_a_budget_of_requests_says_when_to_ask_again(tmp_path: Path) -> None:
    """429 with a time, which SDKs obey."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending({"requests": 2})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            statuses = [
                (await asked(port, request("/v1/messages", "Connection: close"))).split(b" ")[1] for _ in range(2)
            ]
            assert statuses == [b"200", b"200"]
            said = await asked(port, request("/v1/messages", "Connection: close"))
            assert said.startswith(b"HTTP/1.1 429 ")
            wait = next(line for line in said.split(b"\r\n") if line.startswith(b"Retry-After: "))
            assert 50 <= int(wait.split()[1]) <= 60

    run(test())


def test_a_budget_of_upload_ends_a_request_in_its_middle(tmp_path: Path) -> None:
    """No more than that leaves the machine."""

    async def test() -> None:
        vendor, counts = Vendor(), Spending({"upload": 100_000})
        async with serving(vendor) as url, proxy(tmp_path, allow=NOTHING, held=held(url), spending=counts) as port:
            assert b" 200 " in await asked(port, request("/v1/messages", "Connection: close", body="w" * 60_000))
            said = await asked(port, request("/v1/messages", "Connection: close", body="w" * 60_000))
            assert said.startswith(b"HTTP/1.1 403 "), said
            assert b"budget of 100,000 bytes to send" in said
            said = await asked(port, request("/v1/x?" + "y" * 30_000, "x: " + "y" * 30_000, "Connection: close"))
            assert said.startswith(b"HTTP/1.1 403 "), said
        assert len(vendor.requests) == 1

    run(test())


@pytest.mark.parametrize(
    ("kind", "answer_text", "tokens"),
    [
        ("json", '{"usage": {"input_tokens": 3, "output_tokens": 4}}', (3, 4)),
        ("json", '{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}', (3, 4)),
        ("json", '{"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":4,"thoughtsTokenCount":5,'
         '"totalTokenCount":12}}', (3, 9)),
        ("json", '{"object": "list", "data": []}', (0, 0)),
        ("json", '{"usage": {"input_tokens": "3", "output_tokens": -4}}', (0, 0)),
        ("json", '{"usage": 7}', (0, 0)),
        ("json", "[" * 100_000 + '"usage"', (0, 0)),
        ("event-stream", 'data: {"response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}\n\n', (3, 4)),
        ("event-stream", 'data: {"usageMetadata": {"promptTokenCount": 3}}\r\n\r\ndata: {"usageMetadata": '
         '{"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7}}\r\n\r\n', (3, 4)),
        ("json", '[{"usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}}\r\n,\r\n{"usageMetadata": '
         '{"promptTokenCount": 3, "thoughtsTokenCount": 30000, "totalTokenCount": 30003}}]\r\n', (3, 30_000)),
        ("json", '{"usageMetadata": {"promptTokenCount": 3, "toolUsePromptTokenCount": 20, "candidatesTokenCount": 4, '
         '"totalTokenCount": 27}}', (23, 4)),
        ("json", '{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 307}}', (3, 304)),
        ("json", '{"usage": {"input_tokens": 23, "output_tokens": 10, "iterations": [{"type": "compaction", '
         '"input_tokens": 180, "output_tokens": 35}, {"input_tokens": 23, "output_tokens": 10}]}}', (203, 45)),
        ("event-stream", 'data: {"response": {"usage": {"input_tokens": 3, "output_tokens": 4}, "tool_usage": '
         '{"image_gen": {"input_tokens": 50, "output_tokens": 6000}, "web_search": {"num_requests": 1}}}}\n\n',
         (53, 6004)),
    ],
)  # fmt: skip
def test_tokens_are_read_in_the_words_of_each_api(kind: str, answer_text: str, tokens: tuple[int, int]) -> None:
    """In pieces of any size; what is no count is none."""
    for size in (1, 7, 1 << 20):
        if size == 1 and len(answer_text) > 10_000:
            continue
        tally = Tally()
        media = b"text/event-stream; charset=utf-8" if kind == "event-stream" else b"application/json"
        tally.answered(200, {b"content-type": media})
        for at in range(0, len(answer_text), size):
            tally.feed(answer_text[at : at + size].encode())
        tally.complete()
        assert tally.end()[:2] == tokens


@pytest.mark.parametrize(
    ("usage", "estimated", "most"),
    [
        ('"usageMetadata": {"promptTokenCount": 3}', (3, 250, 250), (3, 128_000, 128_000)),
        ('"usageMetadata": {"candidatesTokenCount": 4}', (100, 250, 350), (400, 128_000, 128_400)),
        ('"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}', (3, 250, 250), (3, 128_000, 128_000)),
        ('"usageMetadata": {"totalTokenCount": 9}', (0, 9, 0), (0, 9, 0)),
        ('"usage": {"prompt_tokens": 3, "total_tokens": 3}', (3, 0, 0), (3, 0, 0)),
        ('"usage": {"prompt_tokens": 3, "completion_tokens": 4}', (3, 250, 250), (3, 128_000, 128_000)),
        ('"error": {"type": "overloaded_error"}, "usage": {"input_tokens": 3}', (3, 250, 250), (3, 250, 250)),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_part_that_is_not_reported_is_estimated(
    usage: str, estimated: tuple[int, int, int], most: tuple[int, int, int], strict: bool
) -> None:
    """A client can choose what a vendor reports. With a budget it counts in full, unless the vendor itself failed."""
    tally = Tally(strict=strict)
    tally.sent = 400
    tally.answered(200, {b"content-type": b"application/json"})
    tally.feed(b"{%b}" % usage.encode().ljust(998))
    tally.complete()
    assert tally.end() == (most if strict else estimated)


def test_a_stream_that_the_vendor_ends_with_an_error_counts_what_there_was() -> None:
    """An overloaded vendor says so in its stream, and agents try again ten times."""
    for begun, counted in ((b"", (100, 31)), (EVENTS[: EVENTS.index(b"\n\n") + 2], (107, 50))):
        tally = Tally(strict=True)
        tally.sent = 400
        tally.answered(200, {b"content-type": b"text/event-stream"})
        failure = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
        for piece in (begun, failure.ljust(124 if not begun else 200 - len(begun), b"\n")):
            tally.feed(piece)
        tally.complete()
        assert tally.end()[:2] == counted


def test_an_error_costs_nothing_and_a_compressed_answer_is_estimated() -> None:
    """The first is not billed, and the second cannot be read."""
    for status, headers, tokens in ((500, {}, 0), (200, {b"content-encoding": b"gzip"}, 100)):
        tally = Tally()
        tally.answered(status, headers)
        tally.feed(b"x" * 400)
        tally.complete()
        assert tally.end()[1] == tokens
