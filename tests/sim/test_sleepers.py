"""Machines that stand still, with a clock that stops or goes on: they are fenced and come back.

Restated from public reports: nomad#2185, petals#433, slopus/happy#1817.
"""

from __future__ import annotations

import pytest

from dcnr_app.cluster.messages import AnyMessage, Failed
from dcnr_app.cluster.sleeping import LEASE_MS
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from tests.sim.begun import P1, P2, begun, committed, events


@pytest.mark.parametrize("clock_stops", [True, False])
@pytest.mark.parametrize("for_ms", [10_000.0, 120_000.0, 3_600_000.0])
def test_a_pnode_that_sleeps_is_replaced_and_does_nothing_stale_when_it_wakes(
    backend: Backend, for_ms: float, clock_stops: bool
) -> None:
    storm = begun(backend, slow=30.0, patience_ms=for_ms + 300_000.0)
    storm.run(until=committed(storm, 1))
    process = storm.workers[P2]
    storm.machines.sleep(P2, for_ms, clock_stops=clock_stops)
    storm.run(until=lambda: P2 not in storm.lead.state.members)
    fenced = storm.journal.newest_generation
    accepted: list[AnyMessage] = []

    def watch(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del to
        if sender == P2 and 0 < getattr(message, "generation", 0) <= fenced and process.is_running:
            accepted.append(message)
        return message

    storm.tamper = watch
    storm.finish()
    # What it says of an older generation changes nothing (checked at each message); it never goes on in it.
    assert all(getattr(message, "generation", 0) <= fenced for message in accepted)
    assert storm.journal.newest_generation > fenced


@pytest.mark.parametrize("seed", range(6))
def test_a_pnode_that_wakes_after_its_lease_stops_by_itself(backend: Backend, seed: int) -> None:
    """Nobody else noticed: the network is quick to forgive, the process is not."""
    storm = begun(backend, seed=seed, slow=30.0)
    storm.run(until=events(storm, 120 + 30 * seed))
    told: list[Failed] = []

    def watch(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del to
        if isinstance(message, Failed) and sender == message.peer == P1:
            told.append(message)
        return message

    storm.tamper = watch
    storm.machines.sleep(P1, LEASE_MS + 1.0, clock_stops=seed % 2 == 0)
    storm.finish()
    assert len(told) <= 1


@pytest.mark.parametrize("for_ms", [1_000.0, 30_000.0])
@pytest.mark.parametrize("clock_stops", [True, False])
def test_an_orchestrator_that_sleeps_goes_on_by_itself(
    backend: Backend, for_ms: float, clock_stops: bool
) -> None:
    storm = begun(backend, slow=30.0)
    storm.run(until=committed(storm, 2))
    generation = storm.journal.newest_generation
    storm.machines.stand_still(storm.lead, for_ms, clock_stops=clock_stops)
    storm.finish()
    assert storm.n_starts == 1
    assert (storm.journal.newest_generation == generation) == (for_ms < LEASE_MS)


def test_everybody_sleeps_at_once_as_when_a_lid_is_closed_on_all_of_it(backend: Backend) -> None:
    storm = begun(backend, slow=30.0)
    storm.run(until=committed(storm, 2))
    storm.machines.stand_still(storm.lead, 60_000.0, clock_stops=True)
    for pnode in storm.machines.pnodes:
        storm.machines.sleep(pnode, 60_000.0, clock_stops=True)
    storm.finish()


def test_clocks_that_differ_by_hours_change_nothing(backend: Backend) -> None:
    storm = begun(backend)
    for number, process in enumerate([*storm.workers.values(), storm.lead]):
        process.set_clock((-1) ** number * 3_600_000.0 * (number + 1))
    storm.finish()
    assert storm.journal.newest_generation == 1
