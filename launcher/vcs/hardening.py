"""What git is told so that nothing a repository's configuration names is ever executed.

Programmes that git starts by itself come from five places, and each is closed here:

- the environment (`GIT_SSH_COMMAND`, `GIT_EXTERNAL_DIFF`, `PAGER`, ...): it is built from nothing (`environment`);
- the system's and the user's configuration and attributes: not read at all;
- hooks: looked for in `/dev/null`;
- configuration keys with fixed names: overridden, whether set or not (`FIXED`);
- configuration keys with free names (`filter.ANY.smudge`, `merge.ANY.driver`, ...): git has no switch for those, so
  the names are listed first and each is overridden (`overrides`). An attribute that asks for a driver then finds one
  that does nothing, or what git itself would do.

Sources: git(1), git-config(1), gitattributes(5), githooks(5).
"""

from collections.abc import Iterable, Mapping

from policy.plan import SYSTEM_PATH

Setting = tuple[str, str]

FIXED: tuple[Setting, ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("sequence.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", "true"),
    ("credential.helper", ""),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("tag.forceSignAnnotated", "false"),
    ("push.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("gpg.program", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("safe.directory", "*"),  # whose the repository is, is asked by `Git.open`; and nothing in it can act
)

_TEXT_MERGE = "git merge-file -q -L ours -L base -L theirs --marker-size=%L %A %O %B"
"""What git does without a driver. A driver that did nothing would pass for a merge without a conflict."""

_FREE: Mapping[str, Mapping[str, str]] = {
    # section -> last part of the key -> harmless value; "" as the last part stands for every other one
    "alias": {"": ""},
    "browser": {"cmd": "false", "path": "false"},
    "core": {"gitproxy": "false"},
    "credential": {"helper": ""},
    "diff": {"external": "false", "command": "false", "textconv": "cat"},
    "difftool": {"cmd": "false", "path": "false"},
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "gpg": {"program": "false", "defaultkeycommand": "false"},
    "guitool": {"cmd": "false"},
    "hook": {"command": "true", "enabled": "false"},
    "interactive": {"difffilter": "cat"},
    "man": {"cmd": "false", "path": "false"},
    "merge": {"driver": _TEXT_MERGE},
    "mergetool": {"cmd": "false", "path": "false"},
    "pager": {"": "false"},
    "remote": {"uploadpack": "git-upload-pack", "receivepack": "git-receive-pack"},
    "sendemail": {"sendmailcmd": "false", "tocmd": "false", "cccmd": "false", "headercmd": "false"},
    "submodule": {"update": "checkout"},
    "tar": {"command": "false"},
    "trailer": {"command": "true", "cmd": "true"},
    "uploadpack": {"packobjectshook": ""},
}

PASSED = frozenset(
    {
        "GIT_AUTHOR_DATE",
        "GIT_AUTHOR_EMAIL",
        "GIT_AUTHOR_NAME",
        "GIT_COMMITTER_DATE",
        "GIT_COMMITTER_EMAIL",
        "GIT_COMMITTER_NAME",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_QUARANTINE_PATH",
        "GIT_REFLOG_ACTION",
        "TZ",
    }
)
"""Variables that a caller of `Git.run` may set. None of them names a programme."""


def overrides(names: Iterable[str], filters: Iterable[str] = ()) -> list[Setting]:
    """Settings that take away what the configured keys `names` could execute.

    Args:
        names: keys as ``git config --list --name-only`` prints them.
        filters: names of `filter` drivers that are left as they are.
    """
    kept = frozenset(filters)
    found = dict.fromkeys(names)
    result: list[Setting] = []
    for name in found:
        section, _, rest = name.partition(".")
        subsection, _, last = rest.rpartition(".")
        table = _FREE.get(section.lower())
        if table is None or (section.lower() == "filter" and subsection in kept):
            continue
        value = table.get(last.lower(), table.get(""))
        if value is not None:
            result.append((name, value))
    return result


def environment(settings: Iterable[Setting], protocols: Iterable[str] = ()) -> dict[str, str]:
    """The whole environment of a git process.

    Args:
        settings: configuration above all files, as (key, value). It goes through the environment, so it reaches
            the processes that git starts, and a `=` in a key is no trouble.
        protocols: transports that may be used (``file``, ...). None by default: a worktree is made offline.
    """
    result = {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_SSH_COMMAND": "false",
        "GIT_EDITOR": "false",
        "GIT_SEQUENCE_EDITOR": "false",
        "GIT_PAGER": "cat",
        "PAGER": "cat",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_IMPLICIT_WORK_TREE": "0",  # without one, the current directory would be taken for the work tree
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_PROTOCOL_FROM_USER": "0",
    }
    pairs = [*FIXED, *settings]
    result["GIT_CONFIG_COUNT"] = str(len(pairs))
    for number, (key, value) in enumerate(pairs):
        result[f"GIT_CONFIG_KEY_{number}"] = key
        result[f"GIT_CONFIG_VALUE_{number}"] = value
    return result
