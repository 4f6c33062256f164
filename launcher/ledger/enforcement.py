"""What was really enforced in one run, row by row, as `--report` writes it.

Launch path, but called there only with `--report`: json comes in then.
"""

import errno

from launcher.lean import os
from policy import promises
from policy.errors import Refusal
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# The file behind `--report`, opened before the command starts.
#
# The command may be able to rename directories on the way to it; what was opened before cannot be moved under our
# feet. Launch path: `os`.

_MOST_LINKS = 40  # path_resolution(7)


class Target:
    """A file to be written once, atomically, in a directory that is held open. Owns the directory's descriptor.

    Args:
        path: of the file; it need not exist. Anything but a regular file is refused: root would replace /dev/null.
        is_agents: whether a symbolic link may be an agent's (`launcher.vcs.worktree_words`): that one leads nowhere.

    Refusals: report-unwritable.
    """

    __slots__ = ("_directory", "_name", "_path")

    def __init__(self, path: str, is_agents: "Callable[[str], bool]") -> None:
        """See the class."""
        self._path = path
        directory, self._name = os.path.split(path)
        self._check_kind()
        try:
            self._directory = self._opened(directory, is_agents)
        except (OSError, ValueError) as error:
            raise self._refusal(error) from None
        # Tried now: a report that cannot be written must not come out after an hour's work.
        trial = _temporary_name()
        try:
            os.close(self._created(trial))
            os.unlink(trial, dir_fd=self._directory)
        except OSError as error:
            os.close(self._directory)
            raise self._refusal(error) from None

    def _check_kind(self) -> None:
        try:
            kind = os.lstat(self._path).st_mode & 0o170000
        except FileNotFoundError:
            kind = 0o100000
        except (OSError, ValueError) as error:
            raise self._refusal(error) from None
        if self._name in ("", ".", "..") or kind == 0o040000:
            raise self._refusal("it is a directory")
        if kind == 0o120000:
            raise self._refusal("it is a symbolic link; name the file that it points to")
        if kind != 0o100000:
            raise self._refusal("it is not a regular file")

    def _opened(self, directory: str, is_agents: "Callable[[str], bool]") -> int:
        """The directory, as open(2) finds it; each link is judged where it lies, and what was read of it is followed.

        Step by step on descriptors: another session may work there at this moment.
        """
        at = os.open("/" if directory.startswith("/") else ".", _LOOK)
        try:
            rest, followed = directory.split("/"), 0
            while rest:
                part = rest.pop(0)
                if part in ("", "."):
                    continue
                here = os.open(part, _LOOK, dir_fd=at)
                if os.fstat(here).st_mode & 0o170000 != 0o120000:
                    os.close(at)
                    at = here
                    continue
                text = os.readlink("", dir_fd=here)  # readlink(2): of the link that the descriptor stands for
                os.close(here)
                followed += 1
                if followed > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                link = f"{os.readlink(f'/proc/self/fd/{at}')}/{part}".replace("//", "/", 1)
                if is_agents(link):
                    raise self._refusal(
                        f"{link} is a symbolic link that a command in a jail may have made, and points to {text}"
                    )
                if text.startswith("/"):
                    os.close(at)
                    at = os.open("/", _LOOK)
                rest = text.split("/") + rest
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)

    def _created(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o644, dir_fd=self._directory)

    def write(self, text: str) -> None:
        """Writes the file, replacing what was there only once it is complete, and lets go of the directory."""
        temporary, content = _temporary_name(), text.encode()
        try:
            descriptor = self._created(temporary)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                os.replace(temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except OSError:
                os.unlink(temporary, dir_fd=self._directory)
                raise
        except OSError as error:
            raise self._refusal(error) from None
        finally:
            os.close(self._directory)

    def _refusal(self, why: str | OSError | ValueError) -> Refusal:
        reason = (isinstance(why, OSError) and why.strerror) or str(why)
        return Refusal(
            "report-unwritable",
            f"cannot write the report {self._path}",
            context=reason,
            hint="name a regular file, or a new one, in a directory that you can write",
        )


_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def _temporary_name() -> str:
    # Not made from the report's own name, which may be as long as a name can be.
    return f".paddock-report-{os.urandom(6).hex()}"


Facts = tuple[tuple[str, str, str], ...]


def rows(plan: Plan, facts: Facts) -> list[dict[str, str]]:
    """The table of promises with the verdict of this run.

    A row counts as held only when the jail itself reported it; the table in `policy.promises` gives the reason
    why a backend does not hold one.
    """
    held = {name for name, state, _ in facts if state == "held"}
    result = []
    for name, promise, _ in promises.ROWS:
        expected, reason = promises.verdict(name, plan.backend)
        verdict = promises.HELD if name in held and expected == promises.HELD else promises.NOT_HELD
        result.append({"row": name, "promise": promise, "verdict": verdict, "reason": reason})
    return result


def document(
    plan: Plan,
    facts: Facts,
    *,
    session: str,
    status: int | None,
    changes: tuple[tuple[str, str, str], ...],
    harvest: "dict[str, Any] | None" = None,
) -> dict[str, object]:
    """The report as plain data.

    Args:
        status: the command's exit status, None when it never started.
        changes: of hand-off files, as (what, path, mode).
        harvest: its result or refusal; None when there was nothing to harvest.
    """
    return {
        "version": 1,
        "session": session,
        "backend": plan.backend,
        "worktree": plan.worktree,
        "program": plan.program,
        "provider": plan.provider,
        "provider_source": plan.provider_source,
        "network": plan.net,
        "git": plan.git,
        "status": status,
        "promises": rows(plan, facts),
        "layers": [{"layer": name, "detail": detail} for name, state, detail in facts if state == "layer"],
        "limits": [
            {"limit": name.removeprefix("limit "), "verdict": state, "detail": detail}
            for name, state, detail in facts
            if name.startswith("limit ")
        ],
        "handoff": [{"change": what, "path": path, "mode": mode} for what, path, mode in changes],
        "harvest": harvest,
        "warnings": list(plan.warnings),
    }


def text(content: dict[str, object]) -> str:
    """The document as JSON, ASCII only: names that are not UTF-8 come escaped."""
    import json

    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"
