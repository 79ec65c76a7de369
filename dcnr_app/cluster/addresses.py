"""What kind of network an interface is on, and in which order a peer's addresses are worth trying. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Final, Literal

import msgspec

Kind = Literal["wired", "wifi", "vpn", "container", "loopback"]

RANKS: Final[Mapping[Kind, int]] = {"wired": 0, "wifi": 10, "vpn": 20, "container": 30, "loopback": 40}
OFF_LINK_RANK: Final = 15
"""An address that no interface is directly joined to may be routed: better than a VPN, worse than the LAN."""
MAX_ADDRESSES: Final = 16
"""More addresses of one machine are not looked at: what strangers announce must not keep us dialling."""

# Bridges and pairs of containers and virtual machines, Apple's peer-to-peer radios, and placeholders. macOS's
# `bridge0` joins Thunderbolt ports and is a network like any other; its virtual machines get `bridge100` on.
_CONTAINER: Final = re.compile(
    r"(docker|br-|veth|virbr|vnet|cni|flannel|cali|lxc|lxdbr|podman|kube|vmnet|vboxnet|vEthernet|dummy|ifb|"
    r"awdl|llw|anpi|ap\d|bridge[1-9]\d\d|gif\d|stf\d)",
    re.IGNORECASE,
)
_VPN: Final = re.compile(
    r"(tun|tap|wg|utun|tailscale|zt|ppp|ipsec|nordlynx|proton|wireguard|openvpn|zerotier)", re.IGNORECASE
)
_WIFI: Final = re.compile(r"(wl|wifi|wi-fi|wlan|ath\d)", re.IGNORECASE)
_LOOPBACK: Final = re.compile(r"(lo\d*$|loopback)", re.IGNORECASE)
_SHARED_SPACE: Final = IPv4Network("100.64.0.0/10")
_TAILSCALE_SPACE: Final = IPv6Network("fd7a:115c:a1e0::/48")


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface. `networks` are its addresses with prefix lengths, as in `192.0.2.2/24` and
    `fe80::1%eth0/64`; a lower `rank` is tried first."""

    name: str
    index: int
    kind: Kind
    networks: tuple[str, ...]

    @property
    def rank(self) -> int:
        """How early addresses on this interface are tried."""
        return RANKS[self.kind]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses without prefix lengths; link-local IPv6 ones with their scope."""
        return tuple(network.partition("/")[0] for network in self.networks)


def classify(name: str, addresses: Iterable[str], *, is_wireless: bool = False) -> Kind:
    """The kind of an interface by its name, its addresses and whether the system calls it wireless."""
    parsed = [ip_address(address) for address in addresses]
    if _LOOPBACK.match(name) or (parsed and all(address.is_loopback for address in parsed)):
        return "loopback"
    if _CONTAINER.match(name):
        return "container"
    if _VPN.match(name) or any(_is_vpn_address(address) for address in parsed):
        return "vpn"
    if is_wireless or _WIFI.match(name):
        return "wifi"
    return "wired"


def is_usable(interface: Interface, *, with_loopback: bool = False) -> bool:
    """Whether peers may be met on it: container bridges never, loopback only if told, VPNs and others if they
    have an address that leads somewhere."""
    if interface.kind == "loopback":
        return with_loopback
    if interface.kind == "container":
        return False
    parsed = [ip_address(address) for address in interface.addresses]
    if interface.kind == "vpn":  # macOS keeps tunnels that have nothing but a link-local address
        return any(not address.is_link_local for address in parsed)
    return bool(parsed)


def announced_addresses(interfaces: Sequence[Interface], *, with_loopback: bool = False) -> tuple[str, ...]:
    """All addresses that peers are told, best first, without scopes (a scope means nothing to another
    machine). Loopback addresses only with `with_loopback`."""
    found: dict[str, None] = {}
    for interface in sorted(interfaces, key=lambda i: i.rank):
        for address in sorted(interface.addresses, key=_family_order):
            if with_loopback or not ip_address(address).is_loopback:
                found[address.partition("%")[0]] = None
    return tuple(found)[:MAX_ADDRESSES]


def multicast_targets(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """One IPv4 and one IPv6 address of each interface, to send and hear multicast on; of IPv6 the link-local
    one, with its scope, because only packets from it say on which link their sender is."""
    found: list[str] = []
    for interface in interfaces:
        by_family = sorted(interface.addresses, key=lambda a: not ip_address(a).is_link_local)
        found.extend(next(([a] for a in interface.addresses if ip_address(a).version == 4), []))
        if interface.kind != "loopback":
            found.extend(next(([a] for a in by_family if ip_address(a).version == 6), []))
    return tuple(found)


def dialled_addresses(
    addresses: Iterable[str], interfaces: Sequence[Interface], *, with_loopback: bool = False
) -> tuple[str, ...]:
    """A peer's addresses in the order to try them: those on our wired networks, then Wi-Fi, routed ones,
    VPNs, container bridges. What cannot be dialled is left out: no address, unspecified, multicast, loopback
    of another machine, link-local IPv6 without a scope."""
    usable: dict[str, None] = {}
    for text in addresses:
        address = parse_address(text)
        if address is not None and _is_dialled(address, with_loopback=with_loopback):
            usable[text] = None
    return tuple(sorted(usable, key=lambda text: _dialling_order(text, interfaces)))[:MAX_ADDRESSES]


def on_link(address: str, interfaces: Iterable[Interface]) -> Interface | None:
    """The interface whose network holds this address without a router, the best if several do; or None."""
    parsed = parse_address(address)
    if parsed is None:
        return None
    found = [interface for interface in interfaces if _holds(interface, parsed)]
    return min(found, key=lambda interface: interface.rank, default=None)


def host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address, or None if the text is none."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def _holds(interface: Interface, address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address.is_link_local:
        is_scope = address.scope_id in (interface.name, str(interface.index))
        return is_scope and any(isinstance(i, IPv6Interface) for i in _parsed(interface))
    return any(address.version == i.version and address in i.network for i in _parsed(interface))


def _parsed(interface: Interface) -> list[IPv4Interface | IPv6Interface]:
    return [ip_interface(network) for network in interface.networks]


def _is_vpn_address(address: IPv4Address | IPv6Address) -> bool:
    space = _SHARED_SPACE if address.version == 4 else _TAILSCALE_SPACE
    return address in space


def _is_dialled(address: IPv4Address | IPv6Address, *, with_loopback: bool) -> bool:
    if address.is_unspecified or address.is_multicast or (address.is_loopback and not with_loopback):
        return False
    needs_scope = isinstance(address, IPv6Address) and address.is_link_local
    return not needs_scope or (isinstance(address, IPv6Address) and address.scope_id is not None)


def _dialling_order(text: str, interfaces: Sequence[Interface]) -> tuple[int, int]:
    address = ip_address(text)
    joined = on_link(text, interfaces)
    rank = joined.rank if joined is not None else OFF_LINK_RANK
    if _is_vpn_address(address):
        rank = max(rank, RANKS["vpn"])
    return rank, _family_order(text)


def _family_order(text: str) -> int:
    """IPv4 before IPv6, which is more often half-configured; link-local ones last."""
    address = ip_address(text)
    return (2 if address.is_link_local else 0) + (1 if address.version == 6 else 0)
