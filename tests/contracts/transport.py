"""What every PeerTransport must do. A subclass says how to make a cluster of one kind."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dcnr_app.cluster.messages import AnyMessage, Applied, Hop, LoadState, Refused, TensorHeader
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.errors import InvariantError, PeerError
from dcnr_app.ids import PNodeId, SessionId

A, B, C = PNodeId("a-0"), PNodeId("b-0"), PNodeId("c-0")
SESSION = SessionId("s")
LIMIT_S = 20.0


def applied(step: int) -> Applied:
    """A small control message that carries a number."""
    return Applied(session=SESSION, generation=1, step=step)


def hop(request: int, slot: str = "x") -> Hop:
    """A message that carries tensors."""
    return Hop(
        session=SESSION,
        generation=1,
        request=request,
        phase="train",
        step=0,
        microbatch=0,
        direction="F",
        segment=0,
        slot=slot,
    )


def same_bits(one: HostArray, other: HostArray) -> bool:
    """Equal dtype, shape and bytes: NaN payloads and signed zeros included."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class Box:
    """A Receiver that keeps what it is given and lets a test wait for it."""

    def __init__(self) -> None:
        self.messages: list[tuple[PNodeId, AnyMessage, Mapping[str, HostArray]]] = []
        self.losses: list[tuple[PNodeId, str]] = []
        self.checked: list[AnyMessage] = []
        self.reason: Callable[[AnyMessage], str] = lambda message: ""
        self._changed = asyncio.Event()

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        self.checked.append(message)
        return self.reason(message)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        self.messages.append((sender, message, tensors))
        self._changed.set()

    def lost(self, peer: PNodeId, reason: str) -> None:
        self.losses.append((peer, reason))
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, looked at again after each event."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def until_messages(self, n: int) -> None:
        await self.until(lambda: len(self.messages) >= n)

    async def until_lost(self, n: int = 1) -> None:
        await self.until(lambda: len(self.losses) >= n)


class Cluster:
    """Started transports that know each other; `make` builds one and tells its certificate's fingerprint."""

    def __init__(self, make: Callable[[PNodeId], tuple[PeerTransport, str]], *pnodes: PNodeId) -> None:
        self._make = make
        self._pnodes = pnodes
        self.transports: dict[PNodeId, PeerTransport] = {}
        self.boxes: dict[PNodeId, Box] = {}
        self.members: dict[PNodeId, Member] = {}

    async def open(self, pnode: PNodeId) -> None:
        """Start, or start again, one PNode and tell all."""
        transport, fingerprint = self._make(pnode)
        self.transports[pnode], self.boxes[pnode] = transport, Box()
        address = await transport.start(self.boxes[pnode])
        self.members[pnode] = Member(pnode=pnode, address=address, fingerprint=fingerprint, role="worker")
        self.tell(*self.members)

    def tell(self, *pnodes: PNodeId) -> None:
        """Give all transports the membership of these PNodes."""
        for transport in self.transports.values():
            transport.set_members([self.members[pnode] for pnode in pnodes])

    async def __aenter__(self) -> Cluster:
        for pnode in self._pnodes:
            await self.open(pnode)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for transport in self.transports.values():
            await transport.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine within the time limit."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(limited())


SHAPES = [(), (0,), (3, 0, 2), (1,), (2, 3, 4), ((1 << 19) - 1,), (1 << 19,), ((1 << 19) + 1,), (3, 400_000)]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]


