"""A PNode that is lost, comes back, joins or leaves: the session goes on by itself, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.inputs import LeaveRequested, Tick
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from tests.sim.samples import SETTINGS, job_for, plan_for, tiny
from tests.sim.world import Chaos, World, train

TICK_MS = 50.0


def recovering_world(backend: Backend, *, n_pnodes: int, seed: int, grace_ms: float = 0.0) -> World:
    """A session that may go on without a PNode."""
    world = World(tiny(), SETTINGS, backend, chaos=Chaos(seed, 5.0, 0.2))
    job = job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, n_pnodes))
    recovery = Recovery(graph=tiny(), grace_ms=grace_ms)
    world.start(msgspec.structs.replace(job, recovery=recovery))

    def tick() -> None:
        if not world.lead.trained and not world.lead.failures:
            world.lead.take(Tick())
            world.after(TICK_MS, tick)

    world.after(TICK_MS, tick)
    return world


def after_events(n_events: int) -> Callable[[], bool]:
    """True from the n-th call on."""
    left = [n_events]

    def is_time() -> bool:
        left[0] -= 1
        return left[0] < 0

    return is_time


def finish(world: World) -> None:
    """Run to the end and check it."""
    world.run()
    assert not world.lead.failures, world.lead.failures
    assert world.lead.trained, world.lead.state.stage
    world.check_rest()
    result = world.result()
    world.end()
    assert len(result.decisions) == SETTINGS.steps


@pytest.mark.parametrize("seed", range(40))
def test_a_pnode_lost_at_any_moment_changes_no_bit(backend: Backend, seed: int) -> None:
    expected = train(World(tiny(), SETTINGS, backend))
    world = recovering_world(backend, n_pnodes=3, seed=seed)
    world.run(until=after_events(23 * seed))
    if not world.lead.trained:
        world.lose(PNodeId(f"p{1 + seed % 3}"))
    finish(world)
    assert world.result() == expected


@pytest.mark.parametrize("seed", range(20))
def test_all_pnodes_lost_one_after_the_other_and_back_changes_no_bit(backend: Backend, seed: int) -> None:
    expected = train(World(tiny(), SETTINGS, backend))
    world = recovering_world(backend, n_pnodes=2, seed=seed, grace_ms=100.0)
    for lost in ("p1", "p2", "p1"):
        world.run(until=after_events(60 + 17 * seed))
        if world.lead.trained or PNodeId(lost) not in world.workers:
            continue
        world.lose(PNodeId(lost))
        world.after(80.0 + 10 * seed, lambda lost=lost: world.revive(PNodeId(lost)))
    finish(world)
    assert world.result() == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_pnode_that_leaves_hands_over_first_and_nothing_is_replayed(backend: Backend, seed: int) -> None:
    expected = train(World(tiny(), SETTINGS, backend))
    world = recovering_world(backend, n_pnodes=2, seed=seed)
    world.lead.state.planned_ms = -1e9  # a plan that has stood long enough
    world.run(until=after_events(30 * seed))
    world.lead.take(LeaveRequested(PNodeId("p1")))
    finish(world)
    assert world.lead.drained == ["p1"]
    assert all(not progress.is_replay for progress in world.lead.progress)
    assert world.result() == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_pnode_that_joins_gets_its_share_at_a_step_boundary(backend: Backend, seed: int) -> None:
    expected = train(World(tiny(), SETTINGS, backend))
    world = recovering_world(backend, n_pnodes=1, seed=seed)
    world.lead.state.planned_ms = -1e9
    world.run(until=after_events(20 + 10 * seed))
    world.revive(PNodeId("p2"))
    finish(world)
    assert "p2" in world.lead.state.job.plan.pnodes
    assert all(not progress.is_replay for progress in world.lead.progress)
    assert world.result() == expected
