"""The hosts that a provider must reach: its own, and those that the caller's environment names as its server."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from launcher.session.machine import Machine
from policy.config import values
from policy.egress import LOCALHOST, Request
from policy.hosts import parse_host
from policy.providers.model import ProviderSpec

Sourced = tuple[tuple[str, str], ...]

_PORTS = {"http": 80, "https": 443}


def of(spec: ProviderSpec, name: str, machine: Machine, environ: Mapping[str, str]) -> tuple[Sourced, Sourced]:
    """(egress rules, ports of the loopback), each entry with its source.

    A server on this machine's loopback is granted as a port, at its own address: clients do not use a proxy for it.

    Args:
        spec: the provider's.
        name: the provider's, for the source.
        machine: is asked for variables, and the Plan depends on the answers.
        environ: the same environment. A value that holds credentials is passed over, because answers are kept.
    """
    rules = [(domain, f"provider {name}") for domain in spec.domains]
    reach = []
    for variable in spec.endpoints:
        if "@" in environ.get(variable, ""):
            continue
        wanted = endpoint(machine.env(variable) or "")
        if wanted is None:
            continue
        source = f"{variable} of your environment"
        if wanted.host == LOCALHOST or (not isinstance(wanted.host, str) and wanted.host.is_loopback):
            reach.append((values.loopback(wanted.where), source))
        else:
            rules.append((wanted.where, source))
    return tuple(rules), tuple(reach)


def endpoint(url: str) -> Request | None:
    """Host and port of an HTTP URL; None for anything else, which is the provider's to complain about."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        bracketed = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return Request(parse_host(bracketed), port)
    except (KeyError, ValueError):
        return None
