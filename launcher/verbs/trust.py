"""`paddock init` and `paddock trust`: write a commented .paddock.toml, and accept one that loosens rules."""

import json
import os
import sys
import tomllib

from launcher.jail import syscalls
from launcher.safefs import guarded_files, walk
from launcher.session import configuration, places
from launcher.session.machine import Machine
from launcher.session.trust_store import Trust, digest_of
from launcher.vcs import checkout, worktree_words, written
from launcher.vcs.private import writers
from launcher.verbs import table, trusted_git
from policy.errors import Refusal, printable
from policy.pasted import quoted

_QUESTION = """
Agents in jails do not see your own instructions, skills, commands and MCP servers unless you bring them. They are
read-only there, and MCP servers come with the keys in their configuration. Bring them into all jails? [y/N] """


def init(*, force: bool, as_json: bool) -> int:
    """Exit status 0 when the file was written."""
    root = checkout.find(places.current_directory(), Machine(os.environ), exact=False).root
    path = configuration.write_example(root, force=force)
    if as_json:
        print(json.dumps({"path": path, "written": True}, indent=2))
        return 0
    print(f"wrote {printable(path)}; every rule in it is a comment, so nothing has changed yet")
    print("next: edit it, then `paddock explain --plan` shows the outcome")
    print("      `paddock trust .paddock.toml` accepts what loosens a rule")
    _ask_once(places.places(os.environ))
    return 0


def _ask_once(own: places.Places) -> None:
    """At a terminal, asks whether jails show the user's own things, and writes the answer to the configuration."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or _asked_before(own):
        return
    print(_QUESTION, end="", flush=True)
    answer = sys.stdin.readline().lower()  # "" without a newline is no answer
    if answer.strip() in ("y", "yes", "n", "no", "") and answer:
        agents = answer.startswith("y")
        path = _add_bring(own, agents=agents)
        print(f"wrote to {printable(path)}: under [bring], agents = {'true' if agents else 'false'}")


def _asked_before(own: places.Places) -> bool:
    """Whether the user's own configuration has a table [bring], or is none that could be given one."""
    path = configuration.user_file(own)
    if os.path.islink(path):
        return True  # a dotfile manager's: it points to where agents may work
    try:
        content = guarded_files.read(path, follow=False)
        return content is not None and "bring" in tomllib.loads(content.data.decode("utf-8"))
    except (Refusal, ValueError, RecursionError):
        return True  # what is wrong with it is reported by whatever needs it


def _add_bring(own: places.Places, *, agents: bool) -> str:
    """Puts a table [bring] behind what the user's own configuration holds; returns the file's path."""
    path = configuration.user_file(own)
    content = guarded_files.read(path, follow=False)
    before = content.data if content is not None else b"schema = 1\n"
    line = f"[bring]\nagents = {'true' if agents else 'false'}\n".encode()
    try:
        places.make_private(os.path.dirname(path))
        data = before.rstrip(b"\n") + b"\n\n" + line if before.strip() else line
        walk.replace(path, data, mode=content.mode if content is not None else 0o600)
    except OSError as error:
        raise Refusal("init-failed", f"cannot write {path}", context=error.strerror or str(error)) from None
    return path


