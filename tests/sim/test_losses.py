"""PNodes that go at the worst moment.

Restated from public reports: nousnet#21, prime-diloco#156, hivemind#455, hivemind#504, petals#587, petals#91,
torchft#309, torchtitan#4663, torchtitan#775.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dcnr_app.cluster.coordinator_steps import MIN_STAY_MS
from dcnr_app.cluster.effects import ApplyDecision, CaptureState, CollectSites, Measure, StoreParameter
from dcnr_app.cluster.inputs import LeaveRequested
from dcnr_app.cluster.messages import AnyMessage, LoadState, TrainRequest
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.sim.begun import P1, P2, P3, SIX, begun, committed, events, stage
from tests.sim.fuzz import Fault, cause
from tests.sim.network import SILENCE_MS
from tests.sim.samples import with_settings
from tests.sim.storm import Storm


@pytest.mark.parametrize("pnode", [P1, P2, P3])
@pytest.mark.parametrize("n_events", [55, 130, 210, 330])
def test_no_sample_is_lost_or_counted_twice_when_a_pnode_goes(
    backend: Backend, pnode: PNodeId, n_events: int
) -> None:
    storm = begun(backend, seed=n_events)
    storm.run(until=events(storm, n_events))
    storm.machines.crash(pnode)
    storm.finish()
    ledger = Counter(sample for _, sample, _ in storm.journal.ledger)
    assert set(ledger.values()) == {1}
    assert len(ledger) == SIX.steps * SIX.batch
    reasons = [plan.reason for plan in storm.lead.plans]
    assert len([reason for reason in reasons if "lost" in reason]) == 1
    assert len([reason for reason in reasons if "joined" in reason]) == len(reasons) - 1 <= 1


@pytest.mark.parametrize("second", [P1, P2, P3])
@pytest.mark.parametrize("moment", ["recovering", "configuring", "loading", "batching", "training"])
def test_a_second_pnode_may_go_before_the_first_is_made_up_for(
    backend: Backend, moment: str, second: PNodeId
) -> None:
    storm = begun(backend, restart_ms=30.0)
    storm.run(until=committed(storm, 2))
    storm.machines.crash(P1)
    storm.run(until=stage(storm, "recovering"))
    storm.run(until=stage(storm, moment))
    storm.machines.crash(second)
    storm.finish()


def test_a_machine_that_comes_back_has_its_part_and_its_state_at_the_first_try(backend: Backend) -> None:
    storm = begun(backend, restart_ms=50.0, grace_ms=5_000.0)
    storm.run(until=committed(storm, 3))
    loads: list[str] = []

    def watch(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del sender
        if to == P2 and isinstance(message, LoadState):
            loads.append(message.parameter)
        return message

    storm.tamper = watch
    storm.machines.crash(P2)
    storm.finish()
    assert [plan.plan.pnodes for plan in storm.lead.plans] == [(P1, P2, P3)]
    assert len(loads) == len(set(loads)) > 0


def test_a_replay_asks_for_every_microbatch_once(backend: Backend) -> None:
    storm = begun(backend, settings=with_settings(steps=4, batch=6, microbatches=3))
    asked: Counter[tuple[int, int, int, PNodeId]] = Counter()

    def watch(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        if sender == ORCHESTRATOR and isinstance(message, TrainRequest):
            asked[message.generation, message.step, message.microbatch, to] += 1
        return message

    storm.tamper = watch
    storm.run(until=lambda: any(step == 2 and index == 1 for _, step, index, _ in asked))
    storm.machines.crash(P2)
    storm.finish()
    assert set(asked.values()) == {1}
    replayed = sorted({index for generation, step, index, _ in asked if generation == 2 and step == 2})
    assert replayed == [0, 1, 2], "from the beginning of the step, not from where the lost one was"


@pytest.mark.parametrize("restart_ms", [20_000.0, 100.0])
def test_the_only_pnode_may_go_and_come_back(backend: Backend, restart_ms: float) -> None:
    storm = begun(backend, n_pnodes=1, restart_ms=restart_ms)
    storm.run(until=committed(storm, 3))
    storm.machines.crash(P1)
    storm.run(until=stage(storm, "recovering"))
    storm.finish()


def test_all_pnodes_vanish_and_one_returns_with_an_older_state(backend: Backend) -> None:
    """What is committed wins: nobody ever asks the one that returns what it has."""
    storm = begun(backend, slow=10.0)
    storm.run(until=committed(storm, 2))
    storm.machines.sleep(P1, 6 * SILENCE_MS, clock_stops=True)
    storm.run(until=committed(storm, 4))
    for pnode in (P2, P3):
        storm.machines.sleep(pnode, 200_000.0, clock_stops=True)
    storm.finish()
    assert storm.lead.state.job.plan.pnodes == (P1,)


def test_a_loss_curve_has_no_seam_where_pnodes_join_and_leave(backend: Backend) -> None:
    settings = with_settings(steps=10, batch=4, microbatches=2)
    storm = begun(backend, n_pnodes=1, settings=settings, slow=1_000.0, patience_ms=1_000_000.0)
    storm.run(until=committed(storm, 2))
    storm.machines.add(P2)
    storm.run(until=lambda: P2 in storm.lead.state.job.plan.pnodes or storm.is_done)
    storm.run(until=committed(storm, len(storm.journal.rows) + 1))
    storm.request_leave(P1)
    storm.finish()
    assert storm.lead.drained == [P1]
    assert storm.lead.state.job.plan.pnodes == (P2,)
    assert not any(progress.is_replay for progress in storm.lead.progress), "both were handed over"


def test_who_leaves_is_let_go_only_when_what_it_had_is_durable(backend: Backend) -> None:
    storm = begun(backend, n_pnodes=2, slow=300.0, disk_ms=50.0, patience_ms=1_000_000.0)
    storm.run(until=lambda: storm.now_ms > MIN_STAY_MS)
    storm.request_leave(P1)
    storm.run(until=lambda: bool(storm.lead.drained) or storm.is_done)
    assert storm.lead.drained == [P1]
    assert storm.journal.durable_step == storm.lead.state.step == len(storm.journal.rows)
    assert storm.workers[P1].is_running
    storm.machines.crash(P1)
    storm.finish()


# ---- slow is not gone, and hung is


def test_a_slow_pnode_is_neither_lost_nor_blamed(backend: Backend) -> None:
    storm = begun(backend, slow=3_000.0, stall_ms=30_000.0, patience_ms=2_000_000.0)
    storm.finish()
    assert storm.journal.newest_generation == 1
    assert not storm.lead.evicted


@pytest.mark.parametrize("seed", [9, 11])
def test_a_state_that_takes_long_to_load_is_no_standstill(backend: Backend, seed: int) -> None:
    """Each parameter takes a second and a half, all of them longer than the watchdog waits."""
    storm = begun(backend, n_pnodes=1, name="tiny-gpt-per-head", seed=seed, slow=1_000.0, stall_ms=10_000.0)
    storm.run(until=lambda: 2 in storm.journal.checkpoints)
    storm.crash_orchestrator(100.0)  # the next one does not know yet how long things take here
    storm.finish()
    assert storm.n_starts == 2
    assert not storm.lead.plans, "no generation was ended"


@pytest.mark.parametrize("pnode", [P1, P2, P3])
@pytest.mark.parametrize("n_events", [3, 150, 260])
def test_a_pnode_that_hangs_is_ended_and_its_part_is_done_by_others(
    backend: Backend, pnode: PNodeId, n_events: int
) -> None:
    storm = begun(backend, stall_ms=5_000.0, patience_ms=60_000.0)
    storm.run(until=events(storm, n_events))
    process = storm.workers[pnode]
    cause(storm, Fault(0, "stuck", (pnode,)))
    storm.finish()
    assert storm.lead.evicted == [pnode]
    assert not process.is_running


@pytest.mark.parametrize("n_rows", [1, 5, 6])
@pytest.mark.parametrize("kind", [ApplyDecision, CaptureState, StoreParameter, CollectSites, Measure])
def test_a_pnode_may_hang_in_any_of_its_effects_also_in_the_last_one(
    backend: Backend, kind: type, n_rows: int
) -> None:
    storm = begun(backend, stall_ms=5_000.0, patience_ms=60_000.0)
    storm.run(until=committed(storm, n_rows))
    for pnode in (P1, P2, P3):
        storm.machines.get_stuck(pnode, kind)
    storm.finish()
    assert storm.n_starts == 1


def test_a_pnode_may_hang_over_the_very_last_state_when_nothing_else_is_wanted_of_it(
    backend: Backend,
) -> None:
    storm = begun(backend, stall_ms=5_000.0, disk_ms=1_000.0, patience_ms=200_000.0)
    storm.run(until=lambda: SIX.steps in storm.journal.validations)
    assert SIX.steps not in storm.journal.checkpoints
    storm.crash_orchestrator(100.0)
    storm.journal.validations[SIX.steps] = storm.cluster.reference.result.validations[SIX.steps]
    storm.run(until=lambda: storm.orchestrator is not None)
    storm.run(until=lambda: storm.lead.state.step == SIX.steps and storm.lead.state.stage == "settling")
    storm.machines.get_stuck(P2, CaptureState)
    storm.finish()
    assert storm.lead.evicted == [P2]


# ---- as many as there are


@pytest.mark.parametrize(("name", "n_pnodes"), [("tiny-gpt", 4), ("tiny-gpt-per-head", 4), ("tiny-gpt", 6)])
def test_more_pnodes_than_heads_and_fewer_microbatches_than_pnodes_train_the_same_bits(
    backend: Backend, name: str, n_pnodes: int
) -> None:
    storm: Storm = begun(
        backend, n_pnodes=n_pnodes, settings=with_settings(steps=3, batch=2, microbatches=1), name=name
    )
    storm.run(until=committed(storm, 1))
    storm.machines.crash(P1)
    storm.finish()


def test_a_request_to_leave_during_a_recovery_is_kept(backend: Backend) -> None:
    storm = begun(backend, n_pnodes=2, grace_ms=200.0)
    storm.run(until=committed(storm, 2))
    storm.machines.crash(P1)
    storm.run(until=stage(storm, "recovering"))
    storm.machines.unwanted(P2)
    storm.lead.take(LeaveRequested(P2))
    storm.finish()
    assert storm.lead.drained == [P2]


def test_the_last_pnode_may_leave_and_the_session_waits_for_another_one(backend: Backend) -> None:
    storm = begun(backend, n_pnodes=1, slow=10.0)
    storm.run(until=committed(storm, 2))
    storm.request_leave(P1)
    storm.run(until=lambda: storm.lead.drained == [P1])
    assert not storm.lead.trained
    storm.machines.crash(P1)
    storm.machines.add(P2)
    storm.finish()
    assert not any(progress.is_replay for progress in storm.lead.progress)


def test_a_request_to_leave_that_a_recovery_grants_makes_no_other_plan(backend: Backend) -> None:
    storm = begun(backend, restart_ms=10_000.0, grace_ms=1_000.0)
    storm.run(until=committed(storm, 2))
    storm.machines.crash(P1)
    storm.run(until=stage(storm, "recovering"))
    storm.request_leave(P2)
    storm.finish()
    assert [plan.plan.pnodes for plan in storm.lead.plans][:1] == [(P3,)]
    assert not [plan for plan in storm.lead.plans if "leaves" in plan.reason]
