"""Sends messages to peers, each peer by its own tasks, so that a slow one delays no other. IO."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.cluster.transport import HostArray, PeerTransport
from dcnr_app.errors import PeerError
from dcnr_app.ids import PNodeId

MOST_BYTES: Final = 256 << 20
"""Tensors that may wait for one peer before whoever makes them should wait too."""
MOST_MESSAGES: Final = 1 << 16
"""A peer for which so many messages wait takes none: a step has far fewer."""


class _Item(NamedTuple):
    message: AnyMessage
    tensors: Mapping[str, HostArray]
    after: int
    """How many control messages were posted before it."""

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())


class _Lane:
    """What waits for one channel to one peer."""

    def __init__(self) -> None:
        self.line: deque[_Item] = deque()
        self.wake = asyncio.Event()


class _Peer:
    """Control overtakes bulk that was posted before it, but bulk never control, so that a Configure comes
    before the tensors that it announces."""

    def __init__(self) -> None:
        self.control = _Lane()
        self.bulk = _Lane()
        self.n_posted = 0  # control messages
        self.n_sent = 0
        self.n_bytes = 0
        self.n_losses = 0

    @property
    def n_waiting(self) -> int:
        return len(self.control.line) + len(self.bulk.line)

    def put(self, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        item = _Item(message, tensors, self.n_posted)
        if tensors:
            self.bulk.line.append(item)
            self.n_bytes += item.n_bytes
        else:
            self.control.line.append(item)
            self.n_posted += 1
        self.wake()

    def drop(self) -> None:
        """What was meant for a lost process is not for its successor."""
        self.control.line.clear()
        self.bulk.line.clear()
        self.n_bytes, self.n_sent = 0, self.n_posted
        self.n_losses += 1
        self.wake()

    def wake(self) -> None:
        self.control.wake.set()
        self.bulk.wake.set()


class Outbox:
    """Two lines and two tasks per peer, in the owner's TaskGroup.

    `post` never waits: it carries out the effect of a core. So its owner calls `room` before it makes more
    tensors: then a peer or link that is too slow stops what feeds it, and memory stays bounded. A peer's
    reader never waits for what the peer computes, so `room` comes.
    """

    def __init__(
        self,
        transport: PeerTransport,
        tasks: asyncio.TaskGroup,
        on_failure: Callable[[PNodeId, str], None],
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._transport = transport
        self._tasks = tasks
        self._on_failure = on_failure
        self._peers: dict[PNodeId, _Peer] = {}
        self._senders: list[asyncio.Task[None]] = []
        self._eased = asyncio.Event()
        self._most_bytes = most_bytes
        self._is_closed = False

    def post(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Queue a message; returns at once. After `flush` or `cancel` nothing is sent any more.

        A peer for which too many messages wait is reported as failed, by name, and they are dropped.
        """
        if self._is_closed:
            return
        if to not in self._peers:
            peer = self._peers[to] = _Peer()
            for lane in (peer.control, peer.bulk):
                self._senders.append(self._tasks.create_task(self._send_all(to, peer, lane)))
        peer = self._peers[to]
        peer.put(message, tensors)
        if peer.n_waiting > MOST_MESSAGES:
            n_waiting, n_bytes = peer.n_waiting, peer.n_bytes
            peer.drop()
            self._eased.set()
            self._on_failure(
                to, f"{to} takes nothing: {n_waiting} messages with {n_bytes} bytes of tensors wait for it"
            )

    async def room(self) -> None:
        """Wait while over `most_bytes` of tensors wait for one peer. A peer that takes nothing is lost within
        a minute (`grpc_options.STALL_S`), which ends the wait too."""
        while not self._is_closed and any(peer.n_bytes > self._most_bytes for peer in self._peers.values()):
            self._eased.clear()
            await self._eased.wait()

    async def _send_all(self, to: PNodeId, peer: _Peer, lane: _Lane) -> None:
        while True:
            lane.wake.clear()
            if not lane.line and self._is_closed:
                return
            if not lane.line or (lane is peer.bulk and lane.line[0].after > peer.n_sent):
                await lane.wake.wait()
                continue
            item, n_losses = lane.line.popleft(), peer.n_losses
            try:
                await self._transport.send(to, item.message, item.tensors)
            except PeerError as error:
                # The two lanes break together: the peer is lost once.
                if n_losses == peer.n_losses:
                    peer.drop()
                    self._on_failure(to, error.why or error.what)
            else:
                if n_losses == peer.n_losses:
                    self._count_out(peer, lane, item)
            self._eased.set()

    @staticmethod
    def _count_out(peer: _Peer, lane: _Lane, item: _Item) -> None:
        if lane is peer.bulk:
            peer.n_bytes -= item.n_bytes
        else:
            peer.n_sent += 1
            peer.bulk.wake.set()

    async def flush(self, timeout_s: float) -> None:
        """Send what is queued, then end; gives up after `timeout_s` seconds."""
        self._is_closed = True
        self._wake_all()
        if self._senders:
            await asyncio.wait(self._senders, timeout=timeout_s)
        self.cancel()

    def cancel(self) -> None:
        """End now; what is queued is not sent."""
        self._is_closed = True
        self._wake_all()
        for sender in self._senders:
            sender.cancel()

    def _wake_all(self) -> None:
        self._eased.set()
        for peer in self._peers.values():
            peer.wake()
