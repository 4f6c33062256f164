"""Words of commands that people paste into a shell: on one line, whatever a file name holds."""

from policy.errors import escape, unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def quoted(word: str, *, own: bool = True) -> str:
    r"""A word as bash, zsh and ksh read it back; sh(1) does where it is printable.

    What is `unseen` goes into ``$'...'``, which POSIX.1-2024 has (XCU 2.2.4): shown as it is it would break the line or
    fill it, and escaped by whoever prints it it would be another word.

    Args:
        word: any; a path as `os.fsdecode` gives it, or text of JSON, which can hold half a surrogate pair (RFC 8259).
        own: the user's or Paddock's; of what somebody else has chosen, spaces that are `bare` are escaped, too.
    """
    found = unseen(word) if own else unseen(word) | bare(word)
    if not found:
        import shlex

        return shlex.quote(word)  # noqa: TID251  # this is where it is done
    return "$'" + "".join(octal(char) if at in found else _plain(char) for at, char in enumerate(word)) + "'"


def joined(words: "Iterable[str]") -> str:
    """A command, each word `quoted`."""
    return " ".join(map(quoted, words))


def pathspec(path: str) -> str:
    """A path as git's commands take it when they mean no pattern, as one word of a shell's.

    See gitglossary(7), pathspec.
    """
    return quoted(f":(literal){path}" if path.startswith(":") or any(char in path for char in "*?[\\") else path)


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./~@+%,-")
_LONGEST = 300


def cited(text: str, most: int = _LONGEST) -> str:
    r"""What somebody else has chosen, for a sentence of Paddock's: as it is where it is one plain word, else in quotes.

    No option, no end of a sentence (``: ``) and no quotation mark is outside of quotes or ends them, and no space is
    beside a word by which a row of a terminal that begins with it could look like Paddock's (`bare`). A shell reads the
    whole of it as one word, if not as the same.

    Args:
        text: a path, a ref, a process's name, what was sent as a host.
        most: characters; of a longer one the beginning is shown.
    """
    if _is_plain(text):
        return text if len(text) <= most else f"{text[:most]}..."
    shown = text[:most]
    found = unseen(shown) | bare(shown)
    inner = "".join(escape(char) if at in found else char for at, char in enumerate(shown)).replace("'", "\\x27")
    return f"'{inner}'" + ("..." if len(text) > most else "")


def cited_words(text: str) -> str:
    """`text` as it is where it consists of plain words, which name neither an option nor Paddock; else `cited`."""
    words = text.replace("(", "").replace(")", "").split(" ")
    return text if all(_is_plain(word) and not _is_ours(word) for word in words) else cited(text)


def spoken(text: str) -> str:
    """What somebody else has written, as a commit's subject or the name of its author, where quotes would disturb."""
    found = unseen(text) | bare(text, area=True)
    return "".join(escape(char) if at in found else char for at, char in enumerate(text)) if found else text


def bare(text: str, *, area: bool = False) -> set[int]:
    """Where `text` has spaces that are to be escaped: beside options, ends of sentences, and Paddock's name.

    A long text goes on in the next row of a terminal, which then begins with any of its words.

    Args:
        area: the first word may end with a colon, as a commit's subject often has one.
    """
    found: set[int] = set()
    at = 0
    for word in text.split(" "):
        if _is_ours(word if at or not area else word.removesuffix(":")):
            found |= {at - 1, at + len(word)}
        at += len(word) + 1
    return found & set(range(len(text)))


def _is_ours(word: str) -> bool:
    first = word.lstrip("()[]{}<>'\"`.,;!?*#=+~$")
    return ":" in word or word.casefold().endswith("paddock") or (first.startswith("-") and word != "-")


def _is_plain(text: str) -> bool:
    return bool(text) and not text.startswith("-") and _PLAIN.issuperset(text)


def _plain(char: str) -> str:
    return f"\\{char}" if char in "\\'" else char


def octal(char: str) -> str:
    """The bytes of a character, as shells and git write them."""
    try:
        data = char.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = char.encode("utf-8", "surrogatepass")  # no file has such a name; an agent asks for it all the same
    return "".join(f"\\{byte:03o}" for byte in data)
