"""`paddock doctor`: what this machine offers, and a real jail that proves each promise."""

import json
import os

from launcher.jail import probe
from launcher.ledger import switching
from launcher.session import messages, places, selftest
from launcher.verbs import style
from policy.errors import Refusal
from policy.plan import SYSTEM_PATH


def doctor(*, as_json: bool, verbose: bool) -> int:
    """Exit status 0 when the jail holds all that its backend promises, 1 when not, 125 when none can start."""
    os.environ["PATH"] = SYSTEM_PATH  # for what the self-test starts, unjailed
    layers = (*probe.describe(probe.probe(), probe.bubblewrap(search=SYSTEM_PATH)), switching.describe_audit())
    refused: Refusal | None = None
    result: selftest.Result | None = None
    try:
        result = selftest.run(places.places(os.environ))
    except Refusal as refusal:
        refused = refusal
    if as_json:
        messages.show(json.dumps(_document(layers, result, refused), indent=2))
    else:
        _print_layers(layers)
        if result is not None:
            _print_proofs(result, verbose)
            verdict = _verdict(result)
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


def _print_proofs(result: selftest.Result, verbose: bool) -> None:
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


def _verdict(result: selftest.Result) -> str:
    """One sentence on what all of it comes to."""
    broken = [proof.row for proof in result.proofs if not proof.honest]
    if broken:
        return f"BROKEN: do not run agents here; these promises do not hold: {', '.join(broken)}"
    missing = [proof.row for proof in result.proofs if proof.expected != "held"]
    if missing:
        return f"agents can run here; this backend does not hold {', '.join(missing)}, the rest was tested and holds"
    return "agents can run here; every promise was tested and holds"


def _document(
    layers: tuple[tuple[str, bool, bool, str, str], ...], result: selftest.Result | None, refused: Refusal | None
) -> dict[str, object]:
    names = ("layer", "present", "usable", "why", "remedy")
    return {
        "layers": [dict(zip(names, row, strict=True)) for row in layers],
        "backend": result.backend if result else None,
        "verdict": _verdict(result) if result else None,
        "promises": [proof._asdict() | {"honest": proof.honest} for proof in result.proofs] if result else [],
        "refusal": refused.as_dict() if refused else None,
    }
