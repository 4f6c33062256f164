"""What the page shows of what anybody wrote: text, visible, bounded, and never markup."""

import re
import unicodedata
from pathlib import Path

import pytest
from markupsafe import Markup

from launcher.service.page import rendering
from launcher.service.page.rendering import MOST_SHOWN, environment, path, visible, visible_lines
from policy.errors import unseen
from tests.support.paged import paged

TEMPLATES = sorted((rendering.ROOT / "templates").glob("*.html"))
ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onfocus='alert(1)' autofocus='",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></pre><iframe srcdoc='x'>",
    "&lt;b&gt;",
)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.name)
def test_templates_hold_nothing_that_runs_or_trusts(template: Path) -> None:
    """No `safe`, no style or handler in an element, no script but files, nothing from elsewhere."""
    text = template.read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|Markup|autoescape", text)
    assert not re.search(r"<[^>{%]*\s(on\w+|style|srcdoc)\s*=", text, re.IGNORECASE)
    assert not re.search(r"<(iframe|object|embed|base|style)\b", text, re.IGNORECASE)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    assert not re.search(r"(https?:)?//\w", text.replace("http-equiv", ""))
    # A value is always within quotes: an attribute without them would end at a blank.
    assert not re.search(r"=\{\{", text)


def test_the_packages_own_code_makes_markup_in_one_place() -> None:
    """`Markup` is for constants of our own, with what is put in escaped."""
    for file in sorted(rendering.ROOT.glob("*.py")):
        for line in re.findall(r"Markup\(.*", file.read_text(encoding="utf-8")):
            assert re.match(r"Markup\('[^{]*", line), (file.name, line)
        assert file.name == "rendering.py" or "Markup" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_is_never_markup(attack: str) -> None:
    """In an element, in an attribute, through filters and macros."""
    made = environment().from_string(
        '<p title="{{ text }}">{{ text }}{{ text|lines }}{{ text|cut(500) }}</p>'
        '<a href="{{ path("a", text, q=text) }}"></a>'
    )
    html = made.render(text=attack)
    assert html.count("<") == html.count(">") == 4
    assert set(re.findall(r"<(/?\w+)", html)) == {"p", "/p", "a", "/a"}
    assert html.count('"') == 4
    assert "'" not in html.replace("&#39;", "")


def test_what_cannot_be_seen_is_shown() -> None:
    """Controls, direction, fillers, piled marks, and bytes that are no UTF-8."""
    assert visible("a\x1b[31mb\x07\r\n\t") == r"a\x1b[31mb\x07\r\n\t"
    assert visible("user\u202egnp.exe\u2066\u200b\ufeff") == r"user\u202egnp.exe\u2066\u200b\ufeff"
    assert visible("\u3164\u115f\u2800\ufe0f\U000e0101\U000e0041") == r"\u3164\u115f\u2800\ufe0f\U000e0101\U000e0041"
    assert visible("a" + "\u0301" * 40) == "a" + r"\u0301" * 40
    assert (
        visible("e\u0301 Stra\u00dfe \u05e9\u05dc\u05d5\u05dd \u4e2d")
        == "e\u0301 Stra\u00dfe \u05e9\u05dc\u05d5\u05dd \u4e2d"
    )
    assert visible(b"a\xff\xfe".decode(errors="surrogateescape")) == r"a\udcff\udcfe"
    assert visible_lines("a\tb\n\x1b]0;x\x07") == "a\tb\n" + r"\x1b]0;x\x07"


def test_what_is_long_is_cut() -> None:
    """With how much more there is; ten megabytes cost no more than what is shown."""
    assert visible("x" * MOST_SHOWN) == "x" * MOST_SHOWN
    assert visible("é" * (MOST_SHOWN + 10)).endswith(" … 20 more bytes")
    assert len(visible("\x00" * 10_000_000)) < 5 * MOST_SHOWN
    assert len(visible_lines("y" * 10_000_000)) < 70_000
    html = environment().from_string("{{ text }}").render(text="<" * 10_000_000)
    assert len(html) < 5 * MOST_SHOWN


def test_the_terminal_escapes_what_every_other_output_does() -> None:
    """But what a terminal acts on, blanks, and what joins or shapes signs that are seen; and nothing that is seen."""
    script = (rendering.ROOT / "static/terminal.js").read_text(encoding="utf-8")
    classes = []
    for name in ("UNSEEN", "MARKS"):
        found = re.search(rf"const {name} =(.*?);\n", script, re.DOTALL)
        assert found is not None
        text = "".join(re.findall('"(.*?)"', found[1]))
        classes.append(re.sub(r"\\u\{?([0-9a-f]{4,5})\}?", lambda each: chr(int(each[1], 16)), text))
    escaped = re.compile(f"[{classes[0]}]")
    piled = re.compile(f"[{classes[1]}]{{3}}")
    for char in map(chr, range(0xA1, 0x110000)):
        if unicodedata.category(char) not in ("Zs", "Cs", "Co", "Cn") and char not in "\u200c\u200d\ufe0e\ufe0f":
            assert bool(escaped.match(char)) == bool(unseen(f"a{char}b")), hex(ord(char))
            if not escaped.match(char):
                assert bool(piled.match(char * 3)) == bool(unseen("a" + char * 3)), hex(ord(char))


def test_a_segment_of_an_address_is_one_segment() -> None:
    """Whatever it is called: none leads elsewhere."""
    assert path("worktrees", "../../x y?#", q="a&b=c") == "/worktrees/..%2F..%2Fx%20y%3F%23?q=a%26b%3Dc"
    assert path("", "evil.example").startswith("/")
    assert path() == "/"
    assert path("sessions", "x", none=None) == "/sessions/x"


def test_a_graph_is_a_constant_with_numbers() -> None:
    """And a label that is escaped."""
    made = rendering.graph([0, 1, 50], 100, '"><script>')
    assert isinstance(made, Markup)
    assert "<script" not in made
    assert made.count("<") == 3
    assert isinstance(rendering.graph([], 1, ""), Markup)


def test_sessions_of_hostile_names_are_text(tmp_path: Path) -> None:
    """What a command, a directory or a label says is escaped on the overview."""
    with paged(tmp_path) as made:
        for number, attack in enumerate(ATTACKS):
            made.session(f"s{number}", "sh", "-c", attack, directory=f"/srv/{attack}")
        text = made.get("/").text
    assert "<script>" not in text
    assert "<img" not in text
    assert "<iframe" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<tr") == len(ATTACKS) + 1
