"""The pictures of measurements."""

from pathlib import Path
from xml.etree import ElementTree

from tests.bench.chart import WIDTH, Bar, Cell, bars, matrix, stacked, write

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """<script>&'"]]>"""


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_bar_is_as_long_as_its_value() -> None:
    svg = bars(
        "start-up", [Bar("one", 1.0), Bar("two", 2.0, 0.5, ours=True), Bar("none", None, note="did not start")], "ms"
    )
    one, two = (each for each in ElementTree.fromstring(svg).iter(f"{SVG}rect") if each.get("class"))
    assert abs(float(two.attrib["width"]) - 2 * float(one.attrib["width"])) < 0.2
    assert float(two.attrib["x"]) + float(two.attrib["width"]) < WIDTH
    assert _texts(svg) == ["start-up", "one", "1.00 ms", "two", "2.00 ms", "none", "did not start"]


def test_rows_of_nothing_are_drawn_too() -> None:
    assert _texts(bars("empty", [], "ms")) == ["empty"]
    assert _texts(bars("zero", [Bar("none", 0.0)], "ms")) == ["zero", "none", "0.00 ms"]


def test_names_are_text_and_never_markup() -> None:
    pictures = bars(HOSTILE, [Bar(HOSTILE, 1.0, note=HOSTILE)], HOSTILE), matrix(HOSTILE, [HOSTILE], [[Cell(HOSTILE)]])
    for svg in (*pictures, stacked(HOSTILE, pictures)):
        assert HOSTILE in _texts(svg)
        assert ElementTree.fromstring(svg).get("aria-label") == HOSTILE
        assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= {
            f"{SVG}{name}" for name in ("svg", "style", "rect", "path", "text")
        }


def test_pictures_stand_below_each_other(tmp_path: Path) -> None:
    one, two = bars("one", [Bar("a", 1.0)], ""), matrix("two", ["name", "b"], [[Cell("a"), Cell("1", "bad")]])
    write(tmp_path / "images/both.svg", stacked("both", [one, two]))
    root = ElementTree.parse(tmp_path / "images/both.svg").getroot()
    inner = root.findall(f"{SVG}svg")
    heights = [int(each.attrib["height"]) for each in inner]
    assert [int(each.attrib["y"]) for each in inner] == [0, heights[0]]
    assert int(root.attrib["height"]) == sum(heights)
