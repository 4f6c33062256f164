"""`paddock doctor`: what this machine offers, and a real jail that proves each promise."""

import json
import os

from launcher.jail import probe
from launcher.ledger import switching
from launcher.session import messages, miniature, places
from launcher.verbs import style
from policy.errors import Refusal
from policy.plan import SYSTEM_PATH


def doctor(*, as_json: bool, verbose: bool) -> int:
    """Exit status 0 when the jail holds all that its backend promises, 1 when not, 125 when none can start."""
    os.environ["PATH"] = SYSTEM_PATH  # for what the self-test starts, unjailed
    layers = (
        *probe.describe(probe.probe(whole=True), probe.bubblewrap(search=SYSTEM_PATH)),
        switching.describe_audit(),
    )
    refused: Refusal | None = None
    result: miniature.Result | None = None
    try:
        result = miniature.run(places.places(os.environ))
    except Refusal as refusal:
        refused = refusal
    if as_json:
        messages.show(json.dumps(miniature.document(layers, result, refused), indent=2))
    else:
        _print_layers(layers)
        if result is not None:
            _print_proofs(result, verbose)
            verdict = miniature.verdict(result)
            print(f"\nverdict: {style.styled(verdict, style.RED if verdict.startswith('BROKEN') else style.GREEN)}")
    if refused is not None:
        raise refused
    assert result is not None
    return 0 if all(proof.honest for proof in result.proofs) else 1


def _print_layers(layers: tuple[tuple[str, bool, bool, str, str], ...]) -> None:
    print("layers of this machine")
    for name, present, usable, why, remedy in layers:
        state = "usable" if usable else "present, not usable" if present else "absent"
        print(f"  {name:<12} {state}" + (f": {why}" if why else ""))
        if remedy:
            print(f"  {'':<12} to do: {remedy}")


def _print_proofs(result: miniature.Result, verbose: bool) -> None:
    print(f"\npromises, tested in a jail with the backend {result.backend}")
    for proof in result.proofs:
        verdict = "not held" if proof.expected != "held" else "held" if proof.proven else "BROKEN"
        shade = style.GREEN if verdict == "held" else style.RED if verdict == "BROKEN" else style.YELLOW
        print(
            f"  {style.styled(f'{verdict:<9}', shade)} {proof.row:<18} {proof.promise}"
            + (f" ({proof.reason})" if proof.reason else "")
        )
        for kind, what, state, detail in proof.attempts:
            if verbose or verdict == "BROKEN":
                print(f"  {'':<9} {kind:<6} {what}: {state}" + (f" ({detail})" if detail else ""))
