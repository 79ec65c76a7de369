"""How often one address may ask: a token bucket each, and a bound on how many are remembered. Pure."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

import msgspec

_MAX_ADDRESSES: Final = 1024


class RateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second in the long run, and how many may come at once."""

    per_s: float = 10.0
    burst: float = 40.0


class RateLimit:
    """Token buckets by address. A forgotten address starts with a full bucket, so the least recently seen
    ones are forgotten first: those that ask a lot are the last."""

    def __init__(self, settings: RateSettings) -> None:
        self._settings = settings
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, address: str, now_ms: float) -> bool:
        """Whether one more request from this address is within its rate; counts it if so."""
        tokens, then_ms = self._buckets.pop(address, (self._settings.burst, now_ms))
        tokens = min(self._settings.burst, tokens + (now_ms - then_ms) / 1000.0 * self._settings.per_s)
        is_taken = tokens >= 1.0
        self._buckets[address] = (tokens - is_taken, now_ms)
        if len(self._buckets) > _MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_taken


def address_group(host: str) -> str:
    """What is counted as one address: an IPv4 address, or the /64 network of an IPv6 one, as one machine may
    take any address in it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_link_local:
        return str(address)  # all of a LAN shares that network
    return str(ipaddress.ip_network((address, 64), strict=False))
