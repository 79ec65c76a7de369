"""One DNS-SD service on multicast DNS: publishes it, asks for others of its type, hands on what is heard. IO.
Knows no announcement's meaning and trusts nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from zeroconf import (  # type: ignore[attr-defined]  # two are public, though not in its __all__
    DNSOutgoing,
    DNSQuestion,
    IPVersion,
    ServiceInfo,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncZeroconf

from dcnr_app.cluster.addresses import parse_address
from dcnr_app.cluster.mdns_listener import Hearers, MdnsListener
from dcnr_app.errors import UnreachableError

PORT: Final = 5353
TTL_S: Final = 12
"""Short, so that others' caches drop a machine that was killed."""
_GROUP_4, _GROUP_6 = "224.0.0.251", "ff02::fb"
_PTR, _TXT, _SRV, _INTERNET = 12, 16, 33, 1  # record types and class, RFC 1035 and RFC 2782
_QUERY: Final = 0
_IO_TIMEOUT_S: Final = 5.0

_LOG = logging.getLogger(__name__)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What is published: the instance's name without the type, its port, TXT record and addresses."""

    instance: str
    port: int
    txt: Mapping[bytes, bytes]
    addresses: tuple[str, ...]


class MulticastService:
    """The sockets, the published service and what comes in, on the interfaces of the given addresses."""

    def __init__(self, service_type: str, hearers: Hearers) -> None:
        self._type = service_type
        self._hearers = hearers
        self._zeroconf: AsyncZeroconf | None = None
        self._published: ServiceInfo | None = None
        self._service: Service | None = None
        self._announcing: asyncio.Future[object] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are sockets."""
        return self._zeroconf is not None

    async def open(self, targets: Sequence[str]) -> None:
        """Open sockets on the interfaces that have these addresses. Raises UnreachableError."""
        families = IPVersion.All if any(":" in target for target in targets) else IPVersion.V4Only
        try:
            opened = AsyncZeroconf(interfaces=list(targets), ip_version=families)
        except (OSError, RuntimeError) as error:
            raise _unusable(error) from error
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                await opened.zeroconf.async_wait_for_start()
        except (OSError, TimeoutError, ZeroconfError) as error:
            await opened.async_close()
            raise _unusable(error) from error
        opened.zeroconf.async_add_listener(MdnsListener(self._type, self._hearers), None)
        self._zeroconf = opened

    async def publish(self, service: Service) -> None:
        """Announce this service, unless it is the one announced last; it is said three times, the last ones
        after the return. Raises UnreachableError."""
        if self._zeroconf is None or service == self._service:
            return
        info = ServiceInfo(
            self._type,
            f"{service.instance}.{self._type}",
            port=service.port,
            properties=dict(service.txt),
            server=f"{service.instance}.local.",
            host_ttl=TTL_S,
            other_ttl=TTL_S,
            parsed_addresses=list(service.addresses),
        )
        await self._stop_announcing()
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                if self._published is None:
                    # The name holds a random part: nobody need be asked whether it is taken.
                    sent = await self._zeroconf.async_register_service(info, cooperating_responders=True)
                else:
                    sent = await self._zeroconf.async_update_service(info)
        except (OSError, TimeoutError, ZeroconfError) as error:
            raise _unusable(error) from error
        self._announcing = asyncio.ensure_future(sent)
        self._published, self._service = info, service

    async def move(self, targets: Sequence[str]) -> None:
        """Use the interfaces that have these addresses from now on, and announce on the new ones. Raises
        UnreachableError."""
        if self._zeroconf is None:
            return
        families = IPVersion.All if any(":" in target for target in targets) else IPVersion.V4Only
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                await self._zeroconf.async_update_interfaces(list(targets), families)
        except (OSError, RuntimeError, TimeoutError, ZeroconfError) as error:
            raise _unusable(error) from error

    def repeat(self) -> None:
        """Announce once more, and ask who else is there."""
        if self._zeroconf is None:
            return
        question = _question([(self._type, _PTR)])
        if self._published is not None:
            self._send(self._zeroconf.zeroconf.generate_service_broadcast(self._published, None))
            question.add_answer_at_time(
                self._published.dns_pointer(), 0.0
            )  # so that we do not answer ourselves
        self._send(question)

    def ask(self, instances: Sequence[str]) -> None:
        """Ask whether these are there; the answer goes to all. What is known already is not told with it, as
        is usual: it would excuse them from answering."""
        if instances:
            self._send(_question(self._records_of(instances)))

    def ask_at(self, addresses: Sequence[str]) -> None:
        """Ask by unicast who is there, for networks that carry no multicast; link-local IPv6 is left out."""
        for text in addresses:
            address = parse_address(text)
            if self._zeroconf is not None and address is not None and "%" not in text:
                question = _question([(self._type, _PTR)], is_unicast=True)
                self._zeroconf.zeroconf.async_send(question, text)

    async def close(self) -> None:
        """Say goodbye and close the sockets."""
        await self._stop_announcing()  # else it would go on between the goodbyes
        opened, self._zeroconf = self._zeroconf, None
        self._published = self._service = None
        if opened is None:
            return
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                await opened.async_close()
        except (OSError, TimeoutError, ZeroconfError) as error:
            raise _unusable(error) from error

    async def _stop_announcing(self) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait([announcing])
            if not announcing.cancelled() and (error := announcing.exception()) is not None:
                _LOG.warning("an announcement was not sent whole: %s", error)

    def _records_of(self, instances: Sequence[str]) -> list[tuple[str, int]]:
        names = [f"{instance}.{self._type}" for instance in instances]
        return [(name, kind) for name in names for kind in (_SRV, _TXT)]

    def _send(self, packet: DNSOutgoing) -> None:
        if self._zeroconf is not None:
            self._zeroconf.zeroconf.async_send(packet)


def joinable(addresses: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Which of these addresses' interfaces take part in multicast DNS, and why the others do not. Blocks, but
    briefly.

    One broken interface (unplugged a moment ago) would else keep all from being used.
    """
    good: list[str] = []
    failures: dict[str, str] = {}
    for text in addresses:
        try:
            _join(text)
        except OSError as error:
            failures[text] = error.strerror or str(error)
        else:
            good.append(text.partition("%")[0])
    return tuple(good), failures


def _join(text: str) -> None:
    """Do what the library will do, and undo it."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    where = socket.getaddrinfo(text, PORT, family, socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0][4]
    with _shared(family) as everywhere, _shared(family) as probe:
        everywhere.bind(("", PORT))
        probe.bind(where)
        if family == socket.AF_INET6:
            index = int(where[3]) if len(where) == 4 else 0
            group = socket.inet_pton(family, _GROUP_6) + struct.pack("@I", index)
            everywhere.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        else:
            interface = socket.inet_aton(text)
            group = socket.inet_aton(_GROUP_4) + interface
            everywhere.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)


def _shared(family: int) -> socket.socket:
    """A datagram socket whose port others may have too."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made


def _question(records: Sequence[tuple[str, int]], *, is_unicast: bool = False) -> DNSOutgoing:
    packet = DNSOutgoing(_QUERY)
    for name, kind in records:
        question = DNSQuestion(name, kind, _INTERNET)
        question.unicast = is_unicast
        packet.add_question(question)
    return packet


def _unusable(error: Exception) -> UnreachableError:
    return UnreachableError(
        "multicast DNS cannot be used",
        why=getattr(error, "strerror", None) or str(error) or type(error).__name__,
        fix="dcnr-app doctor",
    )
