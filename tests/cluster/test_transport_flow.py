"""Flow over real streams: sizes at HTTP/2's windows, bursts of tiny messages, both ways at once, early heads.

Each is a fault that another HTTP/2 stack had: a byte of window that was kept back, tiny frames taken for an
attack, a body that was collected before anybody saw it, two peers that both write and never read.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from dcnr_app.cluster.codec import encode, frames
from dcnr_app.cluster.identity import ClusterAuthority
from dcnr_app.cluster.messages import Hop
from tests.cluster.test_hostile_peers import Scene, member_stream
from tests.cluster.test_transport_grpc import CLUSTER, grpc_cluster
from tests.contracts.transport import A, B, Cluster, applied, hop, run, same_bits


def cluster() -> Cluster:
    return grpc_cluster(ClusterAuthority.create(CLUSTER), A, B)[0]


@pytest.mark.parametrize("window", [16_384, 65_535, 1 << 20, 4 << 20])
def test_messages_of_every_size_around_a_window_arrive(window: int) -> None:
    async def test() -> None:
        async with cluster() as pair:
            overhead = encode(1, hop(0, ""), {}).n_bytes + 80
            sizes = [window - overhead + extra for extra in range(-20, 120, 1 if window < 1 << 18 else 9)]
            for number, size in enumerate(sizes):
                tensor = np.full(max(size // 4, 1), number, np.int32)
                await pair.transports[A].send(B, hop(number, "s" * (size % 4)), {"x": tensor})
            await pair.boxes[B].until_messages(len(sizes))
            for number, (_, message, tensors) in enumerate(pair.boxes[B].messages):
                assert isinstance(message, Hop)
                assert message.request == number
                assert set(tensors["x"].tolist()) == {number}

    run(test)


def test_burst_of_tiny_messages_is_no_attack() -> None:
    async def test() -> None:
        async with cluster() as pair:
            for _ in range(5):
                for step in range(1_000):
                    await pair.transports[A].send(B, applied(step), {})
                await pair.boxes[B].until_messages(1_000)
                assert [m for _, m, _ in pair.boxes[B].messages] == [applied(n) for n in range(1_000)]
                pair.boxes[B].messages.clear()
            assert not pair.boxes[A].losses

    run(test)


def test_two_thousand_messages_of_random_size_arrive_once_each() -> None:
    async def test() -> None:
        draw = np.random.default_rng(3)
        sizes = [int(draw.integers(0, 40_000)) for _ in range(2_000)]
        async with cluster() as pair:

            async def send_all() -> None:
                for number, size in enumerate(sizes):
                    await pair.transports[A].send(B, hop(number), {"x": np.full(size, number, np.int32)})

            sending = asyncio.create_task(send_all())
            await pair.boxes[B].until_messages(len(sizes))
            await sending
            for number, (_, message, tensors) in enumerate(pair.boxes[B].messages):
                assert message == hop(number)
                assert same_bits(tensors["x"], np.full(sizes[number], number, np.int32))
            assert len(pair.boxes[B].messages) == len(sizes)

    run(test)


def test_both_sides_send_more_than_all_windows_at_once_and_nobody_waits_for_ever() -> None:
    async def test() -> None:
        async with cluster() as pair:
            tensor = np.ones(6 << 20, np.float32)
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                for one, other in ((A, B), (B, A)):
                    for number in range(3):
                        tasks.create_task(pair.transports[one].send(other, hop(number), {"x": tensor}))
            for box in pair.boxes.values():
                await box.until_messages(3)

    run(test)


def test_head_of_a_message_is_seen_before_its_last_frame_is_sent() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene, "bulk") as stream:
            first, *rest = frames(encode(1, hop(1), {"x": np.ones(1 << 20, np.float32)}))
            await stream.put(first)
            async with asyncio.timeout(5):
                while not scene.box.checked:
                    await asyncio.sleep(0.001)
            assert not scene.box.messages
            for data in rest:
                await stream.put(data)
            await scene.box.until_messages(1)

    run(test)
