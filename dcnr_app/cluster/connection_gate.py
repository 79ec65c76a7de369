"""Bounds on connections of strangers: how many at once, in all and per address, and for how long. IO.

aiohttp has no limit on how long a request's head may take. Here a connection serves one request and lives a
few seconds at most, whatever comes or does not come over it; what is held for it until then is small.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import msgspec

from dcnr_app.cluster.rate_limit import address_group

_LOG = logging.getLogger(__name__)


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Connections at once per address and in all, and seconds that one may last."""

    per_address: int = 8
    in_all: int = 256
    life_s: float = 6.0


class ConnectionGate:
    """Counts open connections."""

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings
        self._open: Counter[str] = Counter()

    @property
    def n_open(self) -> int:
        """Connections that are open now."""
        return self._open.total()

    def enter(self, address: str) -> str:
        """Why one more connection from this address is refused, or an empty text: then it is counted."""
        if self._open[address] >= self.settings.per_address:
            return f"{self.settings.per_address} connections from this address are open"
        if self.n_open >= self.settings.in_all:
            return f"{self.n_open} connections are open"
        self._open[address] += 1
        return ""

    def leave(self, address: str) -> None:
        """A counted connection ended."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


class GatedConnection(asyncio.Protocol):
    """One connection: hands everything to the protocol inside while the gate lets it."""

    def __init__(self, inside: asyncio.Protocol, gate: ConnectionGate) -> None:
        self._inside = inside
        self._gate = gate
        self._address = ""
        self._is_inside = False
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, or end it at once."""
        peer: Any = transport.get_extra_info("peername")
        self._address = address_group(str(peer[0])) if peer else "unknown"
        refusal = self._gate.enter(self._address)
        if refusal or not isinstance(transport, asyncio.Transport):
            _LOG.info("connection_refused address=%s why=%s", self._address, refusal)
            if isinstance(transport, asyncio.Transport):
                transport.abort()
            return
        self._is_inside = True
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._gate.settings.life_s, self._expire, transport)
        self._inside.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        if self._is_inside:
            self._inside.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._inside.eof_received() if self._is_inside else None

    def pause_writing(self) -> None:
        """Hand on."""
        if self._is_inside:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        if self._is_inside:
            self._inside.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Count it out."""
        if not self._is_inside:
            return
        self._is_inside = False
        self._gate.leave(self._address)
        if self._end is not None:
            self._end.cancel()
        self._inside.connection_lost(error)

    def _expire(self, transport: asyncio.Transport) -> None:
        _LOG.info("connection_ended address=%s why=it took too long", self._address)
        transport.abort()
