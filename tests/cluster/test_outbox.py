"""The outbox: order, a lane of its own for control, bounded memory, one loss per loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import numpy as np
import pytest

from dcnr_app.cluster import outbox as outbox_module
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import AnyMessage, Hop
from dcnr_app.cluster.outbox import Outbox
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.ids import PNodeId
from tests.chaos_proxy import ChaosProxy
from tests.contracts.transport import A, B, Box, C, applied, hop, run

MIB = 1 << 20
MOST_BYTES = 4 * MIB


class GatedTransport(MemoryTransport):
    """Messages with tensors pass when the gate of their receiver is open."""

    def __init__(self, hub: MemoryHub, pnode: PNodeId) -> None:
        super().__init__(hub, pnode)
        self.gates = {peer: asyncio.Event() for peer in (B, C)}

    async def send(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        if tensors:
            await self.gates[to].wait()
        await super().send(to, message, tensors)


class Office:
    """A's outbox in front of B and C."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.hub = MemoryHub()
        self.transport = GatedTransport(self.hub, A)
        self.boxes = {B: Box(), C: Box()}
        self.failures: list[tuple[PNodeId, str]] = []
        self.outbox = Outbox(
            self.transport, tasks, lambda peer, why: self.failures.append((peer, why)), most_bytes=MOST_BYTES
        )

    async def open(self) -> None:
        members = [Member(pnode=name, address="", fingerprint="", role="worker") for name in (A, B, C)]
        await self.transport.start(Box())
        self.transport.set_members(members)
        for peer, box in self.boxes.items():
            other = MemoryTransport(self.hub, peer)
            await other.start(box)
            other.set_members(members)

    def heard(self, peer: PNodeId) -> list[AnyMessage]:
        return [message for _, message, _ in self.boxes[peer].messages]


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    async with asyncio.TaskGroup() as tasks:
        opened = Office(tasks)
        await opened.open()
        yield opened
        opened.outbox.cancel()


