"""A session whose agent works on another machine: its jail here takes in what comes home.

The session is one like all others, in the ticket's worktree, with log, ledger, limits and harvest. Only its command is
a script of ours: it waits until the work of the agent comes over its standard input, and has git take it in, inside
of the jail. Who talks to the cluster (`launcher.engines.broker`) has the session's output and the other end of that.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from launcher import wire
from launcher.ledger import ledgers
from launcher.service.packets import REMOTE
from launcher.session import places
from policy.errors import Refusal, Rows

WANTED = b"W"
"""From here, with two descriptors: where the session's output goes, and its input; JSON: see `launch`."""
OVER = b"X"
"""To here, once all has come; JSON: `refusal`, `status`: the agent's, and `lost`: the node, or the whole engine, is."""

_PATIENCE = 60.0
_GONE = "what talks to the cluster has gone"
_CUT = "what the agent has made there was cut off on its way"

# Two processes, because a shell that reads is not told of signals: one reads and takes in, the other one passes on
# that the session is to stop. What comes is `launcher.engines.broker.Home`'s. Nothing is taken in before all has come:
# a stream that is cut off leaves the worktree as it was.
_TAKE = r"""
git="git -c core.fsmonitor= -c core.hooksPath=/dev/null -c gc.auto=0"
exec 3<&0 4>&1 </dev/null >&2
all=$(mktemp -d) top=$PWD
take() {
  path=$(cat "$at/path") head=$(cat "$at/head") branch=$(cat "$at/branch") tree=$(cat "$at/tree")
  cd -- "$top/$path" || return
  if test "$path" != . && test ! -e .git; then $git init -q . || return; fi
  if test -s "$at/pack"; then $git index-pack --stdin --fix-thin <"$at/pack" >/dev/null || return; fi
  if test -n "$($git status --porcelain --ignore-submodules=all | head -n 1)"; then
    $git stash push -q -u -m "before the work of another machine came" || return
  fi
  $git update-ref --stdin <"$at/refs" || return
  if test "$branch" != none; then
    $git symbolic-ref HEAD "$branch" || return
  elif test "$head" != none; then
    $git update-ref --no-deref HEAD "$head" || return
  fi
  if test "$head" != none && ! $git reset -q --hard "$head"; then
    $git reset -q "$head" || return
    echo "paddock: commits have come, but not all of their files can be laid out in $path" >&2
  fi
  for each in $(cat "$at/stashes"); do $git stash store -q -m "of the agent" "$each" || return; done
  if test "$tree" != none; then lay_out || return; fi
  cd -- "$top"
}
lay_out() {
  if $git read-tree -m -u HEAD "$tree"; then $git read-tree HEAD; return; fi
  $git read-tree HEAD
  staged=$($git commit-tree -p HEAD -m index 'HEAD^{tree}') &&
  files=$($git commit-tree -p HEAD -p "$staged" -m "not committed" "$tree") &&
  $git stash store -q -m "not committed" "$files" || return
  echo "paddock: files in $path that were not committed cannot be laid out: they are a stash now" >&2
}
receive() {
  trap '' TERM INT HUP
  count=0
  while IFS= read -r line; do
    rest=${line#* }
    case $line in
    "part "*)
      count=$((count + 1)) && at=$all/$count && mkdir "$at" || exit 74
      for each in pack refs stashes; do : >"$at/$each"; done
      printf '%s\n' "$rest" >"$at/path" ;;
    "head "*|"branch "*|"tree "*) echo "$rest" >"$at/${line%% *}" ;;
    "ref "*) echo "update ${rest#* } ${rest%% *}" >>"$at/refs" ;;
    "stash "*) echo "$rest" >>"$at/stashes" ;;
    "pack "*) head -c "$rest" >>"$at/pack" || exit 74 ;;
    "end "*)
      for number in $(seq "$count"); do
        at=$all/$number
        take || { echo "paddock: the work in $path cannot be taken in" >&2; exit 74; }
      done
      exit "$rest" ;;
    *) exit 74 ;;
    esac
  done
  exit 75
}
receive <&3 &
receiver=$!
trap 'echo stop >&4' TERM INT HUP
while :; do
  wait "$receiver"
  status=$?
  kill -0 "$receiver" 2>/dev/null || break
done
rm -rf -- "$all"
exit "$status"
"""

