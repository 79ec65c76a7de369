"""The in-memory transport: the contract, and what only it offers (delays, cuts)."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import AnyMessage, Hop
from dcnr_app.cluster.transport import PeerTransport
from dcnr_app.errors import PeerError
from dcnr_app.ids import PNodeId
from tests.contracts.transport import A, B, C, Cluster, TransportContract, applied, hop, run


def memory_cluster(hub: MemoryHub, *pnodes: PNodeId) -> Cluster:
    def make(pnode: PNodeId) -> tuple[PeerTransport, str]:
        return MemoryTransport(hub, pnode), ""

    return Cluster(make, *pnodes)


class TestMemoryTransport(TransportContract):
    """The contract on one hub."""

    def cluster(self, *pnodes: PNodeId) -> Cluster:
        return memory_cluster(MemoryHub(), *pnodes)


class TestDelayedMemoryTransport(TransportContract):
    """The contract when every message is held back for the same time."""

    def cluster(self, *pnodes: PNodeId) -> Cluster:
        return memory_cluster(MemoryHub(lambda sender, to, message: 1.0), *pnodes)

    # Not promised here: what is held back was copied by the wire before the receiver could refuse it.
    test_refused_tensors_are_never_allocated = None  # type: ignore[assignment]


def request_delay_ms(sender: PNodeId, to: PNodeId, message: AnyMessage) -> float:
    """Hop 0 takes 40 ms, hop 5 takes 60, anything else nothing."""
    return {0: 40.0, 5: 60.0}.get(message.request, 0.0) if isinstance(message, Hop) else 0.0


def test_hop_that_is_held_back_delays_no_other() -> None:
    async def test() -> None:
        async with memory_cluster(MemoryHub(request_delay_ms), A, B) as cluster:
            for request in range(4):
                await cluster.transports[A].send(B, hop(request), {"x": np.ones(2, np.float32)})
            await cluster.boxes[B].until_messages(4)
            assert [message for _, message, _ in cluster.boxes[B].messages] == [
                hop(1),
                hop(2),
                hop(3),
                hop(0),
            ]

    run(test)


def test_cut_link_drops_what_is_under_way_tells_both_and_can_heal() -> None:
    async def test() -> None:
        hub = MemoryHub(request_delay_ms)
        async with memory_cluster(hub, A, B, C) as cluster:
            await cluster.transports[A].send(B, hop(0), {})
            hub.cut(A, B)
            assert [peer for peer, _ in cluster.boxes[A].losses] == [B]
            assert [peer for peer, _ in cluster.boxes[B].losses] == [A]
            with pytest.raises(PeerError, match="cannot be reached"):
                await cluster.transports[B].send(A, applied(1), {})
            await cluster.transports[A].send(C, applied(2), {})
            hub.heal(A, B)
            await cluster.transports[A].send(B, hop(5), {})
            await cluster.boxes[B].until_messages(1)
            # Hop 0 would have arrived before hop 5.
            assert [message for _, message, _ in cluster.boxes[B].messages] == [hop(5)]

    run(test)
