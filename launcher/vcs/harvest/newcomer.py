"""A submodule that an agent has added: what the user is told of it."""

from launcher.vcs import way
from launcher.vcs.harvest.parts import Part
from policy.errors import printable


def told(part: Part, where: str) -> str:
    """How the submodule at `where`, relative to `part.path`, gets files outside, if it can.

    What lies behind a link may be the user's own, so nobody is sent there.
    """
    seen = way.look(part.root, f"{part.path}/{where}")
    note = f"the agent has added the submodule {printable(where)}, "
    if seen.link:
        return note + (
            f"and {seen.told}: what lies behind it is no submodule's, so neither remove it nor populate it; "
            "have the agent's commit taken back, or that submodule taken out of it"
        )
    return note + (
        "and what is there is its own: read .gitmodules, and remove that directory; "
        f"then: {way.update(part.path, where)}"
    )
