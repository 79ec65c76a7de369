"""The orchestrator ends at any moment and is started again; or somebody starts a second one.

Restated from public reports: exo#2094, ray#46814, prime-diloco#98, etcd#14143, pytorch#67742.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dcnr_app.cluster.effects import AppendCommit, BeginGeneration, WriteCheckpoint
from dcnr_app.cluster.inputs import Outcome
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR
from tests.sim.begun import P1, begun, both_ways, committed, events, stage
from tests.sim.lead import SimOrchestrator
from tests.sim.network import SILENCE_MS
from tests.sim.storm import Storm


@pytest.mark.parametrize("n_events", range(5, 470, 31))
def test_an_orchestrator_that_ends_at_any_moment_loses_nothing(backend: Backend, n_events: int) -> None:
    storm = begun(backend, seed=n_events, disk_ms=5.0)
    storm.run(until=events(storm, n_events))
    storm.crash_orchestrator(down_ms=500.0)
    storm.finish()
    ledger = Counter(sample for _, sample, _ in storm.journal.ledger)
    assert set(ledger.values()) == {1}, "every sample is counted once"
    assert len(ledger) == storm.settings.steps * storm.settings.batch


@pytest.mark.parametrize("down_ms", [500.0, 5_000.0, 300_000.0])
def test_pnodes_wait_for_the_orchestrator_and_go_on_in_a_later_generation(
    backend: Backend, down_ms: float
) -> None:
    storm = begun(backend, slow=10.0, patience_ms=600_000.0)
    storm.run(until=committed(storm, 2))
    processes, generation = dict(storm.workers), storm.journal.newest_generation
    storm.crash_orchestrator(down_ms)
    storm.run(until=lambda: all(p.state.configure is None for p in processes.values()))
    assert not storm.orchestrator, "all have left before it is back: nobody computes for nobody"
    storm.run(until=lambda: storm.orchestrator is not None)
    assert storm.journal.newest_generation == generation + 1
    storm.finish()
    assert storm.workers == processes, "the same processes went on"


def test_a_machine_that_fails_for_a_second_and_again_and_again_gets_there(backend: Backend) -> None:
    storm = begun(backend, disk_ms=2.0)
    for _ in range(6):
        storm.run(until=events(storm, 70))
        storm.crash_orchestrator(down_ms=200.0)
        storm.run(until=lambda: storm.orchestrator is not None or storm.is_done)
    storm.finish()


def crash_when(storm: Storm, kind: type, *, is_durable: bool) -> None:
    """Let the orchestrator die while it writes its second effect of a kind: just before or just after."""
    seen: list[object] = []
    write = SimOrchestrator.outcome

    def outcome(lead: SimOrchestrator, effect: object) -> Outcome | None:
        seen.extend([effect] if isinstance(effect, kind) else [])
        is_time = isinstance(effect, kind) and len(seen) == 2
        if is_time and not is_durable:
            storm.crash_orchestrator(200.0)
            return None
        made = write(lead, effect)  # type: ignore[arg-type]
        if is_time:
            storm.crash_orchestrator(200.0)
        return made

    storm.write = outcome


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("kind", [AppendCommit, WriteCheckpoint, BeginGeneration])
def test_a_write_that_is_cut_off_is_either_kept_or_made_again(
    backend: Backend, kind: type, is_durable: bool
) -> None:
    storm = begun(backend, disk_ms=5.0, restart_ms=10.0)
    crash_when(storm, kind, is_durable=is_durable)
    if kind is BeginGeneration:
        for n_rows in (1, 2):
            storm.run(until=committed(storm, n_rows))
            storm.machines.crash(P1)
            storm.run(until=stage(storm, "recovering"))
    storm.finish()
    assert storm.n_starts == 2


def test_pnodes_that_cannot_be_reached_when_the_orchestrator_is_back_are_used_later(backend: Backend) -> None:
    storm = begun(backend, slow=10.0)
    storm.run(until=committed(storm, 1))
    ways = both_ways(*((ORCHESTRATOR, pnode) for pnode in storm.workers))
    storm.crash_orchestrator(100.0)
    storm.wires.cut(ways)
    storm.after(3 * SILENCE_MS, lambda: storm.wires.heal(ways))
    storm.finish()


# ---- two at once


@pytest.mark.parametrize("n_events", range(20, 420, 50))
def test_of_two_orchestrators_one_goes_on_and_the_other_says_why_not(backend: Backend, n_events: int) -> None:
    storm = begun(backend, seed=n_events, disk_ms=5.0)
    storm.run(until=events(storm, n_events))
    first = storm.lead
    storm.start_rival()
    second = storm.lead
    assert second is not first
    storm.run(until=lambda: storm.is_done)
    assert storm.lead is second
    assert storm.n_starts == 2
    storm.finish()
    if not first.trained:
        (failure,) = first.failures
        assert "another orchestrator" in failure.what or "is older than" in failure.what
