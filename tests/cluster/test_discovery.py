"""Discovery on loopback, with real multicast packets: who sees whom, and what strangers can do to it."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster import discovery as discovery_module
from dcnr_app.cluster.addresses import Interface
from dcnr_app.cluster.announcement import Announcement
from dcnr_app.cluster.discovery import Discovery, DiscoverySettings
from dcnr_app.cluster.interfaces import usable_interfaces
from dcnr_app.cluster.multicast import joinable
from dcnr_app.cluster.neighbours import ASK_MS, OFFLINE_MS
from dcnr_app.errors import UnreachableError, UserError
from tests.cluster.announced import Announced, ManualClock, announced, announcement, own_world
from tests.cluster.mdns_packets import (
    hear,
    heard_by_everybody,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="multicast on loopback needs a POSIX system")


def test_two_machines_see_each_other_within_three_seconds_with_all_that_was_announced() -> None:
    a = announcement("Studio", cluster="c-1", cluster_name="Home", role="worker", agent_port=4200)

    async def meet() -> float:
        started = time.monotonic()
        world = own_world()
        async with announced(world, a) as first, announced(world, announcement("b")) as second:
            (seen,) = await second.sees("Studio")
            (other,) = await first.sees("b")
            assert seen.announcement == first.discovery.own
            assert seen.announcement == Announcement(**{**_fields(a), "run": first.discovery.own.run})
            assert "127.0.0.1" in seen.addresses
            assert other.announcement == second.discovery.own
            assert first.discovery.silence() is None
        return time.monotonic() - started

    assert asyncio.run(meet()) < 3.0


def test_an_appearance_and_a_departure_are_told() -> None:
    async def come_and_go() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as watching:
            async with announced(world, announcement("b")):
                await watching.told()
                assert watching.state_of("b") == "live"
            await watching.told()
            assert watching.state_of("b") == "offline"

    asyncio.run(come_and_go())


def test_eight_machines_that_start_in_any_order_all_see_all() -> None:
    names = [f"m{i}" for i in range(8)]

    async def meet() -> None:
        world = own_world()
        async with AsyncExitStack() as stack:
            order = random.sample(names, len(names))
            machines = await asyncio.gather(
                *(stack.enter_async_context(announced(world, announcement(name))) for name in order)
            )
            for name, machine in zip(order, machines, strict=True):
                await machine.sees(*(other for other in names if other != name))

    asyncio.run(meet())


def test_a_machine_that_closes_is_offline_at_once() -> None:
    async def leave() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as staying:
            async with announced(world, announcement("b")):
                await staying.sees("b")
            await staying.until(lambda seen: [n.state for n in seen] == ["offline"])

    asyncio.run(leave())


def test_a_silent_machine_is_asked_and_stays_while_it_answers() -> None:
    async def stay() -> None:
        world, clock = own_world(), ManualClock()
        async with announced(world, announcement("a"), clock=clock) as asking:
            async with announced(world, announcement("b")):
                await asking.sees("b")
                for _ in range(3):  # each time it is asked, and its answer counts from then
                    clock.now_ms += ASK_MS + 1_000.0
                    await asking.until(lambda seen: seen[0].silent_ms == 0.0)
            clock.now_ms += OFFLINE_MS
            assert asking.state_of("b") == "offline"

    asyncio.run(stay())


def test_a_machine_that_changes_is_seen_as_it_is_now() -> None:
    async def change() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as watching, announced(world, announcement("b")) as b:
            await watching.sees("b")
            await b.discovery.update(announcement("b", role="worker", cluster="c-1", agent_port=4999))
            await watching.until(lambda seen: seen[0].announcement.agent_port == 4999)
            assert watching.discovery.snapshot()[0].announcement.role == "worker"

    asyncio.run(change())


def test_restarts_of_one_machine_leave_one_entry_with_the_same_id() -> None:
    async def restart() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as watching:
            ids = set()
            for _ in range(3):
                async with announced(world, announcement("b")):
                    (seen,) = await watching.sees("b")
                    ids.add(seen.machine)
            assert len(ids) == 1

    asyncio.run(restart())


def test_two_machines_with_one_key_are_both_shown_and_flagged_and_see_each_other() -> None:
    async def clone() -> None:
        world, clock = own_world(), ManualClock()
        async with announced(world, announcement("a"), clock=clock) as watching:
            original = announcement("b", key="one")
            copy = announcement("copy of b", key="one")
            async with announced(world, original) as first, announced(world, copy) as second:
                for _ in range(4):  # both are asked, and both answer
                    await watching.until(lambda seen: {n.silent_ms for n in seen} == {0.0})
                    clock.now_ms += ASK_MS + 1_000.0
                seen = await watching.until(lambda seen: len(seen) == 2)
                assert [n.is_duplicate for n in seen] == [True, True]
                assert {n.announcement.run for n in seen} == {
                    first.discovery.own.run,
                    second.discovery.own.run,
                }
                assert len({n.machine for n in seen}) == 1

    asyncio.run(clone())


def test_an_announcement_is_repeated_for_those_who_missed_it() -> None:
    async def repeat() -> None:
        world, clock = own_world(), ManualClock()
        async with announced(world, announcement("a"), clock=clock) as a:
            with heard_by_everybody() as listening:
                for _ in range(4):  # the first three may be those of the start
                    clock.now_ms += 60_000.0
                    await asyncio.wait_for(hear(listening, a.discovery.own.instance), 5.0)

    asyncio.run(repeat())


def test_an_address_that_failed_is_asked_for_again_and_comes_back_when_it_is_named() -> None:
    async def fail() -> None:
        world = own_world()
        async with announced(world, announcement("a")) as a, announced(world, announcement("b")):
            (seen,) = await a.sees("b")
            a.discovery.failed_dial(seen.machine, seen.addresses[0])
            assert seen.addresses[0] not in a.discovery.snapshot()[0].addresses
            await a.until(lambda now: seen.addresses[0] in now[0].addresses)

    asyncio.run(fail())


def test_a_machine_that_introduced_itself_otherwise_is_a_neighbour_too() -> None:
    async def introduce() -> None:
        async with announced(own_world(), announcement("a")) as a:
            a.discovery.tell(announcement("b", run="01"), ["127.0.0.5"])
            (seen,) = await a.sees("b")
            assert seen.addresses == ("127.0.0.5",)

    asyncio.run(introduce())


def test_alone_the_machine_hears_itself_and_says_after_a_while_that_nobody_is_there() -> None:
    async def wait() -> None:
        clock = ManualClock()
        async with announced(own_world(), announcement("a"), clock=clock) as a:
            assert a.discovery.silence() is None
            clock.now_ms += 8_000.0
            await a.until(lambda seen: _cause(a) == "nobody")

    asyncio.run(wait())


def test_a_port_that_another_program_holds_is_told_and_used_once_it_is_free() -> None:
    async def wait() -> None:
        world, clock = own_world(), ManualClock()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
            try:
                holder.bind(("", 5353))
            except OSError:
                pytest.skip("another program holds UDP 5353 already")
            async with announced(world, announcement("a"), clock=clock) as a:
                assert _cause(a) == "no-socket"
                holder.close()
                clock.now_ms += 6_000.0
                async with announced(world, announcement("b")) as b:
                    await b.sees("a")
                    await a.sees("b")

    asyncio.run(wait())


def test_closing_leaves_no_file_and_no_task() -> None:
    async def cycle() -> None:
        async with announced(own_world(), announcement("a")):
            pass

    asyncio.run(cycle())
    before = _n_files()
    asyncio.run(cycle())
    assert _n_files() == before


def test_one_interface_that_is_gone_leaves_the_others_usable() -> None:
    good, failures = joinable(["203.0.113.77", "127.0.0.1"])
    assert good == ("127.0.0.1",)
    assert list(failures) == ["203.0.113.77"]


def test_an_interface_that_breaks_between_listing_and_use_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start() -> None:
        world = own_world()
        async with announced(world, announcement("b")):
            with _interface_that_is_gone(monkeypatch):
                async with announced(world, announcement("a")) as a:
                    await a.sees("b")

    asyncio.run(start())


@pytest.mark.parametrize("address", ["0.0.0.0", "nonsense", "224.0.0.251", ""])  # noqa: S104
def test_an_advertised_address_that_nobody_can_dial_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="advertised"):
        DiscoverySettings(advertise=(address,))


def test_advertised_addresses_replace_those_of_the_interfaces() -> None:
    async def advertise() -> None:
        world, changed = own_world(), asyncio.Event()
        settings = DiscoverySettings(is_loopback=True, service_type=world, advertise=("203.0.113.5",))
        async with announced(world, announcement("a")) as a, asyncio.TaskGroup() as tasks:
            hidden = Discovery(settings, tasks, SystemClock(), changed.set, lambda machine: False)
            await hidden.start(announcement("b"))
            (seen,) = await a.sees("b")
            assert seen.addresses == ("203.0.113.5",)
            await hidden.close()

    asyncio.run(advertise())


def test_before_the_start_there_is_nothing_to_see() -> None:
    async def look() -> None:
        async with asyncio.TaskGroup() as tasks:
            idle = Discovery(DiscoverySettings(), tasks, SystemClock(), lambda: None, lambda machine: False)
            assert idle.snapshot() == ()
            with pytest.raises(UnreachableError):
                assert idle.own
            await idle.close()

    asyncio.run(look())


@contextmanager
def _interface_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system lists an interface whose address is no longer there."""
    gone = Interface(name="lo", index=1, kind="loopback", networks=("203.0.113.77/24",))

    def with_ghost(*, with_loopback: bool = False) -> tuple[Interface, ...]:
        return (gone, *usable_interfaces(with_loopback=with_loopback))

    with monkeypatch.context() as patch:
        patch.setattr(discovery_module, "usable_interfaces", with_ghost)
        yield


def _fields(said: Announcement) -> dict[str, object]:
    return {name: getattr(said, name) for name in said.__struct_fields__}


def _cause(machine: Announced) -> str:
    found = machine.discovery.silence()
    return found.cause if found is not None else ""


def _n_files() -> int:
    listing = Path("/proc/self/fd")
    if not listing.exists():
        pytest.skip("this system does not list a process's open files")
    return len(list(listing.iterdir()))
