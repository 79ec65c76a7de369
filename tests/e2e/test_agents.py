"""Machines form a cluster, train together, and the session survives its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from dcnr_app.cluster.journal import read_decisions
from dcnr_app.errors import RefusedError
from dcnr_app.limits import Limits
from dcnr_app.settings import Home, save_limits
from dcnr_app.store.sqlite import SqliteStore
from dcnr_app.ui.local_api import SessionView, StartSession
from tests.e2e.agents import RunningAgent, all_listening, join_by_digits, running, session_over, until
from tests.e2e.place import Place

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

STEPS = 60


@pytest.fixture
def service() -> str:
    """A world of this test's own on the network."""
    return f"_d{os.urandom(4).hex()}._tcp.local."


def request(place: Place, **settings: Any) -> StartSession:
    """STEPS steps of the tiny network, as `place.demo` trains it, its middle pinned to the second PNode: the
    allocator would rightly keep a network so small on one machine. Where VNodes run changes no bit."""
    text = place.network.read_text()
    for name in ("norm_2", "up", "gelu", "down"):
        text = text.replace(f"{{name: {name}, ", f"{{name: {name}, pnode: 1, ")
    place.network.write_text(text)
    return StartSession(
        network=str(place.network), dataset="latest", settings={"steps": STEPS, "seed": 1, **settings}
    )


def losses(place: Place) -> list[float]:
    """The committed series of the only session."""
    ((session, _),) = place.commits().items()
    with closing(SqliteStore.open_reader(place.home)) as store:
        rows = read_decisions(store, session)
    return [rows[step].loss for step in sorted(rows)]


async def at_step(orchestrator: RunningAgent, step: int) -> SessionView:
    return await until(orchestrator.api.session, lambda s: s.step >= step)


def test_a_machine_is_found_and_joins_by_digits_and_a_session_trains_on_both(
    place: Place, undisturbed: dict[str, Any], tmp_path: Path, service: str
) -> None:
    async def test() -> None:
        async with (
            running(place.home, service, cluster="home") as first,
            running(Home(tmp_path / "second"), service) as second,
        ):
            started = time.monotonic()
            digits = await join_by_digits(first, second)
            assert len(digits) == 6
            await all_listening(first, 2)
            await first.api.start_session(request(place))
            await at_step(first, 1)
            assert time.monotonic() - started < 15.0
            done = await session_over(first)
            assert (done.status, done.error) == ("finished", "")
            machines = {pnode.rpartition("-")[0] for pnode in done.assignment.values()}
            assert {first.agent.machine.id, second.agent.machine.id} <= machines

    asyncio.run(test())
    assert losses(place) == undisturbed["losses"]


async def _kill_pnode(first: RunningAgent, second: RunningAgent) -> None:
    (victim,) = [p for p in await first.api.pnodes() if p.machine == second.agent.machine.id]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)


async def _kill_runner(first: RunningAgent, second: RunningAgent) -> None:
    del second
    (runner,) = [child for child in psutil.Process().children() if "session-process" in child.cmdline()]
    runner.kill()


async def _drain(first: RunningAgent, second: RunningAgent) -> None:
    first_plan = (await first.api.session()).assignment
    assert any(pnode.startswith(second.agent.machine.id) for pnode in first_plan.values())
    await first.api.drain(second.agent.machine.id)
    left = (await first.api.session()).assignment
    assert not any(pnode.startswith(second.agent.machine.id) for pnode in left.values())


async def _forget(first: RunningAgent, second: RunningAgent) -> None:
    await first.api.forget(second.agent.machine.id)
    gone = await until(second.api.status, lambda status: status.role == "none", 5.0)
    assert "removed" in " ".join(gone.notices)


@pytest.mark.parametrize("disturb", [_kill_pnode, _kill_runner, _forget])
def test_the_session_goes_on_by_itself_with_the_same_bits(
    place: Place,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    service: str,
    disturb: Callable[[RunningAgent, RunningAgent], Awaitable[None]],
) -> None:
    async def test() -> None:
        async with (
            running(place.home, service, cluster="ho/me") as first,
            running(Home(tmp_path / "second"), service) as second,
        ):
            await join_by_digits(first, second)
            await all_listening(first, 2)
            await first.api.start_session(request(place))
            await at_step(first, 15)
            await disturb(first, second)
            done = await session_over(first)
            assert (done.status, done.error) == ("finished", "")

    asyncio.run(test())
    assert losses(place) == undisturbed["losses"]