_CUT_OFF = 75
"""Status of the script when its input has ended before all had come."""

_HERE = ("--session", "--worktree", "--deny", "--freeze-root", "--strict-handoff")
"""Options that hold here, too: of the ticket's worktree, not of the agent."""


def launch(
    options: dict[str, Any], command: list[str], run: Callable[..., int], observer: Callable[[str, Any], None]
) -> int:
    """Runs an agent elsewhere, and takes in its work here.

    The broker is told `session`, `worktree`, `ledger`, the agent's `command` and `environment`, and what `REMOTE` in
    the environment says (`launcher.service.ticket_sessions`), whose ``socket`` is the broker's.

    Args:
        options: of ``paddock run``, by name: where the work is taken in.
        command: the agent's words.
        run: `launcher.verbs.run.launch`.
        observer: see `launcher.session.running.run`.

    Returns:
        The agent's exit status.

    Raises:
        Refusal: as of ``paddock run``, here or there; engine-lost.
    """
    about = json.loads(os.environ.pop(REMOTE))
    where = places.places(os.environ)
    name = str(options["--session"])
    told = {
        "session": name, "worktree": places.current_directory(), "command": command,
        "ledger": ledgers.path_for(where.state, name, time.time_ns()),
        "environment": {each: os.environ[each] for each in about.pop("variables") if each in os.environ},
        **{key: about[key] for key in about if key != "socket"},
    }  # fmt: skip
    ours, theirs = socket.socketpair()
    control = socket.socket(socket.AF_UNIX)
    try:
        control.connect(about["socket"])
        wire.send(control.fileno(), wire.frame(WANTED, json.dumps(told).encode()), (1, theirs.fileno()))
    except OSError as error:
        raise Refusal("engine-lost", "what talks to the cluster does not answer", context=error.strerror or str(error),
                      hint="paddock tickets resume RUN") from None  # fmt: skip
    theirs.close()
    os.dup2(ours.fileno(), 0)
    os.dup2(ours.fileno(), 1)  # two streams of one socket: a jail has each as a pipe of its own
    ours.close()
    end: list[tuple[Any, ...]] = []

    def observed(what: str, data: Any) -> None:  # noqa: ANN401  # as of `launcher.session.running.run`
        if what == "ended":
            end.append(data)
        else:
            observer(what, data)

    here = {option: options[option] for option in _HERE if option in options}
    status = run({**here, "--net": "none", "--provider": "none", "--quiet": True}, ["sh", "-c", _TAKE], observed)
    answer = _answer(control)
    if answer is None:  # if all has come before, nothing is done again
        answer = {"lost": _GONE if status == _CUT_OFF else "", "refusal": None, "denials": 0}
    elif status == _CUT_OFF and answer["status"] not in (None, _CUT_OFF):
        answer["lost"] = _CUT
    if answer["lost"]:
        os.write(2, f"paddock: {answer['lost']}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)  # as of a launcher that was killed: the service starts the agent again
    if answer["refusal"] is not None:
        why = answer["refusal"]
        raise Refusal(why["errorType"], why["message"], context=Rows(why["context"]), hint=Rows(why["hint"]))
    first, limit, denials, *rest = end[0]
    observer("ended", (first, limit, denials + answer["denials"], *rest))
    return status


def _answer(control: socket.socket) -> dict[str, Any] | None:
    """What the broker says at the end; None when it has gone."""
    try:
        control.settimeout(_PATIENCE)
        decoder = wire.Decoder()
        while piece := control.recv(1 << 16):
            for kind, payload in decoder.feed(piece):
                if kind == OVER:
                    found: dict[str, Any] = json.loads(payload)
                    return found
    except OSError:
        pass
    return None
