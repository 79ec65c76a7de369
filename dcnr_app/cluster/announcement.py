"""What a machine says about itself on the local network, and its form as a DNS-SD TXT record. Pure.

Everything that comes in was said by a stranger: it is a hint, bounded and cleaned here, and proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import RefusedError

SERVICE_TYPE: Final = "_dcnr._tcp.local."
MAX_TXT_BYTES: Final = 1024
NAME_BYTES: Final = 120
SUMMARY_BYTES: Final = 160
_FORMAT: Final = "1"

_MACHINE = re.compile(r"[0-9a-f]{16}")
_RUN = re.compile(r"[0-9a-f]{0,16}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z0-9._-]{0,64}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{0,32}")
_NUMBER = re.compile(r"[0-9]{1,5}")
_MAX_PORT = 65535


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine announces.

    `machine` is the beginning of `fingerprint`, the sha256 of the machine's public key (hex). `run` differs
    at every start, so that a restart and a second machine with the same key can be told apart. `cluster` and
    `role` (`orchestrator` or `worker`) are empty while the machine is in no cluster. `protocol_min` to
    `protocol_max` is what it speaks. `front_door_port` takes pairing, `agent_port` (None while in no cluster)
    mutual TLS. Raises RefusedError if a field is not of that form; names and the device summary are cleaned
    and cut instead.
    """

    machine: str
    name: str
    fingerprint: str
    front_door_port: int
    protocol_min: int
    protocol_max: int
    app_version: str
    cluster: str = ""
    cluster_name: str = ""
    role: str = ""
    device_summary: str = ""
    agent_port: int | None = None
    run: str = ""

    def __post_init__(self) -> None:
        """Clean what is for people and refuse the rest if it is malformed."""
        for field, limit in (
            ("name", NAME_BYTES),
            ("cluster_name", NAME_BYTES),
            ("device_summary", SUMMARY_BYTES),
        ):
            msgspec.structs.force_setattr(self, field, _fitting(getattr(self, field), limit))
        for field, form in (
            ("machine", _MACHINE),
            ("fingerprint", _FINGERPRINT),
            ("run", _RUN),
            ("cluster", _WORD),
            ("role", _WORD),
            ("app_version", _VERSION),
        ):
            if form.fullmatch(getattr(self, field)) is None:
                raise _malformed(f"its {field} is {getattr(self, field)[:80]!r}")
        if not self.fingerprint.startswith(self.machine):
            raise _malformed("its id is not the beginning of its key's fingerprint")
        ports = [self.front_door_port, *([] if self.agent_port is None else [self.agent_port])]
        if not all(0 < port <= _MAX_PORT for port in ports):
            raise _malformed(f"of its ports {ports} not all can be dialled")
        if not 0 <= self.protocol_min <= self.protocol_max <= _MAX_PORT:
            raise _malformed(f"its protocol range is {self.protocol_min} to {self.protocol_max}")

    @property
    def instance(self) -> str:
        """The DNS-SD instance name: one per machine and run."""
        return f"{self.machine}-{self.run}"


def write_txt(announcement: Announcement) -> dict[bytes, bytes]:
    """The TXT record's keys and values; at most MAX_TXT_BYTES on the wire."""
    fields = {
        "v": _FORMAT,
        "id": announcement.machine,
        "run": announcement.run,
        "name": announcement.name,
        "fp": announcement.fingerprint,
        "port": str(announcement.front_door_port),
        "pmin": str(announcement.protocol_min),
        "pmax": str(announcement.protocol_max),
        "app": announcement.app_version,
        "cid": announcement.cluster,
        "cn": announcement.cluster_name,
        "role": announcement.role,
        "dev": announcement.device_summary,
        "agent": "" if announcement.agent_port is None else str(announcement.agent_port),
    }
    return {key.encode(): value.encode() for key, value in fields.items() if value}


def read_txt(txt: Mapping[bytes, bytes | None]) -> Announcement:
    """The announcement of a TXT record. Unknown keys are passed over; raises RefusedError for one that is too
    long, of another format, or malformed."""
    if txt_bytes(txt) > MAX_TXT_BYTES:
        raise _malformed(f"it has {txt_bytes(txt)} bytes, more than {MAX_TXT_BYTES}")
    if _text(txt, "v") != _FORMAT:
        raise _malformed(f"its format is {_text(txt, 'v')[:16]!r}, not {_FORMAT!r}")
    return Announcement(
        machine=_text(txt, "id"),
        run=_text(txt, "run"),
        name=_text(txt, "name"),
        fingerprint=_text(txt, "fp"),
        front_door_port=_number(txt, "port"),
        protocol_min=_number(txt, "pmin"),
        protocol_max=_number(txt, "pmax"),
        app_version=_text(txt, "app"),
        cluster=_text(txt, "cid"),
        cluster_name=_text(txt, "cn"),
        role=_text(txt, "role"),
        device_summary=_text(txt, "dev"),
        agent_port=_number(txt, "agent") if _text(txt, "agent") else None,
    )


def txt_bytes(txt: Mapping[bytes, bytes | None]) -> int:
    """The TXT record's length on the wire: each string has a length byte, `=` parts key and value."""
    return sum(1 + len(key) + (0 if value is None else 1 + len(value)) for key, value in txt.items())


def txt_fields(raw: bytes) -> dict[bytes, bytes | None]:
    """The fields of a TXT record as it is on the wire: strings with a length byte, `key=value` or a bare key.
    Of a key that comes twice the first counts; a string that is cut off at the end is left out."""
    fields: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(raw):
        end = at + 1 + raw[at]
        if end > len(raw):
            break
        key, equals, value = raw[at + 1 : end].partition(b"=")
        if key:
            fields.setdefault(key, value if equals else None)
        at = end
    return fields


def _text(txt: Mapping[bytes, bytes | None], key: str) -> str:
    return (txt.get(key.encode()) or b"").decode("utf-8", "replace")


def _number(txt: Mapping[bytes, bytes | None], key: str) -> int:
    text = _text(txt, key)
    if _NUMBER.fullmatch(text) is None:
        raise _malformed(f"its {key!r} is {text[:16]!r}, not a small number")
    return int(text)


def _fitting(text: str, limit_bytes: int) -> str:
    """`text` cleaned, and cut to so many bytes of UTF-8 between two characters."""
    cleaned = plain_text(text, limit_bytes)
    return cleaned.encode()[:limit_bytes].decode("utf-8", "ignore").strip()


def _malformed(why: str) -> RefusedError:
    return RefusedError("an announcement on the local network is malformed", why=why)
