"""DNS packets made by hand, without a DNS library, as a stranger would send them. Holds no test."""

from __future__ import annotations

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
