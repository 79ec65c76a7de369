"""The PeerTransport seam: authenticated, ordered message streams between PNodes. Knows no session.

Two implementations pass the same contract tests: gRPC over mutual TLS and in-memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from dcnr_app.cluster.messages import AnyMessage, TensorHeader
from dcnr_app.ids import PNodeId

HostArray = np.ndarray[Any, Any]
MAX_FRAME_BYTES = 1 << 20


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted PNode: where it listens and the sha256 of its certificate (hex)."""

    pnode: PNodeId
    address: str
    fingerprint: str
    role: str


class LinkTotals(NamedTuple):
    """Bytes on the wire with all peers, framing included, since the transport began."""

    bytes_sent: int
    bytes_received: int


class Receiver(Protocol):
    """What a transport hands its events to; called on the event loop, and must return at once."""

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Why this message must be refused before its tensors are allocated, or an empty text."""
        ...

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """A whole message arrived."""
        ...

    def lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with this peer broke; nothing more will come over them."""
        ...


class PeerTransport(Protocol):
    """Streams with all members, made on demand. `send` keeps the order per peer and per channel (control,
    bulk)."""

    async def start(self, receiver: Receiver) -> str:
        """Listen; returns the address that peers dial, `host:port`."""
        ...

    def set_members(self, members: Sequence[Member]) -> None:
        """Replace the membership; streams of a PNode that is no longer in it are cancelled."""
        ...

    async def send(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Send one message. Returns when it was handed to the stream. Raises PeerError if the peer is
        gone."""
        ...

    def totals(self) -> LinkTotals:
        """Bytes so far."""
        ...

    async def close(self) -> None:
        """Close all streams and stop listening."""
        ...
