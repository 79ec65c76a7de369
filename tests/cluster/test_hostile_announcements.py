"""What strangers on the network can do to discovery, with packets made by hand: nothing that lasts."""

from __future__ import annotations

import asyncio
import sys

import psutil
import pytest

from dcnr_app.cluster.announcement import write_txt
from dcnr_app.cluster.neighbours import MAX_SERVICES
from tests.cluster.announced import announced, announcement, own_world
from tests.cluster.mdns_packets import crowd_of, records_of, send_all

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="multicast on loopback needs a POSIX system")


def test_a_stranger_who_says_goodbye_for_a_connected_machine_changes_nothing() -> None:
    async def say() -> None:
        world, b = own_world(), announcement("b")
        async with (
            announced(world, announcement("a"), is_connected=lambda machine: machine == b.machine) as a,
            announced(world, b) as other,
            announced(world, announcement("c")),
        ):
            await a.sees("b", "c")
            send_all([records_of(world, other.discovery.own, ("127.0.0.1",), ttl_s=0)])
            send_all([records_of(world, announcement("d", run="01"), ("127.0.0.1",))])  # heard after it
            await a.sees("b", "c", "d")

    asyncio.run(say())


def test_a_stranger_who_says_goodbye_for_a_live_machine_is_contradicted_by_it() -> None:
    async def say() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as a, announced(world, announcement("b")) as b:
            await a.sees("b")
            send_all([records_of(world, b.discovery.own, ("127.0.0.1",), ttl_s=0)])
            await a.until(lambda seen: seen[0].state == "offline")
            await a.sees("b")

    asyncio.run(say())


def test_a_flood_of_made_up_machines_is_capped_and_drives_out_nobody() -> None:
    async def flood() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as a, announced(world, announcement("b")):
            await a.sees("b")
            for i in range(2 * MAX_SERVICES):
                send_all([records_of(world, announcement(f"fake {i}", run="01"), ("127.0.0.9",))])
                await asyncio.sleep(0)  # so that it is read and not dropped by the system
            seen = await a.until(lambda seen: len(seen) >= MAX_SERVICES)
            assert len(seen) == MAX_SERVICES
            assert a.state_of("b") == "live"

    asyncio.run(flood())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_made_up_machines_cost_less_than_twenty_megabytes() -> None:
    async def flood() -> int:
        world, process = own_world(), psutil.Process()
        async with announced(world, announcement("a")) as a, announced(world, announcement("b")):
            await a.sees("b")
            before = process.memory_info().rss
            for i in range(100_000):
                send_all([records_of(world, announcement(f"fake {i}", run="01"), ("127.0.0.9",))])
                await asyncio.sleep(0)
            assert a.state_of("b") == "live"
            return process.memory_info().rss - before

    assert asyncio.run(flood()) < 20_000_000


def test_a_cache_that_strangers_filled_hides_nobody() -> None:
    async def crowd() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as a:
            for first in range(0, 12_000, 40):  # the library keeps 10,000 records
                send_all([crowd_of("_other._tcp.local.", 40, first)])
                await asyncio.sleep(0)
            async with announced(world, announcement("b")):
                (seen,) = await a.sees("b")
                assert "127.0.0.1" in seen.addresses

    asyncio.run(crowd())


def test_malformed_announcements_are_passed_over_and_the_next_one_is_heard() -> None:
    async def babble() -> None:
        world = own_world()
        good = announcement("good", run="01")
        async with announced(world, announcement("a")) as a:
            txt = write_txt(good)
            lies = [
                {},
                {b"v": b"1"},
                {**txt, b"port": b"0"},
                {**txt, b"id": b"../../../../etc"},
                {**txt, b"fp": b"0" * 64},
                {**txt, b"run": b"99"},  # speaks of another instance than the record's name
                {**txt, **{f"junk{i}".encode(): b"x" * 240 for i in range(5)}},
            ]
            send_all(records_of(world, good, ("127.0.0.1",), txt=lie) for lie in lies)
            send_all([b"", b"\x00", b"\xff" * 200, b"\x00\x00\x84\x00" + b"\x00\x01" * 2000])
            send_all([records_of(world, announcement("lo", run="02"), ("224.0.0.1", "0.0.0.0"))])  # noqa: S104
            send_all([records_of(world, good, ("127.0.0.1",))])
            await a.sees("good", "lo")
            undialled = next(n for n in a.discovery.snapshot() if n.announcement.name == "lo")
            assert undialled.addresses == ()

    asyncio.run(babble())
