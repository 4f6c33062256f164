"""Names from outside in prompts: they must stay names, whatever they hold."""

from policy.errors import printable

LONGEST = 300


def code(name: str) -> str:
    """`name` as a Markdown code span on one line.

    Ids and paths come from agents; a line break or a backtick in one would let it speak in the prompt's own voice.
    """
    text = printable(name).replace("`", "'")
    return f"`{text if len(text) <= LONGEST else text[:LONGEST] + '...'}`"
