"""Takes the instances of one DNS-SD type out of what multicast DNS brings in. Knows no announcement.

What a packet says is taken from the packet itself. The library's cache only fills in what a long answer left
for the next packet: a stranger can crowd everything out of it, so nothing may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address

import msgspec
from zeroconf import (  # type: ignore[attr-defined]  # some are public, though not in its __all__
    DNSAddress,
    DNSPointer,
    DNSRecord,
    DNSService,
    DNSText,
    RecordUpdate,
    RecordUpdateListener,
    Zeroconf,
)

from dcnr_app.cluster.announcement import txt_fields


class Hearers(msgspec.Struct, frozen=True, kw_only=True):
    """Called on the event loop with an instance name in lower case. `heard` gets TXT record and addresses,
    and says whether the instance was taken note of; `incomplete` is for one whose addresses are not known
    yet, `gone` for one whose goodbye came."""

    heard: Callable[[str, Mapping[bytes, bytes | None], tuple[str, ...]], bool]
    incomplete: Callable[[str], None]
    gone: Callable[[str], None]


class MdnsListener(RecordUpdateListener):
    """Hands on every instance in a packet, also one that repeats what was known."""

    def __init__(self, service_type: str, hearers: Hearers) -> None:
        self._suffix = f".{service_type}".lower()
        self._hearers = hearers
        self._useless: list[DNSRecord] = []
        self._zeroconf: Zeroconf | None = None

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        """The records of one packet, before the cache takes them."""
        self._zeroconf = zc
        fresh = [update.new for update in records if not update.new.is_expired(now)]
        for instance in {self._instance_of(u.new): None for u in records if u.new.ttl == 0}:
            if instance:
                self._hearers.gone(instance)
        texts = {self._instance_of(r): r.text for r in fresh if isinstance(r, DNSText)}
        noted = {i for i, text in texts.items() if i and self._hand_on(zc, i, text, fresh)}
        if any(texts) and not noted:
            self._useless.extend(fresh)
        else:  # others' pointers live long, and lead to nothing that is not announced by itself
            ours = zc.registry.async_get_info_name
            pointers = [r for r in fresh if isinstance(r, DNSPointer) and self._instance_of(r)]
            self._useless.extend(r for r in pointers if ours(r.alias.lower()) is None)

    def async_update_records_complete(self) -> None:
        """Once the cache has them: what is of no use does not stay there."""
        useless, self._useless = self._useless, []
        if self._zeroconf is not None:
            cache = self._zeroconf.cache
            cache.async_remove_records(r for r in useless if cache.get(r) is not None)

    def _hand_on(self, zc: Zeroconf, instance: str, text: bytes, packet: list[DNSRecord]) -> bool:
        hosts = {
            r.server_key for r in packet if isinstance(r, DNSService) and self._instance_of(r) == instance
        }
        hosts.add(f"{instance}.local.")
        nearby = [r for r in packet if r.key in hosts]
        cached = [r for host in hosts for r in zc.cache.entries_with_name(host)]
        addresses = dict.fromkeys(_text(r) for r in (*nearby, *cached) if isinstance(r, DNSAddress))
        if not addresses:
            self._hearers.incomplete(instance)
            return True
        return self._hearers.heard(instance, txt_fields(text), tuple(addresses))

    def _instance_of(self, record: DNSRecord) -> str:
        """The instance of our type that a record speaks of (a pointer speaks of its target), or empty."""
        name = str(record.alias if isinstance(record, DNSPointer) else record.name).lower()
        return name.removesuffix(self._suffix) if name.endswith(self._suffix) else ""


def _text(record: DNSAddress) -> str:
    """The address, of link-local IPv6 with the scope on which it was heard."""
    if len(record.address) == 4:
        return str(IPv4Address(record.address))
    address = IPv6Address(record.address)
    has_scope = address.is_link_local and record.scope_id
    return f"{address}%{record.scope_id}" if has_scope else str(address)