def trust(file: str | None, *, forget: bool, show_list: bool, as_json: bool) -> int:
    """Exit status 0 when done; 1 when there was nothing to forget."""
    state = places.places(os.environ).state
    places.is_there(state)
    store = Trust(state)
    if show_list:
        if file is not None or forget:
            raise Refusal("usage", "--list takes neither FILE nor --forget", hint="paddock trust --help")
        return _list(store, as_json=as_json)
    if file is not None and not file:
        raise Refusal("usage", "FILE is an empty name", hint="paddock trust .paddock.toml")
    here = places.current_directory()  # or the name of the file could mean nothing
    if file is None:
        file = os.path.join(checkout.find(here, Machine(os.environ), exact=False).root, ".paddock.toml")
    if not forget:
        worktree_words.directory(file if os.path.isdir(file) else os.path.dirname(file), here)
    if os.path.isdir(file) and not forget:
        return _git_directory(trusted_git.named(file), as_json=as_json)
    if forget:
        path = trusted_git.named(file) if os.path.isdir(file) else configuration.canonical_name(file)
        return _forget(store, path, as_json=as_json)
    directory = os.path.dirname(configuration.canonical_name(file))
    root = checkout.find(directory, Machine(os.environ), exact=False).root
    review = configuration.review(file, root, os.environ)
    if not as_json:
        print(f"{printable(review.path)} loosens:" if review.loosens else f"{printable(review.path)} loosens nothing")
        for line in review.loosens:
            print(f"  {printable(line)}")
        sys.stdout.flush()  # seen before it is recorded, also when recording fails
    store.trust(review.path, review.content)
    if as_json:
        document = {"path": review.path, "sha256": digest_of(review.content), "loosens": list(review.loosens)}
        print(json.dumps(document | {"trusted": True}, indent=2))
    else:
        print(f"trusted, as it is now (sha256 {digest_of(review.content)[:16]}...)")
    return 0


def _git_directory(place: str, *, as_json: bool) -> int:
    """Shows what git obeys in a git directory that sessions could write, and records that the user accepts it.

    Refusals: those of `trusted_git.obeyed`, session-running; git-dir-written where all sessions write.
    """
    state = places.places(os.environ).state
    identity, tree = syscalls.identity(place), written.agents_tree(place, state)
    if written.of_sessions(place, state):
        written.refuse_agents_git_dir(place, state)
    with writers.excluded(state, [tree, place] if tree else [], frozen=True):
        obeyed = trusted_git.obeyed(place, tree, state) if tree else []
        if not as_json:
            print("\n".join([f"in {printable(place)}, git obeys:", *(f"  {printable(line)}" for line in obeyed)])
                  if tree else f"{printable(place)} is trusted already" if written.is_vouched(state, place)
                  else f"no session could write {printable(place)}: git uses it anyway")  # fmt: skip
            sys.stdout.flush()
        if tree:
            written.vouch(state, place, identity)
    if as_json:
        print(json.dumps({"path": place, "obeyed": obeyed, "trusted": True}, indent=2))
    elif tree:
        print("trusted, until a session can write it again")
    return 0


def _list(store: Trust, *, as_json: bool) -> int:
    entries = store.entries()
    git_dirs = written.vouched(places.places(os.environ).state)
    if as_json:
        documents: list[dict[str, object]] = [{"path": path, "sha256": sha256} for path, sha256 in entries]
        documents += [{"path": path, "sha256": None} | ({} if here else {"moved": True})
                      for path, here in git_dirs.items()]  # fmt: skip
        print(json.dumps(documents, indent=2))
        return 0
    if not entries and not git_dirs:
        print("nothing is trusted")
        return 0
    rows = [(sha256[:16], path) for path, sha256 in entries]
    rows += [("git directory" if here else "moved since", path) for path, here in git_dirs.items()]
    print("\n".join(table.lines(("SHA256", "FILE"), rows)))
    return 0


def _forget(store: Trust, path: str, *, as_json: bool) -> int:
    state = places.places(os.environ).state
    revoked = written.revoke(state, path)
    known = store.forget(path) or revoked
    if as_json:
        print(json.dumps({"path": path, "trusted": False, "forgotten": known}, indent=2))
    else:
        print(
            f"{printable(path)} is {'no longer' if known else 'not'} trusted{'' if known else ', and was not before'}"
        )
        root, name = os.path.split(path)
        main = configuration.main_checkout(root, places.places(os.environ).state)
        if name == configuration.PROJECT_NAME and main and (there := f"{main}/{name}") in dict(store.entries()):
            print(f"what is trusted as {printable(there)} counts here, too: paddock trust --forget {quoted(there)}")
    return 0 if known else 1
