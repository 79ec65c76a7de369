"""Which PNodes are left out of plans, and when VNodes are to blame: each limit on both sides."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.coordinator_bench import BENCH_MS, FLAP_MS, is_benched, note_death, note_failure
from dcnr_app.cluster.coordinator_state import CoordinatorState
from dcnr_app.cluster.effects import BeginGeneration, Drained, SessionFailed
from dcnr_app.cluster.inputs import Joined, LeaveRequested, Lost
from dcnr_app.cluster.messages import Address
from dcnr_app.ids import PNodeId
from tests.cluster.coordinator_bench import of
from tests.cluster.cores import A, B
from tests.cluster.recovery_bench import RecoveryBench, training

C = PNodeId("p3")


def state_in(bench: RecoveryBench, generation: int) -> CoordinatorState:
    """The state, in that generation of the same plan."""
    plan = msgspec.structs.replace(bench.state.job.plan, generation=generation)
    bench.state.job = msgspec.structs.replace(bench.state.job, plan=plan)
    return bench.state


@pytest.mark.parametrize("later_ms", [FLAP_MS - 1.0, FLAP_MS])
def test_a_pnode_that_is_lost_again_soon_is_left_out(later_ms: float) -> None:
    bench = training(n_pnodes=3)
    assert note_death(bench.state, B) == ()
    assert note_death(bench.state, B) == (), "the same loss, told twice"
    assert not is_benched(bench.state, B)
    state = state_in(bench, 2)
    state.now_ms += later_ms
    note_death(state, B)
    assert is_benched(state, B) == (later_ms < FLAP_MS)


def test_one_pnode_that_is_lost_again_and_again_is_no_proof_against_its_vnodes() -> None:
    bench = training(n_pnodes=2)
    bench.state.members.pop(B)
    for generation in range(1, 6):
        assert note_death(state_in(bench, generation), B) == (), "A has not tried them yet"
    blamed = note_death(state_in(bench, 6), A)
    assert blamed == (), "it ran others"
    assert len(bench.state.deaths) == 6


def test_a_loss_that_a_peer_tells_of_first_counts_too() -> None:
    bench = training(n_pnodes=2)
    bench.cannot_reach(A, B)
    assert bench.state.stage == "recovering"
    bench.take(Lost(B, "reset"))
    assert [pnode for pnode, _ in bench.state.deaths] == [B]


def test_a_pnode_that_is_left_out_makes_no_new_plan_when_it_joins() -> None:
    bench = training(n_pnodes=3)
    while not note_failure(bench.state, A, C):
        pass
    bench.state.members.pop(C)
    plan = msgspec.structs.replace(bench.state.job.plan, pnodes=(A, B))
    bench.state.job = msgspec.structs.replace(bench.state.job, plan=plan)
    bench.take(Joined(Address(C, "anew")))
    assert not bench.state.handover
    bench.now_ms = BENCH_MS
    bench.take(Joined(Address(C, "anew")))
    assert bench.state.handover == "PNode p3 joined"


def test_when_all_who_are_left_want_to_leave_they_may_go_at_once() -> None:
    bench = training(grace_ms=1_000.0)
    bench.take(Lost(A, "reset"))
    effects = bench.take(LeaveRequested(B))
    assert effects == [Drained(B)]
    assert not of(effects, SessionFailed)
    bench.now_ms = 1_000.0
    assert of(bench.take(Joined(Address(C, "c"))), BeginGeneration)
