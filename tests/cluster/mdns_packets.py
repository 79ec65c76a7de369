"""DNS packets made by hand, without a DNS library, as a stranger would send them. Holds no test."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from dcnr_app.cluster.announcement import Announcement, write_txt

_RESPONSE = 0x8400
_FLUSH_INTERNET = 0x8001
_A, _PTR, _TXT, _SRV = 1, 12, 16, 33


def records_of(
    service_type: str,
    said: Announcement,
    addresses: Sequence[str],
    *,
    ttl_s: int = 12,
    txt: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """A response with pointer, service, text and IPv4 address records; a TTL of 0 is a goodbye."""
    instance, host = f"{said.instance}.{service_type}", f"{said.instance}.local."
    text = b"".join(
        bytes([len(pair)]) + pair
        for pair in (key + b"=" + value for key, value in (write_txt(said) if txt is None else txt).items())
    )
    answers = [
        _record(service_type, _PTR, 0x0001, ttl_s, _name(instance)),
        _record(
            instance,
            _SRV,
            _FLUSH_INTERNET,
            ttl_s,
            struct.pack("!HHH", 0, 0, said.front_door_port) + _name(host),
        ),
        _record(instance, _TXT, _FLUSH_INTERNET, ttl_s, text or b"\x00"),
        *(_record(host, _A, _FLUSH_INTERNET, ttl_s, socket.inet_aton(address)) for address in addresses),
    ]
    return struct.pack("!HHHHHH", 0, _RESPONSE, 0, len(answers), 0, 0) + b"".join(answers)


def crowd_of(service_type: str, n: int, first: int = 0) -> bytes:
    """A response with so many pointers of another type, numbered, which caches keep for an hour."""
    answers = [
        _record(service_type, _PTR, 0x0001, 3600, _name(f"x{i}.{service_type}"))
        for i in range(first, first + n)
    ]
    return struct.pack("!HHHHHH", 0, _RESPONSE, 0, n, 0, 0) + b"".join(answers)


def heard_by_everybody() -> socket.socket:
    """A socket that hears every multicast DNS packet on loopback."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listening.bind(("", 5353))
    group = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
    listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    listening.setblocking(False)
    return listening


async def hear(listening: socket.socket, instance: str) -> None:
    """Wait for a packet on this socket that announces the instance."""
    loop = asyncio.get_running_loop()
    while True:
        packet = await loop.sock_recv(listening, 9000)
        if packet[2] & 0x80 and instance.encode() in packet:
            return


def send_all(packets: Iterable[bytes]) -> None:
    """Multicast these on loopback, one datagram each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        for packet in packets:
            sender.sendto(packet, ("224.0.0.251", 5353))


def _name(text: str) -> bytes:
    labels = [label.encode() for label in text.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\x00"


def _record(name: str, kind: int, kind_class: int, ttl_s: int, data: bytes) -> bytes:
    return _name(name) + struct.pack("!HHIH", kind, kind_class, ttl_s, len(data)) + data
