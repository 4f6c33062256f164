"""Addresses that a name must not lead to: loopback, link-local, private, metadata services, and what hides one of them.

Tables: IANA's special-purpose address registries (RFC 6890 and its updates). `ipaddress` has the same tables, but they
differ between Python's patch releases, and know neither metadata services nor all of the forms that wrap IPv4.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_V4 = (
    ("0.0.0.0/8", "this machine"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier's customers, and a metadata service's"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local, where metadata services are"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols, and a metadata service's"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "of deprecated relays"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("168.63.129.16/32", "a cloud platform's own service"),
)
_V6 = (
    ("::1/128", "loopback"),
    ("2001::/23", "reserved for protocols and tunnels"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "IPv4 in a tunnel's clothes"),
    ("3fff::/20", "for documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_TABLES: dict[int, tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]] = {
    4: tuple((ipaddress.IPv4Network(text), what) for text, what in _V4),
    6: tuple((ipaddress.IPv6Network(text), what) for text, what in _V6),
}
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def special(address: Address) -> str:
    """What makes `address` no public one, as an adjective phrase; "" when it is an ordinary public address.

    IPv4 addresses inside IPv6 ones (mapped, NAT64 of RFC 6052, ISATAP) are judged by what they lead to.
    """
    for network, what in _TABLES[address.version]:
        if address in network:
            return what
    if isinstance(address, ipaddress.IPv4Address):
        return ""
    if address.ipv4_mapped is not None:
        return special(address.ipv4_mapped) or "IPv4 in IPv6's clothes"
    number = int(address)
    if address in _NAT64:
        return special(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address not in _GLOBAL_UNICAST:
        return "reserved"
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return special(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return ""
