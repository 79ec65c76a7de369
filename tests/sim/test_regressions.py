"""What drawn scenarios have found, each as the smallest scene that shows it."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.effects import Prepare
from dcnr_app.cluster.inputs import Lost
from dcnr_app.cluster.messages import Failed, Refused, Stop
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR
from tests.cluster.cores import sent
from tests.cluster.worker_bench import WorkerBench
from tests.sim.begun import P1, P2, P3, begun, both_ways, committed, events
from tests.sim.fuzz import Fault, cause
from tests.sim.network import Weather


def test_a_pnode_that_hung_once_does_not_make_the_watchdog_blind(backend: Backend) -> None:
    storm = begun(backend, n_pnodes=2, slow=10.0, stall_ms=5_000.0, patience_ms=60_000.0)
    for pnode in (P1, P2, P1):
        storm.run(until=committed(storm, len(storm.journal.rows) + 1))
        cause(storm, Fault(0, "stuck", (pnode,)))
    storm.finish()
    assert storm.lead.evicted == [P1, P2, P1]


@pytest.mark.parametrize("seed", range(8))
def test_a_pnode_that_lost_the_orchestrator_first_does_not_end_the_session(
    backend: Backend, seed: int
) -> None:
    storm = begun(backend, seed=seed, weather=Weather(late_ms=5.0, notice_ms=2_000.0))
    storm.run(until=events(storm, 90 + 20 * seed))
    storm.wires.break_at(storm.workers[P2], ORCHESTRATOR)
    assert storm.workers[P2].state.configure is None, "it waits for the orchestrator"
    storm.finish()
    assert not storm.lead.failures
    assert storm.n_starts == 1


def test_a_pnode_that_left_a_generation_refuses_older_ones() -> None:
    bench = WorkerBench(is_prepared=False)
    bench.tell(bench.configure(generation=3))
    bench.take(Lost(ORCHESTRATOR, "reset"))
    (refused,) = sent(bench.tell(bench.configure(generation=2)), Refused)
    assert refused.reason == "generation 2 is older than 3"
    assert bench.tell(bench.configure(generation=3)) == [], "its own is over too"
    assert [type(effect) for effect in bench.tell(bench.configure(generation=4))] == [Prepare]
    bench.tell(msgspec.structs.replace(Stop(**bench.ids), generation=4))
    other = bench.tell(bench.configure(generation=1, session="another"))
    assert [type(effect) for effect in other] == [Prepare], "another session has numbers of its own"


def test_a_pnode_that_was_lost_while_it_had_no_part_is_used_again(backend: Backend) -> None:
    """It was taken off the list without a word to its agent, which then never offered it again."""
    storm = begun(backend, n_pnodes=2, slow=1_000.0)
    storm.wires.cut(both_ways((P1, P2)))
    storm.run(until=lambda: bool(storm.lead.state.benched))
    (left_out,) = storm.lead.state.benched
    storm.run(until=lambda: left_out not in storm.lead.state.job.plan.pnodes)
    storm.wires.cut(both_ways((ORCHESTRATOR, left_out)))
    storm.run(until=lambda: left_out not in storm.lead.state.members)
    storm.wires.heal(both_ways((ORCHESTRATOR, left_out), (P1, P2)))
    storm.run(until=lambda: left_out in storm.lead.state.members or storm.is_done)
    assert left_out in storm.lead.state.members
    storm.finish()


@pytest.mark.parametrize("slow", [1.0, 100.0])
def test_two_pnodes_that_never_reach_each_other_are_not_planned_together(
    backend: Backend, slow: float
) -> None:
    """The one that was blamed used to be killed and to come back until the session gave up."""
    storm = begun(backend, slow=slow)
    storm.run(until=committed(storm, 1))
    storm.wires.cut(both_ways((P1, P2)))
    storm.finish()
    assert not storm.lead.evicted, "both are healthy"
    assert storm.n_starts == 1
    assert P3 in storm.lead.state.job.plan.pnodes
    assert not {P1, P2} <= set(storm.lead.state.job.plan.pnodes)


def test_a_report_about_a_pnode_that_nobody_knows_is_taken_as_the_reporters_own(backend: Backend) -> None:
    storm = begun(backend)
    storm.run(until=committed(storm, 1))
    liar = storm.workers[P1]
    for name in ("nobody", "", "nobody"):
        storm.run(until=lambda: storm.lead.state.stage == "training")
        ids = storm.lead.state.ids
        storm.lead.receive(P1, Failed(**ids, what="x", where="y", is_lost=True, peer=name), {})
    assert liar.is_running
    storm.finish()
