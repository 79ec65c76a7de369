"""The network interfaces of this machine, asked of the system. IO; what they mean is in addresses.py."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address
from pathlib import Path
from typing import Any

import psutil

from dcnr_app.cluster.addresses import Interface, classify, is_usable

_DEFAULT_PREFIXES = {socket.AF_INET: 32, socket.AF_INET6: 64}


def usable_interfaces(*, with_loopback: bool = False) -> tuple[Interface, ...]:
    """The interfaces on which peers may be met, best first; loopback only if told."""
    return tuple(i for i in all_interfaces() if is_usable(i, with_loopback=with_loopback))


def all_interfaces() -> tuple[Interface, ...]:
    """Every interface that is up and has an address, container bridges and loopback included, best first."""
    states = psutil.net_if_stats()
    found = [
        _interface(name, addresses)
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup
    ]
    return tuple(sorted((i for i in found if i.networks), key=lambda i: (i.rank, i.name)))


def _interface(name: str, addresses: Sequence[Any]) -> Interface:
    networks = tuple(
        f"{a.address}/{_prefix(a.family, a.netmask)}" for a in addresses if a.family in _DEFAULT_PREFIXES
    )
    bare = [network.partition("/")[0] for network in networks]
    return Interface(
        name=name,
        index=_index(name),
        kind=classify(name, bare, is_wireless=Path("/sys/class/net", name, "wireless").exists()),
        networks=networks,
    )


def _prefix(family: int, netmask: str | None) -> int:
    """The prefix length of a network mask; Windows names none for IPv6."""
    if not netmask:
        return _DEFAULT_PREFIXES[socket.AddressFamily(family)]
    if family == socket.AF_INET:
        return IPv4Network(f"0.0.0.0/{netmask}").prefixlen
    return int(IPv6Address(netmask)).bit_count()


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:  # it went away a moment ago
        return 0
