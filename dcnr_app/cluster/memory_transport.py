"""PeerTransport within one process, for `--workers 0`, the contract tests and simulations with real arrays.

A message goes through the same envelope bytes, checks and copies as on a network, but is not cut into frames.
Without a delay function it is delivered within `send`, so everything between two PNodes keeps its order.
With one, each message is held back on its own by `loop.call_later`: hops overlap, and a longer delay lets a
later message overtake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from dcnr_app.cluster.checked_frames import PREFIX_BYTES
from dcnr_app.cluster.codec import (
    MAX_DATA_BYTES,
    MORE,
    START,
    Opening,
    Outgoing,
    Refusal,
    allocate,
    bytes_view,
    encode,
    open_envelope,
    tag_of,
)
from dcnr_app.cluster.messages import AnyMessage, Hello, Refused
from dcnr_app.cluster.transport import HostArray, LinkTotals, Member, Receiver
from dcnr_app.errors import PeerError
from dcnr_app.ids import PNodeId

Delay = Callable[[PNodeId, PNodeId, AnyMessage], float]
"""Milliseconds for which the message from the first PNode to the second is held back."""


class MemoryHub:
    """What connects the transports of one process: who listens, which links exist, which are cut."""

    def __init__(self, delay_ms: Delay | None = None) -> None:
        self.delay_ms = delay_ms
        self.open: dict[PNodeId, MemoryTransport] = {}
        self._links: dict[frozenset[PNodeId], set[asyncio.TimerHandle]] = {}
        self._cut: set[frozenset[PNodeId]] = set()

    def cut(self, one: PNodeId, other: PNodeId) -> None:
        """Break the link and keep it broken: what is under way is dropped, both receivers are told."""
        link = frozenset((one, other))
        self._cut.add(link)
        if self._drop(link):
            for here, there in ((one, other), (other, one)):
                if here in self.open:
                    self.open[here].tell_lost(there, "the link was cut")

    def heal(self, one: PNodeId, other: PNodeId) -> None:
        """Let the two reach each other again."""
        self._cut.discard(frozenset((one, other)))

    def is_cut(self, one: PNodeId, other: PNodeId) -> bool:
        """Whether the link is cut at present."""
        return frozenset((one, other)) in self._cut

    def end(self, here: PNodeId, there: PNodeId, reason: str) -> None:
        """`here` ends the link by itself: only `there` is told."""
        if self._drop(frozenset((here, there))) and there in self.open:
            self.open[there].tell_lost(here, reason)

    def peers_of(self, pnode: PNodeId) -> list[PNodeId]:
        """All PNodes that `pnode` has a link with."""
        return [next(iter(link - {pnode}), pnode) for link in self._links if pnode in link]

    def carry(self, here: PNodeId, there: PNodeId, delay_ms: float, arrive: Callable[[], None]) -> None:
        """Call `arrive` after the delay, unless the link breaks first."""
        under_way = self._links.setdefault(frozenset((here, there)), set())
        if self.delay_ms is None:
            arrive()
            return

        def land() -> None:
            under_way.discard(handle)
            arrive()

        handle = asyncio.get_running_loop().call_later(delay_ms / 1000, land)
        under_way.add(handle)

    def _drop(self, link: frozenset[PNodeId]) -> bool:
        under_way = self._links.pop(link, None)
        for handle in under_way or ():
            handle.cancel()
        return under_way is not None


class MemoryTransport:
    """One PNode's end."""

    def __init__(self, hub: MemoryHub, pnode: PNodeId) -> None:
        self._hub = hub
        self._pnode = pnode
        self._members: dict[PNodeId, Member] = {}
        self._receiver: Receiver | None = None
        self._bytes_sent = 0
        self._bytes_received = 0
        self._numbers = 0

    async def start(self, receiver: Receiver) -> str:
        """Join the hub; the address is only a name."""
        self._receiver = receiver
        self._hub.open[self._pnode] = self
        return f"memory:{self._pnode}"

    def set_members(self, members: Sequence[Member]) -> None:
        """Replace the membership; links with a PNode that is gone are ended, and that PNode is told."""
        self._members = {member.pnode: member for member in members}
        for peer in self._hub.peers_of(self._pnode):
            if peer not in self._members:
                self._hub.end(self._pnode, peer, f"{self._pnode} removed {peer} from the membership")

    async def send(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Send one message; the tensors may be reused when it returns. Raises PeerError."""
        if self._receiver is None:
            raise PeerError(f"{to} cannot be reached", why="this transport is not open")
        if to not in self._members:
            raise PeerError(f"{to} cannot be reached", why="it is not a member of this cluster")
        self._numbers += 1
        outgoing = encode(self._numbers, message, tensors)
        peer = self._reach(to)
        self._bytes_sent += wire_bytes(outgoing)
        delay_ms = 0.0 if self._hub.delay_ms is None else self._hub.delay_ms(self._pnode, to, message)
        if self._hub.delay_ms is not None:
            # On its way the message must not change with the sender's buffers.
            outgoing = Outgoing(
                outgoing.envelope, tuple(memoryview(bytes(part)) for part in outgoing.payload)
            )
        self._hub.carry(self._pnode, to, delay_ms, lambda: peer.arrive(self._pnode, outgoing))
        # So that a sender in a loop leaves the event loop to the others.
        await asyncio.sleep(0)

    def totals(self) -> LinkTotals:
        """Bytes that the frames would have had."""
        return LinkTotals(self._bytes_sent, self._bytes_received)

    async def close(self) -> None:
        """Leave the hub; the peers are told."""
        self._receiver = None
        if self._hub.open.get(self._pnode) is self:
            for peer in self._hub.peers_of(self._pnode):
                self._hub.end(self._pnode, peer, f"{self._pnode} closed its streams")
            del self._hub.open[self._pnode]

    def arrive(self, sender: PNodeId, incoming: Outgoing) -> None:
        """The hub brings a message."""
        receiver = self._receiver
        if receiver is None or sender not in self._members:
            return
        self._bytes_received += wire_bytes(incoming)
        opening = open_envelope(incoming.envelope)
        refusal = opening if isinstance(opening, Refusal) else self._check(receiver, sender, opening)
        if refusal is not None:
            self._answer(sender, Refused(reason=refusal.reason, tag=refusal.tag))
        elif isinstance(opening, Opening):
            tensors = allocate(opening.headers)
            filled = (array for array in tensors.values() if array.nbytes)
            for array, part in zip(filled, incoming.payload, strict=True):
                bytes_view(array)[:] = part
            receiver.deliver(sender, opening.message, tensors)

    def tell_lost(self, peer: PNodeId, reason: str) -> None:
        """The hub says that the link with `peer` broke."""
        if self._receiver is not None:
            self._receiver.lost(peer, reason)

    def is_open_to(self, peer: PNodeId) -> bool:
        """Whether `peer` may speak to this PNode."""
        return self._receiver is not None and peer in self._members

    def _reach(self, to: PNodeId) -> MemoryTransport:
        peer = self._hub.open.get(to)
        if peer is None or self._hub.is_cut(self._pnode, to):
            why = "the link is cut" if peer else "nothing listens there"
        elif not peer.is_open_to(self._pnode):
            why = f"{self._pnode} is not a member of this cluster"
        else:
            return peer
        self.tell_lost(to, why)
        raise PeerError(f"{to} cannot be reached", why=why)

    def _check(self, receiver: Receiver, sender: PNodeId, opening: Opening) -> Refusal | None:
        tag = tag_of(opening.message)
        if isinstance(opening.message, Hello):
            return Refusal("a greeting only opens a stream", tag)
        reason = receiver.check(sender, opening.message, opening.headers)
        return Refusal(reason, tag) if reason else None

    def _answer(self, sender: PNodeId, refused: Refused) -> None:
        peer = self._hub.open.get(sender)
        if peer is not None:
            delay = self._hub.delay_ms
            delay_ms = 0.0 if delay is None else delay(self._pnode, sender, refused)
            self._hub.carry(self._pnode, sender, delay_ms, lambda: peer.accept_refusal(self._pnode, refused))

    def accept_refusal(self, peer: PNodeId, refused: Refused) -> None:
        """The hub brings the answer to a message that `peer` did not accept."""
        if self._receiver is not None:
            self._receiver.deliver(peer, refused, {})


def wire_bytes(message: Outgoing) -> int:
    """Bytes of the message's frames, as `codec.cut` would cut them."""
    per_frame = MAX_DATA_BYTES - len(MORE)
    n_frames = -(-message.n_bytes // per_frame)
    return message.n_bytes + n_frames * (PREFIX_BYTES + len(START))
