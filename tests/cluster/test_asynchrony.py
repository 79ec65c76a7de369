"""Hops overlap: many microbatches are under way at once, and a slow hop delays none but its own."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import pytest

from dcnr_app.cluster.messages import AnyMessage, Hop, TensorHeader
from dcnr_app.cluster.pnode import PNodeDriver
from dcnr_app.cluster.transport import HostArray
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.cluster.local_run import LIMIT_S, SETTINGS, LocalRun

HOP_MS = 50.0
N_STEPS = 4


def hop_delay(sender: PNodeId, receiver: PNodeId, message: AnyMessage) -> float:
    """50 ms for every message between two PNodes that are not the orchestrator."""
    del message
    return 0.0 if ORCHESTRATOR in (sender, receiver) else HOP_MS


def trained(in_flight: int) -> tuple[LocalRun, float]:
    """A finished run with this many microbatches under way at most, and its median step in s."""
    settings = msgspec.structs.replace(
        SETTINGS, steps=N_STEPS, in_flight=in_flight, validate_every=N_STEPS, checkpoint_every=N_STEPS
    )
    run = LocalRun(settings=settings, delay_ms=hop_delay)
    asyncio.run(run.run())
    times = [at for at, _ in run.steps]
    return run, statistics.median(b - a for a, b in pairwise(times))


def test_a_step_over_slow_hops_takes_at_most_half_of_what_it_takes_one_by_one() -> None:
    many, many_s = trained(in_flight=0)
    single, single_s = trained(in_flight=1)
    assert many.settings.microbatches == 8
    # 8 microbatches cross twice each, one after the other; shared parameters cross too
    assert single_s >= 16 * HOP_MS / 1000
    assert many_s <= 0.5 * single_s
    assert max(r.max_in_flight for _, p in many.steps for r in p.reports.values()) >= 2
    assert max(r.max_in_flight for _, p in single.steps for r in p.reports.values()) == 1
    assert many.journal.decisions == single.journal.decisions


class Holding:
    """Stands before a driver: keeps one microbatch's forward hop of step 1 and books all other hops."""

    def __init__(self, driver: PNodeDriver, held: int) -> None:
        self._driver = driver
        self._held = held
        self._kept: tuple[PNodeId, AnyMessage, Mapping[str, HostArray]] | None = None
        self._changed = asyncio.Event()
        self.came: set[tuple[str, int]] = set()

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        return self._driver.check(sender, message, headers)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        if isinstance(message, Hop) and message.phase == "train" and message.step == 1:
            self._changed.set()
            if (message.direction, message.microbatch) == ("F", self._held):
                self._kept = (sender, message, tensors)
                return
            self.came.add((message.direction, message.microbatch))
        self._driver.deliver(sender, message, tensors)

    def lost(self, peer: PNodeId, reason: str) -> None:
        self._driver.lost(peer, reason)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, looked at again after each hop."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    @property
    def has_kept(self) -> bool:
        """Whether the hop to hold back has come."""
        return self._kept is not None

    def let_go(self) -> None:
        """Hand the kept hop on."""
        assert self._kept is not None
        self._driver.deliver(*self._kept)


@pytest.mark.parametrize("held", [1, 3, 7])
def test_a_hop_held_back_for_one_microbatch_delays_no_hop_of_another(held: int) -> None:
    run = LocalRun(settings=msgspec.structs.replace(SETTINGS, steps=1, in_flight=8))
    first, last = run.plan.pnodes
    holding, booking = Holding(run.drivers[last], held), Holding(run.drivers[first], -1)
    run.receivers = {first: booking, last: holding}
    # The first PNode's list alone decides what it sends before it needs the held microbatch back.
    tasks = run.plan.tasks[first]
    own_back = next(i for i, task in enumerate(tasks) if (task.direction, task.microbatch) == ("B", held))
    forward = {("F", task.microbatch) for task in tasks[:own_back] if task.direction == "F"} - {("F", held)}
    backward = {("B", microbatch) for microbatch in range(held)}
    assert {("F", microbatch) for microbatch in range(held)} <= forward
    assert held == 7 or ("F", held + 1) in forward

    async def test() -> None:
        async with asyncio.TaskGroup() as group:
            session = group.create_task(run.run())
            async with asyncio.timeout(LIMIT_S):
                await holding.until(lambda: holding.has_kept and forward <= holding.came)
                await booking.until(lambda: backward <= booking.came)
            assert not run.steps
            holding.let_go()
            await session

    asyncio.run(test())
    undisturbed = LocalRun(settings=run.settings)
    asyncio.run(undisturbed.run())
    assert run.journal.decisions == undisturbed.journal.decisions
