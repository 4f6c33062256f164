"""Worktrees, and what each would bring: its diff, hand-off files and what looks secret first; bringing it home.

Git compares in a job's process, in a jail (`launcher.vcs.worktrees.review`); here it is put into rows.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from launcher.service.api import routes
from launcher.service.api.context import context_of
from launcher.service.page.overview import visit_of
from launcher.service.page.rendering import page
from policy.handoff import PROTECT, REPORT

router = APIRouter()

MOST_ROWS = 2_500
"""Lines on a page; the files behind are shown when they are asked for."""
_MOST_TOLD = 200

Line = list[Any]
View = Literal["unified", "split"]


@router.get("/worktrees")
async def show_worktrees(request: Request) -> HTMLResponse:
    """The worktrees that Paddock knows."""
    found = (await routes.list_worktrees(request, None)).worktrees
    rows = [each.model_dump() for each in found]
    live: defaultdict[str, list[str]] = defaultdict(list)
    for name, each in sorted(context_of(request).supervisor.live.items()):
        live[each.about["worktree"]].append(name)
    return page(request, "worktrees.html", rows=sorted(rows, key=lambda row: -row["created"])[:500], live=live)


@router.get("/worktrees/{name}")
async def review(
    name: Annotated[str, Path(max_length=200)],
    request: Request,
    view: Annotated[View, Query()] = "unified",
    file: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """What a worktree would bring; with `file`, more of one file."""
    found = (await routes.review_worktree(name, request, file)).model_dump()
    if not file:
        visit_of(request).reviewed[name] = str(found["parts"][0]["head"])
    return _shown(request, found, view, file)


@router.post("/worktrees/{name}/harvest")
async def harvest(name: Annotated[str, Path(max_length=200)], request: Request) -> HTMLResponse:
    """Brings home what waits in a worktree, and shows what it would bring now."""
    done = await routes.harvest_worktree(name, request)
    found = (await routes.review_worktree(name, request)).model_dump()
    return _shown(request, found, "unified", "", () if done.state == "harvested" else done.lines)


def _shown(
    request: Request, found: dict[str, Any], view: View, file: str, lines: Sequence[str] = ()
) -> HTMLResponse:  # fmt: skip
    lay_out(found["parts"], view, most=None if file else MOST_ROWS)
    marked = list(_marked(found["parts"]))
    more = sum(section["marked"] for part in found["parts"] for section in part["sections"])
    more -= sum(bool(each["why"]) for each in marked)
    return page(request, "review.html", found=found, marked=marked, more=more, view=view, file=file, lines=lines)


def lay_out(parts: Sequence[dict[str, Any]], view: View, *, most: int | None) -> None:
    """Puts the lines of all files in rows, as long as there is room, and counts what is marked.

    Args:
        parts: as `launcher.vcs.worktrees.review.read` has them; each hunk gets ``rows``, pairs of lines for both sides.
        view: side by side, or one below the other.
        most: lines; None for no bound.
    """
    room = most
    for file in (file for part in parts for section in part["sections"] for file in section["files"]):
        lines = sum(len(hunk["lines"]) for hunk in file["hunks"])
        if room is not None and lines > room:
            file.update(hunks=[], note="later")
        elif room is not None:
            room -= lines
        for hunk in file["hunks"]:
            hunk["rows"] = list(_paired(hunk["lines"])) if view == "split" else [(line, None) for line in hunk["lines"]]


def _paired(lines: Sequence[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    """Lines side by side: what was taken out beside what came in its place."""
    before: list[Line] = []
    after: list[Line] = []
    for line in (*lines, None):
        if line is not None and line[0] == "-" and not after:
            before.append(line)
        elif line is not None and line[0] == "+":
            after.append(line)
        else:
            for at in range(max(len(before), len(after))):
                yield before[at] if at < len(before) else None, after[at] if at < len(after) else None
            before, after = ([line], []) if line is not None and line[0] == "-" else ([], [])
            if line is not None and not before:
                yield line, line


def _marked(parts: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The files that run, or are obeyed, and those with what looks secret; the worst first."""
    order = {PROTECT: 0, REPORT: 1, "": 2}
    found = [
        {**file, "section": section["section"]}
        for part in parts for section in part["sections"] for file in section["files"] if file["why"] or file["secrets"]
    ]  # fmt: skip
    yield from sorted(found, key=lambda file: order[file["mark"]])[:_MOST_TOLD]
