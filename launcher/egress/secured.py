"""Clients in the jail whose TLS ends at the proxy, for a login's or a mirror's host: an authority, and their exchange.

The authority's key is this process's alone. Its certificate is good for those hosts (RFC 5280 section 4.2.1.10), and
only programmes trust it that are told of it.
"""

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from launcher import wire
from launcher.egress.exchange import ClientLeft, Exchange
from launcher.egress.tls import Stream
from launcher.jail import hygiene
from policy.logins import Login

_BEFORE, _LASTS = datetime.timedelta(days=1), datetime.timedelta(days=90)


class Authority:
    """Certifies some hosts.

    Attributes:
        certificate: its own, in PEM.
        context: for connections to any of the hosts.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        """To be made before this process is confined: OpenSSL reads a certificate from a file only."""
        names, permitted = _named(tuple(hosts))
        key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Paddock, for one jail")])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = (
            _certificate(name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.NameConstraints(permitted, None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
        )
        leaf = (
            _certificate(name, own.public_key())
            .subject_name(x509.Name([]))
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        )
        pem = serialization.Encoding.PEM
        self.certificate = authority.subject_name(name).sign(key, hashes.SHA256()).public_bytes(pem)
        chain = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain += leaf.sign(key, hashes.SHA256()).public_bytes(pem)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(["http/1.1"])
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(memory, chain)
            self.context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)


def _named(hosts: tuple[str, ...]) -> tuple[list[x509.GeneralName], list[x509.GeneralName]]:
    """The hosts as a certificate names them, and as its authority is held to them.

    A constraint is about names of its own kind alone, so one without a name of a host would leave all of them open.
    """
    names: list[x509.GeneralName] = []
    permitted: list[x509.GeneralName] = []
    for host in hosts:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            names.append(x509.DNSName(host))
            permitted.append(names[-1])
        else:
            names.append(x509.IPAddress(address))
            permitted.append(x509.IPAddress(ipaddress.ip_network(address)))
    if not any(isinstance(name, x509.DNSName) for name in names):
        permitted.append(x509.DNSName("none.invalid"))
    return names, permitted


def _certificate(issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().issuer_name(issuer).public_key(key).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _BEFORE).not_valid_after(now + _LASTS)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


class Kept(NamedTuple):
    """What stays outside at hosts where TLS ends, as the proxy knows it.

    Attributes:
        logins: of the plan.
        secret: of the private home's phantoms.
        authority: for the hosts where TLS ends.
        keeper: socket of the process that has the tokens.
    """

    logins: tuple[Login, ...]
    secret: bytes
    authority: Authority
    keeper: socket.socket


def keeping(
    logins: tuple[Login, ...],
    secret: bytes,
    hosts: tuple[str, ...],
    keep: Callable[[int], NoReturn] | None,
    certified: int,
) -> Kept:
    """Starts the process that has the tokens, and makes the authority, whose certificate goes to the launcher.

    Args:
        logins, secret: for the proxy.
        hosts: where TLS ends.
        keep: what that process does with a socket; None without logins.
        certified: pipe to the launcher.
    """
    ours, theirs = socket.socketpair()
    if keep is not None and os.fork() == 0:
        try:
            os.setsid()
            hygiene.close_inherited((theirs.fileno(),))
            keep(theirs.fileno())
        finally:
            os._exit(1)
    theirs.close()
    authority = Authority(hosts)
    wire.write(certified, authority.certificate)
    os.close(certified)
    return Kept(logins, secret, authority, ours)


class Secured(Exchange):
    """A client whose TLS ends here."""

    def __init__(self, plain: Exchange, context: ssl.SSLContext) -> None:
        """`plain`: the client's exchange so far, which has been told that it is connected."""
        super().__init__(plain.client, plain.gateway, plain.secret, plain.relays, name_required=False)
        self._stream = Stream(self.client, context)

    async def secure(self, first: bytes) -> None:
        """The handshake; `first` came already. Raises OSError, `ssl.SSLError` among them."""
        await self._stream.secure(first)

    async def receive(self) -> bytes:
        """See `Exchange`."""
        data = await self._stream.receive()
        if not data:
            raise ClientLeft
        return data

    async def send(self, data: bytes) -> None:
        """See `Exchange`."""
        await self._stream.send(data)

    async def _end(self) -> None:
        await self._stream.end()
