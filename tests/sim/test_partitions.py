"""Networks that fall apart: liveness needs a round trip, and what is healthy is not ended.

Restated from public reports: petals#91, ray#28562, dask#6148, exo#603.
"""

from __future__ import annotations

import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR
from tests.sim.begun import P1, P2, P3, at, begun, both_ways, committed
from tests.sim.network import SILENCE_MS
from tests.sim.samples import with_settings


def test_a_short_cut_changes_nothing(backend: Backend) -> None:
    storm = begun(backend, slow=30.0)
    storm.run(until=committed(storm, 2))
    ways = both_ways((ORCHESTRATOR, P2), (P1, P2))
    storm.wires.cut(ways)
    storm.after(1_000.0, lambda: storm.wires.heal(ways))
    storm.finish()
    assert storm.journal.newest_generation == 1, "nobody was given up"


@pytest.mark.parametrize("cut_ms", [10_000.0, 600_000.0])
def test_a_pnode_that_is_cut_off_is_replaced_and_used_again_after_the_cut(
    backend: Backend, cut_ms: float
) -> None:
    storm = begun(backend, slow=1_000.0, patience_ms=3_000_000.0)
    storm.run(until=committed(storm, 1))
    process, cut_at_ms = storm.workers[P2], storm.now_ms
    ways = both_ways((ORCHESTRATOR, P2), (P1, P2), (P3, P2))
    storm.wires.cut(ways)
    storm.run(until=lambda: P2 not in storm.lead.state.members)
    assert storm.now_ms - cut_at_ms <= SILENCE_MS + 50.0
    storm.run(until=lambda: P2 not in storm.lead.state.job.plan.pnodes)
    storm.run(until=at(storm, cut_at_ms + 2 * SILENCE_MS + 100.0))
    assert process.state.configure is None, "it has fenced itself"
    storm.run(until=at(storm, cut_at_ms + cut_ms))
    storm.wires.heal(ways)
    storm.run(until=lambda: P2 in storm.lead.state.members or storm.is_done)
    if not storm.is_done:
        assert storm.workers[P2] is not process, "what was given up ends before it comes back"
        assert not process.is_running
    storm.finish()


@pytest.mark.parametrize("to_orchestrator", [True, False])
def test_a_pnode_that_is_heard_but_does_not_hear_is_as_good_as_gone(
    backend: Backend, to_orchestrator: bool
) -> None:
    storm = begun(backend, slow=100.0)
    storm.run(until=committed(storm, 1))
    began_ms = storm.now_ms
    storm.wires.cut([(P2, ORCHESTRATOR) if to_orchestrator else (ORCHESTRATOR, P2)])
    storm.run(until=lambda: P2 not in storm.lead.state.members)
    assert storm.now_ms - began_ms <= 2 * SILENCE_MS
    storm.finish()
    assert P2 not in storm.lead.state.job.plan.pnodes


def test_a_cut_between_two_pnodes_ends_neither(backend: Backend) -> None:
    storm = begun(backend, slow=100.0)
    storm.run(until=committed(storm, 1))
    processes = dict(storm.workers)
    storm.wires.cut([(P1, P2)])
    storm.finish()
    assert storm.workers == processes
    assert all(process.is_running for process in processes.values())
    assert not storm.lead.evicted


def test_a_link_that_works_again_is_used_again(backend: Backend) -> None:
    storm = begun(backend, slow=1_000.0, patience_ms=2_000_000.0)
    storm.run(until=committed(storm, 1))
    storm.wires.cut(both_ways((P1, P2)))
    storm.run(until=lambda: bool(storm.lead.state.benched))
    storm.wires.heal(both_ways((P1, P2)))
    storm.finish()
    tried = [plan.reason for plan in storm.lead.plans if "tried again" in plan.reason]
    assert len(tried) == 1
    assert set(storm.lead.state.job.plan.pnodes) == {P1, P2, P3}


@pytest.mark.parametrize("slow", [10.0, 1_000.0])
def test_a_pnode_that_comes_and_goes_causes_no_storm_of_moves(backend: Backend, slow: float) -> None:
    """Ten seconds there, ten seconds away, for five minutes: it gets work three times in a minute at most."""
    settings = with_settings(steps=int(6_000 / slow) // 2 + 10, batch=1, microbatches=1, checkpoint_every=5)
    storm = begun(backend, settings=settings, slow=slow, patience_ms=2_000_000.0)
    storm.run(until=committed(storm, 1))
    ways = both_ways((ORCHESTRATOR, P3), (P1, P3), (P2, P3))

    def flap(is_on: bool) -> None:
        (storm.wires.heal if is_on else storm.wires.cut)(ways)
        if storm.now_ms < 300_000.0:
            storm.after(10_000.0, lambda: flap(not is_on))

    flap(is_on=False)
    planned_ms: list[float] = []
    while not storm.is_done:
        n_plans = len(storm.lead.plans)
        storm.run(until=lambda n_plans=n_plans: storm.is_done or len(storm.lead.plans) > n_plans)
        planned_ms.append(storm.now_ms)
    del planned_ms[-1]  # that was the end
    assert 2 <= len(planned_ms) <= 15, "three a minute, those in which it goes included"
    for first_ms in planned_ms:
        assert len([ms for ms in planned_ms if first_ms <= ms < first_ms + 60_000.0]) <= 4
    assert storm.n_starts == 1, "nobody had to start it again"
    storm.finish()


def test_a_silent_pnode_expires_by_the_orchestrators_own_clock(backend: Backend) -> None:
    """No reset ever comes: a blackhole for good."""
    storm = begun(backend, slow=10.0)
    storm.run(until=committed(storm, 2))
    storm.wires.cut(both_ways((ORCHESTRATOR, P1), (P2, P1), (P3, P1)))
    storm.finish()
    assert set(storm.lead.state.job.plan.pnodes) == {P2, P3}
