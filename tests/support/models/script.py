"""What a model is to do, and how that is said with the tools that an agent advertises."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Write:
    """A file is to be written with the agent's own file tool."""

    path: str
    content: str


@dataclass(frozen=True)
class Read:
    """A file is to be read with the agent's own file tool."""

    path: str


@dataclass(frozen=True)
class Run:
    """A line of sh(1) is to be run with the agent's own shell."""

    line: str


@dataclass(frozen=True)
class Use:
    """A tool of an MCP server is to be called; agents put the server's name in front of the tool's."""

    name: str
    arguments: Json


Step = Write | Read | Run | Use


@dataclass(frozen=True)
class Tool:
    """One tool of a request.

    Attributes:
        name: as the agent calls it.
        schema: JSON schema of its arguments; empty for a tool that takes free text.
        free: whether it takes free text instead of JSON.
        group: the namespace it was advertised in.
    """

    name: str
    schema: Json = field(default_factory=dict)
    free: bool = False
    group: str = ""


@dataclass(frozen=True)
class Call:
    """What the model answers: one call of a tool. `arguments` is text for a tool that takes free text."""

    tool: Tool
    arguments: Json | str

    @property
    def text(self) -> str:
        """The arguments as they are sent."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


NAMES: dict[type[Step], tuple[str, ...]] = {
    Write: ("Write", "write", "write_file", "create_file", "create", "apply_patch", "exec"),
    Read: ("Read", "read", "read_file", "view"),
    Run: ("Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "exec"),
}
"""The names that agents give to their tools, the better ones first."""

_PATHS = ("file_path", "filePath", "absolute_path", "path")
_PATCH = "*** Begin Patch\n*** Add File: {path}\n{lines}\n*** End Patch\n"


class NoTool(LookupError):
    """The agent advertises nothing that could do a step."""


def main_request(tools: Sequence[Tool]) -> bool:
    """Whether a request is one of the conversation itself: side requests (titles, summaries) bring no shell."""
    return any(tool.name in NAMES[Run] for tool in tools)


def call_for(step: Step, tools: Sequence[Tool]) -> Call:
    """The call that does `step`.

    An agent without a tool for reading reads with its shell.

    Raises:
        NoTool: none of `tools` can do it.
    """
    by_name = {tool.name: tool for tool in tools}
    if isinstance(step, Use):
        found = next((tool for tool in tools if tool.name.endswith(f"__{step.name}")), None)
        if found is None:
            raise NoTool(f"no {step.name} among {sorted(by_name)}")
        return Call(found, step.arguments)
    for name in NAMES[type(step)]:
        if name in by_name:
            return Call(by_name[name], _arguments(step, by_name[name]))
    if isinstance(step, Read):
        return call_for(Run(f"cat '{step.path}'"), tools)
    raise NoTool(f"no tool for {step} among {sorted(by_name)}")


def _arguments(step: Write | Read | Run, tool: Tool) -> Json | str:
    if tool.free or tool.name == "apply_patch":
        return _free(step, tool)
    properties: Json = tool.schema.get("properties", {})
    values: Json = {}
    if isinstance(step, Run):
        name = "cmd" if "cmd" in properties else "command"
        array = properties.get(name, {}).get("type") == "array"
        values[name] = ["sh", "-c", step.line] if array else step.line
    else:
        values[next(name for name in _PATHS if name in properties)] = step.path
        if isinstance(step, Write):
            values["file_text" if "file_text" in properties else "content"] = step.content
    for name in tool.schema.get("required", []):
        values.setdefault(name, example(properties.get(name, {})))
    return values


def _free(step: Write | Read | Run, tool: Tool) -> Json | str:
    """Codex's own shapes: a patch, or JavaScript that calls the tools that `exec` brings."""
    if isinstance(step, Run):
        return f"text(await tools.exec_command({json.dumps({'cmd': step.line})}));"
    assert isinstance(step, Write), step
    patch = _PATCH.format(path=step.path, lines="\n".join(f"+{line}" for line in step.content.splitlines()))
    if tool.name == "exec":
        return f"text(await tools.apply_patch({json.dumps(patch)}));"
    return patch if tool.free else {"input": patch}


def example(schema: Json) -> object:
    """A value that a schema accepts: for an argument or an answer that no step cares about."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = str(schema.get("type", "")).lower()
    if kind == "object":
        properties: Json = schema.get("properties", {})
        return {name: example(properties.get(name, {})) for name in schema.get("required", properties)}
    return {"boolean": False, "integer": 1, "number": 1, "array": []}.get(kind, "x")
