"""`paddock init` and `paddock trust`: write a commented .paddock.toml, and accept one that loosens rules."""

import json
import os
import sys

from launcher.session import configuration, places
from launcher.session.configuration import Trust, digest_of
from launcher.session.machine import Machine
from launcher.vcs import checkout
from launcher.verbs import table
from policy.errors import Refusal, printable


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
    return 0


def trust(file: str | None, *, forget: bool, show_list: bool, as_json: bool) -> int:
    """Exit status 0 when done; 1 when there was nothing to forget."""
    store = Trust(places.places(os.environ).state)
    if show_list:
        if file is not None or forget:
            raise Refusal("usage", "--list stands alone", hint="paddock trust --help")
        return _list(store, as_json=as_json)
    if file is not None and not file:
        raise Refusal("usage", "FILE is an empty name", hint="paddock trust .paddock.toml")
    here = places.current_directory()  # or the name of the file could mean nothing
    if file is None:
        file = os.path.join(checkout.find(here, Machine(os.environ), exact=False).root, ".paddock.toml")
    if forget:
        return _forget(store, configuration.canonical_name(file), as_json=as_json)
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


def _list(store: Trust, *, as_json: bool) -> int:
    entries = store.entries()
    if as_json:
        print(json.dumps([{"path": path, "sha256": sha256} for path, sha256 in entries], indent=2))
        return 0
    if not entries:
        print("nothing is trusted")
        return 0
    print("\n".join(table.lines(("SHA256", "FILE"), [(sha256[:16], path) for path, sha256 in entries])))
    return 0


def _forget(store: Trust, path: str, *, as_json: bool) -> int:
    known = store.forget(path)
    if as_json:
        print(json.dumps({"path": path, "trusted": False, "forgotten": known}, indent=2))
    else:
        print(
            f"{printable(path)} is {'no longer' if known else 'not'} trusted{'' if known else ', and was not before'}"
        )
    return 0 if known else 1
