"""Which interpreter a script names (execve(2), "Interpreter scripts")."""


def interpreter_of(content: bytes) -> str | None:
    """The interpreter's absolute path, or None when `content` is no script or names none.

    pip and uv write ``#!/bin/sh`` with ``'''exec' "INTERPRETER" "$0" "$@"`` in the second line when the path is too
    long for the kernel, or holds a space; then that interpreter is the answer.

    Args:
        content: the file's content, or its beginning.
    """
    if not content.startswith(b"#!"):
        return None
    first, _, rest = content[:4096].partition(b"\n")
    word = (first[2:].split() or [b""])[0]
    if word == b"/bin/sh" and rest.startswith(b"'''exec' "):
        command = rest.removeprefix(b"'''exec' ").partition(b"\n")[0]
        word = command[1:].partition(b'"')[0] if command.startswith(b'"') else command.split(b" ")[0]
    if not word.startswith(b"/") or b"\0" in word:
        return None
    return word.decode("utf-8", "surrogateescape")
