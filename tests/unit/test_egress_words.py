"""What the proxy reads from strangers: SOCKS5, HTTP heads, credentials, upstream proxies."""

import base64
import ipaddress

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.egress import exchange, http, socks
from launcher.egress.gateway import connect_answer
from launcher.egress.outside import Upstreams
from policy.egress_rules import Request
from policy.errors import Refusal


def test_socks_is_read_in_order() -> None:
    """Greeting, password, request, each with what comes behind it."""
    assert socks.greeting(b"\x05\x02\x00\x02rest") == (True, b"rest")
    assert socks.greeting(b"\x05\x01\x00") == (False, b"")
    assert socks.password(b"\x01\x01u\x03abcrest") == ("abc", b"rest")
    request = b"\x05\x01\x00\x03\x0bExample.com\x01\xbb"
    assert socks.wish(request + b"x") == (socks.Wish(1, "example.com", 443, "Example.com"), b"x")
    assert socks.wish(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50") == (
        socks.Wish(1, ipaddress.ip_address("127.0.0.1"), 80, "127.0.0.1"),
        b"",
    )
    found = socks.wish(b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50")
    assert found is not None
    assert found[0].host == ipaddress.ip_address("::1")


@pytest.mark.parametrize(
    "name", [b"127.1", b"0x7f.1", b"a\0b", b"a@b", b"a%2e", b"[::1", b"fe80::1%lo", b"\xff.com", b""]
)
def test_a_strange_name_in_socks_is_no_host(name: bytes) -> None:
    """It is read, and means nothing; IPv4 embedded in IPv6 too."""
    found = socks.wish(b"\x05\x01\x00\x03" + bytes((len(name),)) + name + b"\x00\x50")
    assert found is not None
    assert found[0].host is None
    mapped = socks.wish(b"\x05\x01\x00\x04" + ipaddress.ip_address("::ffff:127.0.0.1").packed + b"\x00\x50")
    assert mapped is not None
    assert mapped[0].host is None


@given(st.binary(max_size=300))
def test_no_bytes_break_the_readers_of_socks(data: bytes) -> None:
    """They wait, understand, or say that it is malformed."""
    for read in (socks.greeting, socks.password, socks.wish):
        try:
            found = read(data)
        except socks.Malformed:
            continue
        assert found is None or data.endswith(found[1])


def head_of(text: str) -> http.Head:
    """What a request means. `text`: its lines, separated by |."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(text.replace("|", "\r\n").encode("latin-1") + b"\r\n\r\n")
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    return http.understood(request)


def test_a_plain_request_is_understood() -> None:
    """Host, port, path, what is passed on and what is not."""
    head = head_of("GET http://Example.com/a?b=1 HTTP/1.1|Host: example.com|X: 1|Connection: keep-alive, Y|Y: 2|TE: x|"
                   "Proxy-Authorization: Basic eA==|Upgrade: h2c")  # fmt: skip
    assert head.wanted == Request("example.com", 80, "GET", "/a?b=1")
    assert [name for name, _ in head.headers] == [b"X"]
    written = h11.Connection(h11.CLIENT).send(http.for_server(head, None))
    assert written == b"GET /a?b=1 HTTP/1.1\r\nHost: example.com\r\nX: 1\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("lines", "content", "restated"),
    [
        ("X: 1", False, ""),
        ("Content-Length: 0", False, ""),
        ("Content-Length: 5", True, ""),
        ("Transfer-Encoding: chunked", True, ""),
        ("X-HTTP-Method-Override: DELETE", False, "x-http-method-override"),
        ("x_original_url: /secret", False, "x_original_url"),
    ],
)
def test_what_could_be_carried_past_a_rule_is_noticed(lines: str, content: bool, restated: str) -> None:
    """Content where none has a meaning, and headers that state the method or the path once more."""
    wanted = head_of(f"GET http://a.com/ HTTP/1.1|Host: a.com|{lines}").wanted
    assert (wanted.content, wanted.restated) == (content, restated)


@pytest.mark.parametrize(
    ("query", "restated"),
    [
        ("$httpMethod=DELETE", "$httpmethod"),
        ("a=1&%24http%48eaders=x-goog-api-key:F", "$httpheaders"),
        ("a=1;$http_method[]=DELETE", "$http-method[]"),
        ("_method=DELETE", "-method"),
        ("x=1&+_METHOD=DELETE", "+-method"),
        ("X-HTTP-Method-Override=DELETE", "x-http-method-override"),
        ("method=flickr.echo&httpd=1&my_method=2&alt=sse&$alt=json&q=_method&$.xgafv=2", ""),
    ],
)
def test_a_query_that_states_the_method_once_more_is_noticed(query: str, restated: str) -> None:
    """Or headers, however it is spelt: some vendors' front ends obey."""
    assert head_of(f"GET http://a.com/x?{query} HTTP/1.1|Host: a.com").wanted.restated == restated


def test_a_tunnel_is_understood() -> None:
    """With a Host header that agrees, with and without its port, or without any in HTTP/1.0."""
    for lines in ("HTTP/1.1|Host: example.com:443", "HTTP/1.1|Host: EXAMPLE.com", "HTTP/1.0"):
        head = head_of(f"CONNECT example.com:443 {lines}")
        assert head.wanted == Request("example.com", 443)


# fmt: off
BAD = [
    "GET / HTTP/1.1|Host: example.com", "GET https://example.com/ HTTP/1.1|Host: example.com",
    "GET http://a.com/ HTTP/1.1|Host: b.com", "GET http://a.com/ HTTP/1.1|Host: a.com:81",
    "GET http://a.com:80/ HTTP/1.1|Host: a.com:8080", "CONNECT a.com:443 HTTP/1.1|Host: b.com:443",
    "CONNECT a.com:443 HTTP/1.1|Host: a.com:80", "CONNECT a.com HTTP/1.1|Host: a.com",
    "CONNECT a.com:0 HTTP/1.1|Host: a.com:0", "CONNECT a.com:65536 HTTP/1.1|Host: x",
    "CONNECT a.com:0443 HTTP/1.1|Host: x",
    "CONNECT a.com:443 HTTP/1.1|Host: a.com:443|Content-Length: 5",
    "CONNECT a.com:443 HTTP/1.1|Host: a.com:443|Transfer-Encoding: chunked",
    "GET http://u:p@a.com/ HTTP/1.1|Host: a.com", "GET http://a.com@b.com/ HTTP/1.1|Host: b.com",
    "GET http://a.com\\b.com/ HTTP/1.1|Host: a.com", "GET http://a.com%00.b.com/ HTTP/1.1|Host: a.com",
    "GET http://a.com#@b.com/ HTTP/1.1|Host: a.com", "GET http:///x HTTP/1.1|Host: a.com",
    "GET http://[::1/ HTTP/1.1|Host: a.com", "GET http://[::1]x/ HTTP/1.1|Host: a.com",
    "GET http://[fe80::1%25lo]/ HTTP/1.1|Host: a.com", "GET http://[::ffff:7f00:1]/ HTTP/1.1|Host: a.com",
    "GET http://0x7f000001/ HTTP/1.1|Host: 0x7f000001", "GET http://2130706433/ HTTP/1.1|Host: 2130706433",
    "GET http://0177.0.0.1/ HTTP/1.1|Host: 0177.0.0.1", "GET http://127.1/ HTTP/1.1|Host: 127.1",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content-Length: 5|Transfer-Encoding: chunked",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Transfer-Encoding: chunked|Content-Length: 5",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content-Length: 5|Transfer_Encoding: chunked",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content_Length: 5", "GET http://a.com/ HTTP/1.1|Host: a.com|Host_: b.com",
    "GET http://a.com/ HTTP/1.1|Host: a.com|Transfer.Encoding: chunked",
    "OPTIONS * HTTP/1.1|Host: a.com", "GET ftp://a.com/ HTTP/1.1|Host: a.com",
    "GET http://a.com/#x HTTP/1.1|Host: a.com",
    "GET http://a.com/ HTTP/2.0|Host: a.com", "PRI * HTTP/2.0|Host: a.com", "GET http://a.com/ HTTP/1.2|Host: a.com",
]
BROKEN = [
    "GET http://a.com/ HTTP/1.1|Host: a.com|Host: b.com", "GET http://a.com/ HTTP/1.1",
    "GET http://a.com/ HTTP/1.1|Host : a.com", "GET http://a.com/ HTTP/1.1|Host: a.com|X\0: 1",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content-Length: 5|Content-Length: 6",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content-Length: +5",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Content-Length: 5,6",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Transfer-Encoding: gzip, chunked",
    "POST http://a.com/ HTTP/1.1|Host: a.com|Transfer-Encoding: xchunked", "GET http://a.com/\t HTTP/1.1|Host: a.com",
    "GET  http://a.com/ HTTP/1.1|Host: a.com",
]
# fmt: on


@pytest.mark.parametrize("text", BAD)
def test_a_request_with_two_readings_is_not_carried_out(text: str) -> None:
    """Authority against Host, lengths against each other, hosts in disguise."""
    with pytest.raises(http.Bad):
        head_of(text)


def test_a_reason_has_no_spaces_of_a_clients() -> None:
    """It is shown as Paddock's words, and could go on in the next row of a terminal as a hint."""
    with pytest.raises(http.Bad) as caught:
        head_of(f"GET http://a.com/ HTTP/1.1|Host: x{' ' * 70}to\xa0allow it --ro ~/.ssh")
    assert " --ro" not in str(caught.value)
    assert "  " not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", BROKEN)
def test_a_request_that_is_not_http_is_not_carried_out(text: str) -> None:
    """The parser already says no."""
    with pytest.raises(h11.RemoteProtocolError):
        head_of(text)


@given(st.text(alphabet="GET http://a.com:80/@[]%\\#?\0\t\r\nHost:|", max_size=60))
def test_no_head_breaks_the_reader(text: str) -> None:
    """It is understood, bad, or not HTTP; what is understood has the host that it names."""
    try:
        head = head_of(f"GET http://{text} HTTP/1.1|Host: a.com")
    except (http.Bad, h11.RemoteProtocolError, AssertionError):
        return
    assert head.wanted.host == "a.com"


def test_the_token_is_the_password() -> None:
    """In any case of the scheme's name; nothing else is one."""
    good = base64.b64encode(b"paddock:secret")
    assert exchange.valid_token(exchange.presented_token(b"Basic " + good), "secret")
    assert exchange.valid_token(exchange.presented_token(b"basic  " + good), "secret")
    for header in (
        b"",
        good,
        b"Bearer " + good,
        b"Basic secret",
        b"Basic " + base64.b64encode(b"secret"),
        b"Basic \xff",
    ):
        assert not exchange.valid_token(exchange.presented_token(header), "secret")


ENVIRONMENT = {"HTTPS_PROXY": "http://u:p%40@proxy.corp:3128", "http_proxy": "plain.corp", "HTTP_PROXY": "http://other"}


def test_the_upstream_proxy_comes_from_the_environment() -> None:
    """As curl reads it: by kind, lower case first, with credentials."""
    found = Upstreams(ENVIRONMENT)
    tunnel = found.choose(Request("example.com", 443))
    assert tunnel == ("proxy.corp", 3128, b"Basic " + base64.b64encode(b"u:p@"))
    assert found.choose(Request("example.com", 80, "GET", "/")) == ("plain.corp", 80, b"")
    assert Upstreams({"all_proxy": "http://x:1"}).choose(Request("example.com", 443)) == ("x", 1, b"")
    assert Upstreams({}).choose(Request("example.com", 443)) is None


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "direct"),
    [
        ("*", "example.com", 443, True),
        ("example.com", "example.com", 443, True),
        ("example.com", "www.example.com", 443, True),
        (".example.com", "www.example.com", 443, True),
        ("*.example.com", "www.example.com", 443, True),
        ("example.com", "badexample.com", 443, False),
        ("example.com:8080", "example.com", 443, False),
        ("example.com:443", "example.com", 443, True),
        ("a.b, 10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.0.0.0/8", "example.com", 443, False),
        ("2600::/16,[::2]:443", "2600::1", 443, True),
        ("[2600::1]:443", "2600::1", 443, True),
        ("", "127.0.0.1", 443, True),
        ("", "localhost", 443, True),
        (",", "example.com", 443, False),
    ],
)
def test_no_proxy_names_what_is_dialled_directly(no_proxy: str, host: str, port: int, direct: bool) -> None:
    """Suffixes by whole labels, ports, ranges; the loopback always."""
    host_or_address: str | ipaddress.IPv4Address | ipaddress.IPv6Address = host
    if ":" in host or host[0].isdigit():
        host_or_address = ipaddress.ip_address(host)
    found = Upstreams({"ALL_PROXY": "http://p", "NO_PROXY": no_proxy}).choose(Request(host_or_address, port))
    assert (found is None) == direct


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p", "http://", "http://p:x", "http://[::1"])
def test_another_kind_of_upstream_proxy_is_refused(url: str) -> None:
    """Without a word of its credentials."""
    with pytest.raises(Refusal) as caught:
        Upstreams({"HTTPS_PROXY": url.replace("://", "://me:hush@")})
    assert caught.value.reference == "upstream-proxy"
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("data", [b"x" * 70000, b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_an_upstream_that_speaks_no_http_is_given_up(data: bytes) -> None:
    """Its answer is bounded too."""
    with pytest.raises(ValueError):
        connect_answer(data)
    assert connect_answer(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nrest") == (200, b"rest")