def random_bits(shape: tuple[int, ...], dtype: str) -> HostArray:
    """Any bit pattern, NaNs with payload included."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return np.frombuffer(np.random.default_rng(1).bytes(n_bytes), dtype=kind).reshape(shape)


class TransportContract:
    """Subclass it as a test class and give `cluster`."""

    def cluster(self, *pnodes: PNodeId) -> Cluster:
        raise NotImplementedError

    def test_control_messages_arrive_in_order(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                for step in range(200):
                    await cluster.transports[A].send(B, applied(step), {})
                await cluster.boxes[B].until_messages(200)
                assert [message for _, message, _ in cluster.boxes[B].messages] == [
                    applied(step) for step in range(200)
                ]
                assert {sender for sender, _, _ in cluster.boxes[B].messages} == {A}

        run(test)

    def test_bulk_messages_of_different_sizes_arrive_in_the_order_of_the_sends(self) -> None:
        async def test() -> None:
            sizes = [3_000_000, 1, 700_000, 0, 5, 1_200_000, 2]
            async with self.cluster(A, B) as cluster:
                async with asyncio.TaskGroup() as group:
                    for request, size in enumerate(sizes):
                        tensors = {"x": np.full(size, request, np.float32)}
                        group.create_task(cluster.transports[A].send(B, hop(request), tensors))
                await cluster.boxes[B].until_messages(len(sizes))
                for request, (_, message, tensors) in enumerate(cluster.boxes[B].messages):
                    assert message == hop(request)
                    assert same_bits(tensors["x"], np.full(sizes[request], request, np.float32))

        run(test)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_tensors_of_all_shapes_arrive_bit_for_bit(self, dtype: str) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                for request, shape in enumerate(SHAPES):
                    await cluster.transports[A].send(B, hop(request), {"x": random_bits(shape, dtype)})
                await cluster.boxes[B].until_messages(len(SHAPES))
                for shape, (_, _, tensors) in zip(SHAPES, cluster.boxes[B].messages, strict=True):
                    assert same_bits(tensors["x"], random_bits(shape, dtype)), shape

        run(test)

    def test_many_tensors_of_one_message_keep_their_names(self) -> None:
        async def test() -> None:
            sent = {f"t{i}": random_bits((i % 7, 3), DTYPES[i % 6]) for i in range(300)}
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(
                    B, LoadState(session=SESSION, generation=1, parameter="p"), sent
                )
                await cluster.boxes[B].until_messages(1)
                received = cluster.boxes[B].messages[0][2]
                assert list(received) == list(sent)
                assert all(same_bits(received[name], sent[name]) for name in sent)

        run(test)

    def test_strided_and_big_endian_tensors_arrive_with_their_values(self) -> None:
        async def test() -> None:
            matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(
                    B, hop(1), {"x": matrix.T, "y": matrix[:, ::2], "z": matrix.astype(">f4")}
                )
                await cluster.boxes[B].until_messages(1)
                received = cluster.boxes[B].messages[0][2]
                assert received["x"].tolist() == matrix.T.tolist()
                assert received["y"].tolist() == matrix[:, ::2].tolist()
                assert received["z"].tolist() == matrix.tolist()

        run(test)

    def test_sender_may_reuse_its_tensor_when_send_returns(self) -> None:
        async def test() -> None:
            buffer = np.zeros(600_000, np.float32)
            async with self.cluster(A, B) as cluster:
                for value in range(5):
                    buffer[:] = value
                    await cluster.transports[A].send(B, hop(value), {"x": buffer})
                buffer[:] = -1
                await cluster.boxes[B].until_messages(5)
                arrived = [set(tensors["x"].tolist()) for _, _, tensors in cluster.boxes[B].messages]
                assert arrived == [{float(value)} for value in range(5)]

        run(test)

    def test_received_tensors_are_writable_and_belong_to_the_receiver(self) -> None:
        async def test() -> None:
            sent = np.ones(4, np.float32)
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(B, hop(1), {"x": sent})
                await cluster.boxes[B].until_messages(1)
                cluster.boxes[B].messages[0][2]["x"][:] = 7
                assert sent.tolist() == [1, 1, 1, 1]

        run(test)

    def test_many_senders_to_and_from_all_peers_lose_nothing(self) -> None:
        async def test() -> None:
            pairs = [(one, other) for one in (A, B, C) for other in (A, B, C) if one != other]
            async with self.cluster(A, B, C) as cluster:

                async def talk(one: PNodeId, other: PNodeId, request: int) -> None:
                    tensors = {"x": np.full(200_000, request, np.int32)} if request % 2 else {}
                    await cluster.transports[one].send(other, hop(request), tensors)

                async with asyncio.TaskGroup() as group:
                    for request in range(12):
                        for one, other in pairs:
                            group.create_task(talk(one, other, request))
                for box in cluster.boxes.values():
                    await box.until_messages(24)
                    requests = sorted(message.request for _, message, _ in box.messages)  # type: ignore[union-attr]
                    assert requests == sorted([*range(12), *range(12)])
                    assert not box.losses

        run(test)

    def test_refusal_by_check_reaches_the_sender_and_the_link_goes_on(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                cluster.boxes[B].reason = lambda message: "generation 1 is over" if message == hop(1) else ""
                await cluster.transports[A].send(B, hop(1), {"x": np.ones(900_000, np.float32)})
                await cluster.transports[A].send(B, hop(2), {"x": np.ones(3, np.float32)})
                await cluster.boxes[A].until_messages(1)
                await cluster.boxes[B].until_messages(1)
                assert cluster.boxes[A].messages == [
                    (B, Refused(reason="generation 1 is over", tag="hop.v1"), {})
                ]
                assert [message for _, message, _ in cluster.boxes[B].messages] == [hop(2)]
                assert not cluster.boxes[A].losses
                assert not cluster.boxes[B].losses

        run(test)

    def test_refused_tensors_are_never_allocated(self) -> None:
        async def test() -> None:
            n_bytes = 64 << 20
            tensor = np.zeros(n_bytes // 4, np.float32)
            async with self.cluster(A, B) as cluster:
                cluster.boxes[B].reason = lambda message: "no"
                await cluster.transports[A].send(B, hop(0), {"x": tensor[:1]})
                await cluster.boxes[A].until_messages(1)
                tracemalloc.start()
                try:
                    await cluster.transports[A].send(B, hop(1), {"x": tensor})
                    await cluster.boxes[A].until_messages(2)
                    _, peak_bytes = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                assert peak_bytes < n_bytes // 4

        run(test)

    def test_unsendable_tensors_are_refused_at_the_sender(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                for tensors in ({"x": np.zeros(2, np.complex64)}, {"x": np.zeros((1,) * 9, np.float32)}):
                    with pytest.raises(InvariantError, match="cannot be sent"):
                        await cluster.transports[A].send(B, hop(1), tensors)
                await cluster.transports[A].send(B, hop(2), {"x": np.zeros(2, np.float32)})
                await cluster.boxes[B].until_messages(1)

        run(test)

    def test_cancelled_send_does_not_break_the_link(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                sends = [
                    asyncio.create_task(
                        cluster.transports[A].send(B, hop(request), {"x": np.ones(4 << 20, np.float32)})
                    )
                    for request in range(3)
                ]
                await sends[0]
                sends[1].cancel()
                await asyncio.wait(sends)
                await cluster.transports[A].send(B, hop(9), {"x": np.ones(2, np.float32)})
                await cluster.boxes[B].until(lambda: cluster.boxes[B].messages[-1][1] == hop(9))
                arrived = [message for _, message, _ in cluster.boxes[B].messages]
                assert [message for message in arrived if message != hop(1)] == [hop(0), hop(2), hop(9)]
                assert not cluster.boxes[A].losses

        run(test)

    def test_closing_one_end_is_told_once_at_the_other(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                for one, other in ((A, B), (B, A)):
                    await cluster.transports[one].send(other, applied(0), {})
                    await cluster.transports[one].send(other, hop(0), {"x": np.ones(2, np.float32)})
                await cluster.boxes[A].until_messages(2)
                async with asyncio.timeout(1):
                    await cluster.transports[B].close()
                    await cluster.boxes[A].until_lost()
                with pytest.raises(PeerError):
                    await cluster.transports[A].send(B, applied(1), {})
                await cluster.boxes[A].until_lost(2)
                assert [peer for peer, _ in cluster.boxes[A].losses] == [B, B]
                assert all(reason for _, reason in cluster.boxes[A].losses)
                assert not cluster.boxes[B].losses

        run(test)

    def test_sending_to_a_peer_that_never_listened_raises_and_tells_the_loss(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                await cluster.transports[B].close()
                with pytest.raises(PeerError):
                    await cluster.transports[A].send(B, applied(1), {})
                await cluster.boxes[A].until_lost()
                assert len(cluster.boxes[A].losses) == 1

        run(test)

    def test_restarted_peer_is_reached_again(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(B, applied(0), {})
                await cluster.transports[B].close()
                await cluster.boxes[A].until_lost()
                await cluster.open(B)
                await cluster.transports[A].send(B, applied(1), {})
                await cluster.transports[B].send(A, applied(2), {})
                await cluster.boxes[B].until_messages(1)
                await cluster.boxes[A].until_messages(1)
                assert len(cluster.boxes[A].losses) == 1

        run(test)

    def test_removed_member_loses_its_streams_within_a_second(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B, C) as cluster:
                for one, other in ((A, B), (B, A), (A, C)):
                    await cluster.transports[one].send(other, applied(0), {})
                await cluster.boxes[B].until_messages(1)
                await cluster.boxes[A].until_messages(1)
                async with asyncio.timeout(1):
                    cluster.transports[A].set_members([cluster.members[A], cluster.members[C]])
                    await cluster.boxes[B].until_lost()
                with pytest.raises(PeerError, match="not a member"):
                    await cluster.transports[A].send(B, applied(1), {})
                with pytest.raises(PeerError, match="not a member"):
                    await cluster.transports[B].send(A, applied(1), {})
                await cluster.transports[A].send(C, applied(2), {})
                await cluster.boxes[C].until_messages(2)
                assert not cluster.boxes[A].losses
                assert not cluster.boxes[C].losses
                assert len(cluster.boxes[A].messages) == 1

        run(test)

    def test_bytes_are_counted_equally_at_both_ends(self) -> None:
        async def test() -> None:
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(B, hop(1), {"x": np.ones(1 << 20, np.float32)})
                await cluster.boxes[B].until_messages(1)
                sent = cluster.transports[A].totals().bytes_sent
                assert 4 << 20 < sent < (4 << 20) + 4_000
                assert cluster.transports[B].totals().bytes_received == sent

        run(test)

    def test_close_leaves_no_task_and_can_be_repeated(self) -> None:
        async def test() -> None:
            before = asyncio.all_tasks()
            async with self.cluster(A, B) as cluster:
                await cluster.transports[A].send(B, hop(1), {"x": np.ones(9, np.float32)})
                await cluster.transports[B].send(A, applied(1), {})
                await cluster.boxes[A].until_messages(1)
            await cluster.transports[A].close()
            assert asyncio.all_tasks() == before
            with pytest.raises(PeerError, match="reached"):
                await cluster.transports[A].send(B, applied(1), {})

        run(test)
