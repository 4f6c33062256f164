"""Every text that Paddock can say, taken from its source: refusals by id, and what else is printed, logged or noted.

`python -m tests.support.texts` prints it all, for reading: what stands for a value is in braces.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.support.manual import ROOT


def rendered(node: ast.expr) -> str:
    """A text as it is written: `{name}` for a value, ` | ` between alternatives; "" for what holds no words."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            rendered(part) if isinstance(part, ast.Constant) else "{" + _value(part) + "}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return rendered(node.left) + rendered(node.right)
    if isinstance(node, ast.IfExp):
        return " | ".join(filter(None, (rendered(node.body), rendered(node.orelse))))
    if isinstance(node, ast.BoolOp):
        return " | ".join(filter(None, map(rendered, node.values)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        return ", ".join(filter(None, map(rendered, node.args)))
    if isinstance(node, ast.Call):
        return " ".join(filter(None, map(rendered, node.args)))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return " / ".join(filter(None, map(rendered, node.elts)))
    if isinstance(node, ast.Dict):
        return " / ".join(filter(None, map(rendered, node.values)))
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return rendered(node.elt)
    if isinstance(node, ast.Starred):
        return rendered(node.value)
    return ""


def _value(part: ast.expr) -> str:
    assert isinstance(part, ast.FormattedValue)
    words = rendered(part.value)
    return f"'{words}'" if " " in words else ast.unparse(part.value)


@functools.cache
def sources() -> list[tuple[Path, list[ast.AST]]]:
    """All modules of the product, each with its nodes."""
    paths = [path for folder in ("launcher", "policy") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(path, [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]) for path in paths]


@functools.cache
def calls() -> list[tuple[Path, ast.Call]]:
    """Wherever a refusal is made, however its class is named there."""
    return [
        (path, node)
        for path, nodes in sources()
        for node in nodes
        if isinstance(node, ast.Call) and "Refusal" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    ]


def refusals() -> Iterator[tuple[str, str]]:
    """Every refusal: id, and its texts with the place."""
    for path, node in calls():
        words = [rendered(each) for each in node.args]
        texts = [words[1] if len(words) > 1 else "?"]
        for keyword in node.keywords:
            if keyword.arg in ("context", "hint"):
                texts.append(f"{'why: ' if keyword.arg == 'context' else 'hint:'} {rendered(keyword.value)}")
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        yield words[0] if words else "?", "\n    ".join([f"({place}) {texts[0]}", *texts[1:]])


def others() -> Iterator[tuple[str, str]]:
    """Other texts of several words, with their place: whatever is no docstring, no refusal and no option."""
    for path, nodes in sources():
        skipped: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                skipped.add(id(node.value))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal":
                skipped |= {id(each) for each in ast.walk(node)}
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(each) for value in node.values for each in ast.walk(value)}
        for node in nodes:
            if id(node) in skipped or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            text = rendered(node)
            if text.count(" ") >= 2 and sum(map(str.isalpha, text)) > len(text) / 2:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


if __name__ == "__main__":
    for reference, said in sorted(refusals()):
        print(f"{reference}\n    {said}")
    print()
    for place, said in others():
        print(f"{place}: {said}")