def test_a_session_goes_on_when_its_agent_starts_again(
    place: Place, undisturbed: dict[str, Any], tmp_path: Path, service: str
) -> None:
    async def test() -> None:
        async with running(Home(tmp_path / "second"), service) as second:
            async with running(place.home, service, cluster="home") as first:
                await join_by_digits(first, second)
                await all_listening(first, 2)
                await first.api.start_session(request(place))
                await at_step(first, 15)
            async with running(place.home, service) as first:
                done = await session_over(first) if (await at_step(first, STEPS)) else None
                assert done is not None
                assert (done.status, done.error) == ("finished", "")

    asyncio.run(test())
    assert losses(place) == undisturbed["losses"]


def test_joining_by_code_and_by_invite_and_leaving(tmp_path: Path, service: str) -> None:
    async def test() -> None:
        async with (
            running(Home(tmp_path / "first"), service, cluster="home") as first,
            running(Home(tmp_path / "second"), service) as second,
        ):
            code = await first.api.invite(with_code=True)
            await second.api.join(f"{code.host}:{code.port}", code.code)
            done = await until(second.api.joining, lambda j: j.step in ("joined", "failed"))
            assert done.step == "joined", done.error
            await until(first.api.machines, lambda found: len(found) == 2)
            with pytest.raises(RefusedError, match="already"):
                await second.api.join(f"{code.host}:{code.port}", code.code)
            await second.api.leave()
            assert (await second.api.status()).role == "none"
            link = (await first.api.invite(with_code=False)).link
            await second.api.join(link, "")
            done = await until(second.api.joining, lambda j: j.step in ("joined", "failed"))
            assert done.step == "joined", done.error
            found = await until(first.api.machines, lambda found: all(m.presence == "live" for m in found))
            assert len(found) == 2

    asyncio.run(test())


def test_a_machine_that_was_removed_while_it_was_away_is_told_how_to_go_on(
    tmp_path: Path, service: str
) -> None:
    async def test() -> None:
        second_home = Home(tmp_path / "second")
        async with running(Home(tmp_path / "first"), service, cluster="home") as first:
            async with running(second_home, service) as second:
                await join_by_digits(first, second)
                machine = second.agent.machine.id
            await first.api.forget(machine)
            assert [m.machine for m in await first.api.machines()] == [first.agent.machine.id]
            async with running(second_home, service) as second:
                status = await until(
                    second.api.status, lambda status: "not a member" in " ".join(status.notices)
                )
                assert "dcnr-app pnode leave" in " ".join(status.notices)
                await second.api.leave()
                await join_by_digits(first, second)
                found = await first.api.machines()
                assert sorted(m.machine for m in found) == sorted((machine, first.agent.machine.id))

    asyncio.run(test())


def test_when_the_orchestrator_leaves_the_cluster_is_none_and_both_can_start_anew(
    tmp_path: Path, service: str
) -> None:
    async def test() -> None:
        async with (
            running(Home(tmp_path / "first"), service, cluster="home") as first,
            running(Home(tmp_path / "second"), service) as second,
        ):
            await join_by_digits(first, second)
            await until(first.api.machines, lambda found: all(m.presence == "live" for m in found))
            await first.api.leave()
            assert (await first.api.status()).role == "none"
            await until(second.api.status, lambda status: status.role == "none")
            await second.api.start_cluster("lab")
            await until(first.api.neighbours, lambda heard: any(n.cluster_name == "lab" for n in heard))
            await join_by_digits(second, first)
            assert (await first.api.status()).cluster_name == "lab"

    asyncio.run(test())


def test_what_a_machines_owner_allows_is_shown_on_the_orchestrator(tmp_path: Path, service: str) -> None:
    async def test() -> None:
        second_home = Home(tmp_path / "second")
        second_home.ensure()
        save_limits(second_home, Limits(cores=1, hours="00:00-23:59"))
        async with (
            running(Home(tmp_path / "first"), service, cluster="home") as first,
            running(second_home, service) as second,
        ):
            await join_by_digits(first, second)
            found = await until(first.api.pnodes, lambda found: any(p.limits for p in found))
            assert {p.machine: p.limits for p in found} == {
                first.agent.machine.id: "",
                second.agent.machine.id: "1 core, 00:00-23:59",
            }

    asyncio.run(test())


def test_a_worker_that_restarts_five_times_is_one_machine_with_one_id(tmp_path: Path, service: str) -> None:
    async def test() -> None:
        second_home = Home(tmp_path / "second")
        async with running(Home(tmp_path / "first"), service, cluster="home") as first:
            async with running(second_home, service) as second:
                await join_by_digits(first, second)
                machine = second.agent.machine.id
            for _ in range(4):
                async with running(second_home, service) as second:
                    assert second.agent.machine.id == machine
                    await all_listening(first, 2)
                    assert len(await first.api.machines()) == 2
                    heard = [n.machine for n in await first.api.neighbours()]
                    assert heard.count(machine) <= 1
                await until(
                    first.api.machines, lambda found: sum(m.presence == "live" for m in found) == 1, 16.0
                )

    asyncio.run(test())
