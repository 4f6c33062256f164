"""The tools and their arguments: what clients are shown, and what every call is checked against (contracts section 5).

The models are strict: a number in quotation marks is a mistake of the caller's and is told, not repaired.
"""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from policy.violation import Operation

MOST_CONTENT = 8 << 20
"""Bytes of a file that is written or edited."""


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text cannot be written as UTF-8: {error.reason}") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]
PathText = Annotated[Text, StringConstraints(max_length=8192)]


class Call(BaseModel):
    """One call of a tool.

    Attributes:
        tool: its name.
        operation: what the validator is asked for.
        reads_only: nothing on the disk changes by it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: ClassVar[str]
    operation: ClassVar[Operation]
    reads_only: ClassVar[bool] = True

    @property
    def path(self) -> str:
        """The path it is about, as it was given."""
        raise NotImplementedError


class Read(Call):
    """Read a text file. The text comes back unchanged, without line numbers."""

    tool: ClassVar[str] = "read"
    operation: ClassVar[Operation] = Operation.READ

    file_path: PathText = Field(description="File to read; relative paths start at the worktree's root.")
    offset: int = Field(default=1, ge=1, description="First line to return, counted from 1.")
    limit: int | None = Field(default=None, ge=1, description="Most lines to return; without it as many as fit.")

    @property
    def path(self) -> str:
        """The file."""
        return self.file_path


class Write(Call):
    """Write a whole text file in one step: readers see the old content or the new. Missing directories are made."""

    tool: ClassVar[str] = "write"
    operation: ClassVar[Operation] = Operation.WRITE
    reads_only: ClassVar[bool] = False

    file_path: PathText = Field(description="File to create or replace.")
    content: Text = Field(description="Its whole new content.")

    @property
    def path(self) -> str:
        """The file."""
        return self.file_path


class Edit(Call):
    """Replace a piece of a text file by another one, in one step. Everything else of the file stays as it is."""

    tool: ClassVar[str] = "edit"
    operation: ClassVar[Operation] = Operation.EDIT
    reads_only: ClassVar[bool] = False

    file_path: PathText = Field(description="File to change.")
    old_string: Text = Field(min_length=1, description="The text to replace, exactly, line ends and indentation too.")
    new_string: Text = Field(description="What stands there afterwards.")
    replace_all: bool = Field(default=False, description="Replace every occurrence; else there must be exactly one.")

    @property
    def path(self) -> str:
        """The file."""
        return self.file_path


class List(Call):
    """List a directory, sorted. Directories end with /, symbolic links with @, pipes with | and sockets with =."""

    tool: ClassVar[str] = "list"
    operation: ClassVar[Operation] = Operation.LIST

    directory: PathText = Field(default=".", description="Directory to list (default: the worktree's root).")

    @property
    def path(self) -> str:
        """The directory."""
        return self.directory


class Glob(Call):
    """Find files by name. `**` stands for any directories; symbolic links are not followed, .git is left out."""

    tool: ClassVar[str] = "glob"
    operation: ClassVar[Operation] = Operation.LIST

    pattern: Annotated[Text, StringConstraints(min_length=1, max_length=1024)] = Field(
        description="Pattern of the path below the directory, such as src/**/*.py."
    )
    directory: PathText = Field(default=".", description="Directory to search (default: the worktree's root).")

    @property
    def path(self) -> str:
        """The directory."""
        return self.directory


class Grep(Call):
    """Search text files for a regular expression (Python's). Answers PATH:LINE:TEXT; leaves out .git and binaries."""

    tool: ClassVar[str] = "grep"
    operation: ClassVar[Operation] = Operation.READ

    pattern: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="Regular expression, matched against each line."
    )
    target: PathText = Field(default=".", description="File or directory to search (default: the worktree's root).")
    glob: Annotated[Text, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Search only files whose path below the directory, or name, matches this pattern."
    )
    ignore_case: bool = Field(default=False, description="Take capital and small letters for the same.")
    limit: int = Field(default=200, ge=1, le=2000, description="Most lines to return.")

    @property
    def path(self) -> str:
        """The file or directory."""
        return self.target


class Shell(Call):
    """Run a command line of sh(1) in the session's jail. Answers its exit status, then what it wrote."""

    tool: ClassVar[str] = "shell"
    operation: ClassVar[Operation] = Operation.EXECUTE
    reads_only: ClassVar[bool] = False

    command: Annotated[Text, StringConstraints(min_length=1, max_length=128 << 10)] = Field(
        description="What sh -c is given."
    )
    directory: PathText = Field(default=".", description="Directory to start in (default: the worktree's root).")
    timeout_seconds: float = Field(default=120, gt=0, le=600, description="After this time it is ended.")

    @property
    def path(self) -> str:
        """The directory it starts in."""
        return self.directory


CALLS: dict[str, type[Call]] = {kind.tool: kind for kind in (Read, Write, Edit, List, Glob, Grep, Shell)}
"""All tools by name, in the order in which clients are shown them."""