def mebibytes(n: int) -> dict[str, HostArray]:
    """Costs no memory until it is touched."""
    return {"x": np.zeros(n * MIB // 4, np.int32)}


def small() -> dict[str, HostArray]:
    return {"x": np.zeros(3, np.float32)}


async def soon(event_loop_turns: int = 50) -> None:
    """Let every task run that can."""
    for _ in range(event_loop_turns):
        await asyncio.sleep(0)


def test_each_channel_keeps_its_order() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.transport.gates[B].set()
            for number in range(20):
                scene.outbox.post(B, hop(number), small())
                scene.outbox.post(B, applied(number), {})
            await scene.boxes[B].until_messages(40)
            heard = scene.heard(B)
            assert [m for m in heard if isinstance(m, Hop)] == [hop(number) for number in range(20)]
            assert [m for m in heard if not isinstance(m, Hop)] == [applied(number) for number in range(20)]

    run(test)


def test_control_does_not_wait_behind_bulk() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.outbox.post(B, hop(1), small())
            scene.outbox.post(B, applied(1), {})
            await scene.boxes[B].until_messages(1)
            assert scene.heard(B) == [applied(1)]
            scene.transport.gates[B].set()
            await scene.boxes[B].until_messages(2)

    run(test)


def test_bulk_waits_for_the_control_messages_before_it() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.transport.gates[B].set()
            for number in range(10):
                scene.outbox.post(B, applied(number), {})
            scene.outbox.post(B, hop(1), small())
            await scene.boxes[B].until_messages(11)
            assert scene.heard(B) == [*(applied(number) for number in range(10)), hop(1)]

    run(test)


def test_slow_peer_holds_up_no_other() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.transport.gates[C].set()
            scene.outbox.post(B, hop(1), small())
            scene.outbox.post(C, hop(2), small())
            await scene.boxes[C].until_messages(1)
            assert not scene.heard(B)

    run(test)


def test_producer_waits_for_room_until_the_slow_consumer_has_taken_enough() -> None:
    async def test() -> None:
        async with office() as scene:
            made = 0

            async def produce() -> None:
                nonlocal made
                for _ in range(20):
                    await scene.outbox.room()
                    scene.outbox.post(B, hop(made), mebibytes(1))
                    made += 1

            producing = asyncio.create_task(produce())
            await soon()
            assert made == MOST_BYTES // MIB + 1
            scene.transport.gates[B].set()
            await producing
            await scene.boxes[B].until_messages(20)

    run(test)


def test_room_is_there_at_once_when_little_waits() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.outbox.post(B, hop(1), mebibytes(4))
            async with asyncio.timeout(1):
                await scene.outbox.room()

    run(test)


def test_room_comes_when_the_slow_peer_is_lost() -> None:
    async def test() -> None:
        async with office() as scene:
            for number in range(6):
                scene.outbox.post(B, hop(number), mebibytes(1))
            waiting = asyncio.create_task(scene.outbox.room())
            await soon()
            assert not waiting.done()
            scene.hub.cut(A, B)
            scene.transport.gates[B].set()
            await waiting
            assert [peer for peer, _ in scene.failures] == [B]

    run(test)


def test_peer_is_lost_once_and_its_successor_gets_nothing_of_what_waited() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.hub.cut(A, B)
            for number in range(5):
                scene.outbox.post(B, hop(number), small())
                scene.outbox.post(B, applied(number), {})
            scene.transport.gates[B].set()
            await soon()
            assert scene.failures == [(B, "the link is cut")]
            scene.hub.heal(A, B)
            scene.outbox.post(B, hop(99), small())
            await scene.boxes[B].until_messages(1)
            await soon()
            assert scene.heard(B) == [hop(99)]

    run(test)


def test_peer_for_which_too_many_messages_wait_is_given_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MOST_MESSAGES", 10)

    async def test() -> None:
        async with office() as scene:
            for number in range(12):
                scene.outbox.post(B, hop(number), small())
            (failure,) = scene.failures
            assert failure == (B, "b-0 takes nothing: 11 messages with 132 bytes of tensors wait for it")

    run(test)


def test_flush_sends_what_waits_and_then_nothing_more() -> None:
    async def test() -> None:
        async with office() as scene:
            for number in range(5):
                scene.outbox.post(B, hop(number), small())
                scene.outbox.post(B, applied(number), {})
            scene.transport.gates[B].set()
            await scene.outbox.flush(5.0)
            assert len(scene.heard(B)) == 10
            scene.outbox.post(B, applied(9), {})
            await soon()
            assert len(scene.heard(B)) == 10

    run(test)


def test_flush_gives_up_on_a_peer_that_takes_nothing() -> None:
    async def test() -> None:
        async with office() as scene:
            scene.outbox.post(B, hop(1), small())
            await scene.outbox.flush(0.05)
            assert not scene.heard(B)

    run(test)


@asynccontextmanager
async def behind_proxy() -> AsyncIterator[tuple[PeerTransport, Box, ChaosProxy]]:
    """A's gRPC transport with B behind a proxy, and B's box."""
    authority = ClusterAuthority.create("home")
    mine, theirs = (authority.issue(pnode, "home", "worker") for pnode in (A, B))
    first, second, box = GrpcTransport(A, mine, "home"), GrpcTransport(B, theirs, "home"), Box()
    address = await second.start(box)
    await first.start(Box())
    async with ChaosProxy(address) as proxy:
        for transport, pnode, own, at in (
            (first, B, theirs, proxy.address),
            (second, A, mine, "127.0.0.1:1"),
        ):
            print_ = fingerprint(own.cert_pem)
            transport.set_members([Member(pnode=pnode, address=at, fingerprint=print_, role="worker")])
        try:
            yield first, box, proxy
        finally:
            await first.close()
            await second.close()


def test_control_passes_a_bulk_connection_whose_reader_has_stopped() -> None:
    """The peer's bulk connection takes nothing, as with a full link: its window closes, control goes on."""

    async def test() -> None:
        async with behind_proxy() as (transport, box, proxy), asyncio.TaskGroup() as tasks:
            failures: list[str] = []
            outbox = Outbox(transport, tasks, lambda _, why: failures.append(why), most_bytes=4 * MIB)
            outbox.post(B, applied(0), {})
            await box.until_messages(1)
            outbox.post(B, hop(0), small())
            await box.until_messages(2)
            bulk = proxy.connections[1].lanes["up"]
            bulk.is_held = True
            for number in range(1, 9):
                outbox.post(B, hop(number), mebibytes(16))
            begin = asyncio.get_running_loop().time()
            for step in range(1, 101):
                outbox.post(B, applied(step), {})
                await box.until_messages(2 + step)
            assert asyncio.get_running_loop().time() - begin < 2.0
            assert not any(message == hop(1) for _, message, _ in box.messages)
            waiting = asyncio.create_task(outbox.room())
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            assert not done
            bulk.is_held = False
            proxy.changed()
            await waiting
            await box.until_messages(110)
            outbox.cancel()
            assert not failures

    run(test)
