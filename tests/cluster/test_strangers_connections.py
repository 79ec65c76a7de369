"""Connections of strangers at the peer port: how many there may be, and what they do to members."""

from __future__ import annotations

import asyncio

import pytest

from dcnr_app.cluster import grpc_options
from tests import hostile
from tests.cluster.test_hostile_peers import Scene, member_stream
from tests.contracts.transport import A, applied, run


def door_of(scene: Scene) -> hostile.Door:
    return hostile.Door(A, scene.address, scene.member)


def test_connections_over_the_limit_are_closed_at_once_and_members_streams_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_options, "MAX_CONNECTIONS", 10)

    async def test() -> None:
        async with Scene() as scene, member_stream(scene) as stream:
            async with hostile.half_open(door_of(scene), 20) as readers:
                held = [asyncio.create_task(hostile.how_long_held(reader, 1.0)) for reader in readers]
                await asyncio.wait(held)
                assert sum(each.result() < 0.5 for each in held) == 11
                await stream.write(applied(1))
                await scene.box.until_messages(1)
            assert not scene.box.losses

    run(test)


def test_member_gets_in_while_five_hundred_handshakes_are_half_open() -> None:
    async def test() -> None:
        async with Scene() as scene, hostile.half_open(door_of(scene), 500) as readers:
            assert len(readers) == 500
            async with asyncio.timeout(2), member_stream(scene) as stream:
                await stream.write(applied(1))
                await scene.box.until_messages(1)

    run(test)


FLOODS = {
    "PING": (hostile.pings, 2_000),
    "SETTINGS": (hostile.settings_frames, 2_000),
    "rapid reset": (hostile.rapid_resets, 1_000),
    "made-you-reset": (hostile.made_resets, 1_000),
    "CONTINUATION": (hostile.continuations, 500),
    "header list": (hostile.header_list, 100_000),
    "many streams": (hostile.many_streams, 500),
    "unread body": (hostile.unread_body, 1_000_000),
    "zero window": (hostile.zero_window, 100),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_of_a_member_reaches_no_receiver_and_disturbs_no_stream(flood: str) -> None:
    async def test() -> None:
        attack, size = FLOODS[flood]
        async with Scene() as scene, member_stream(scene) as stream:
            await attack(door_of(scene), size)
            await stream.write(applied(1))
            await scene.box.until_messages(1)
            assert [message for _, message, _ in scene.box.messages] == [applied(1)]
            assert not scene.box.losses

    run(test)
