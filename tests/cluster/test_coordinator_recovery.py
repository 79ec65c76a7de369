"""The coordinator core's limits, each at its boundary and next to it.

A limit that is compared the wrong way round is not seen by a test that only goes far beyond it (dask#3896).
"""

from __future__ import annotations

import pytest

from dcnr_app.cluster.coordinator_bench import (
    BENCH_MS,
    MAX_BENCH_MS,
    MAX_DEATHS,
    MAX_LINK_FAILURES,
    back_from_bench,
    is_benched,
    note_failure,
    was_benched,
)
from dcnr_app.cluster.coordinator_recovery import SUSPECT_MS
from dcnr_app.cluster.coordinator_state import Bench
from dcnr_app.cluster.coordinator_steps import MIN_STAY_MS
from dcnr_app.cluster.effects import BeginGeneration, Evict, Recovering
from dcnr_app.cluster.inputs import LeaveRequested, Lost
from dcnr_app.ids import PNodeId
from tests.cluster.coordinator_bench import of
from tests.cluster.cores import A, B
from tests.cluster.recovery_bench import RecoveryBench, training

C = PNodeId("p3")
NEXT_MS = 0.001


# ---- how long a PNode that was lost is waited for


def test_a_lost_pnode_is_waited_for_until_its_grace_is_over() -> None:
    bench = training(grace_ms=1_000.0)
    assert of(bench.take(Lost(B, "reset")), Recovering)
    assert not bench.begins_at(1_000.0 - NEXT_MS)
    assert bench.begins_at(1_000.0)
    assert not bench.begins_at(1_000.0 + NEXT_MS), "once"


def test_without_grace_nobody_is_waited_for() -> None:
    bench = training()
    assert of(bench.take(Lost(B, "reset")), BeginGeneration)


def test_who_is_back_within_the_grace_ends_the_waiting() -> None:
    bench = training(grace_ms=1_000.0)
    bench.take(Lost(B, "reset"))
    bench.now_ms = 10.0
    assert of(bench.back(B), BeginGeneration)
    bench.go_on()
    assert bench.state.job.plan.pnodes == (A, B)


def test_the_grace_begins_with_the_first_loss() -> None:
    bench = training(n_pnodes=3, grace_ms=1_000.0)
    bench.take(Lost(B, "reset"))
    bench.now_ms = 900.0
    bench.take(Lost(C, "reset"))
    assert not bench.begins_at(1_000.0 - NEXT_MS)
    assert bench.begins_at(1_000.0)


def test_a_session_without_any_pnode_waits_without_an_end() -> None:
    bench = training(n_pnodes=1)
    bench.take(Lost(A, "reset"))
    assert not bench.begins_at(1e9)
    assert of(bench.back(A), BeginGeneration)


# ---- how long a PNode that others cannot reach has to be lost here too


def test_a_suspect_is_planned_with_again_when_its_time_is_over() -> None:
    bench = training()
    bench.cannot_reach(A, B)
    assert not bench.begins_at(SUSPECT_MS - NEXT_MS)
    assert bench.begins_at(SUSPECT_MS)
    bench.go_on()
    assert bench.state.job.plan.pnodes == (A, B)


def test_a_suspect_that_is_lost_is_waited_for_no_longer() -> None:
    bench = training()
    bench.cannot_reach(A, B)
    bench.now_ms = 10.0
    assert of(bench.take(Lost(B, "reset")), BeginGeneration)
    bench.go_on()
    assert bench.state.job.plan.pnodes == (A,)


def test_who_reports_itself_is_no_suspect() -> None:
    bench = training()
    assert of(bench.cannot_reach(A, A), BeginGeneration)


# ---- how long a plan stays before a better one replaces it


@pytest.mark.parametrize(("at_ms", "is_move"), [(MIN_STAY_MS - NEXT_MS, False), (MIN_STAY_MS, True)])
def test_a_plan_is_replaced_when_it_has_stayed_long_enough(at_ms: float, is_move: bool) -> None:
    bench = RecoveryBench()
    bench.get_ready()
    bench.take(LeaveRequested(A))
    bench.now_ms = at_ms
    assert bench.commit().capture == is_move, "a move needs a checkpoint to begin from"


def test_a_pnode_that_joins_waits_for_the_plan_to_have_stayed() -> None:
    bench = RecoveryBench()
    bench.get_ready()
    bench.back(C)
    bench.now_ms = MIN_STAY_MS - NEXT_MS
    assert not bench.commit().capture
    bench.now_ms = MIN_STAY_MS
    assert bench.commit().capture


# ---- ways that stay broken


def break_way(bench: RecoveryBench) -> None:
    """A reports B, and all are planned with again."""
    bench.cannot_reach(A, B)
    if not of(bench.effects, BeginGeneration):
        assert bench.begins_at(bench.now_ms + SUSPECT_MS)
    bench.go_on()


def test_a_way_that_stays_broken_costs_one_pnode_its_place() -> None:
    bench = training(n_pnodes=3)
    for _ in range(MAX_LINK_FAILURES):
        break_way(bench)
        assert bench.state.job.plan.pnodes == (A, B, C)
    break_way(bench)
    assert bench.state.job.plan.pnodes == (A, C), "of two with equal trouble the later one"
    assert B in bench.state.members, "its process stays"


def test_a_step_between_two_reports_makes_them_chance() -> None:
    bench = RecoveryBench(n_pnodes=3)
    bench.get_ready()
    for _ in range(2 * MAX_LINK_FAILURES):
        bench.replay()
        bench.commit()
        break_way(bench)
    assert bench.state.job.plan.pnodes == (A, B, C)


def test_the_one_with_trouble_everywhere_is_left_out() -> None:
    bench = training(n_pnodes=3)
    for sender in (B, C) * MAX_LINK_FAILURES:
        assert not note_failure(bench.state, sender, A)
    assert note_failure(bench.state, B, A) == A


def test_a_pnode_is_tried_again_when_its_time_on_the_bench_is_over() -> None:
    bench = training(n_pnodes=3)
    for _ in range(MAX_LINK_FAILURES + 1):
        break_way(bench)
    until_ms = bench.state.benched[B].until_ms
    assert until_ms <= bench.now_ms + BENCH_MS
    bench.finish(bench.batch())
    for at_ms, is_wanted in ((until_ms - NEXT_MS, False), (until_ms, True)):
        for pnode in (A, C):
            bench.now_ms = at_ms - 1.0
            bench.report(pnode, tasks_done=int(at_ms == until_ms) + 1)
        bench.tick(at_ms)
        assert is_benched(bench.state, B) is not is_wanted
        assert back_from_bench(bench.state) == ((B,) if is_wanted else ())
        assert bool(bench.state.handover) is is_wanted


def test_the_time_on_the_bench_doubles_up_to_its_limit() -> None:
    bench = training(n_pnodes=2)
    lengths_ms = []
    for _ in range(MAX_LINK_FAILURES + 1):
        left_out = note_failure(bench.state, A, B)
    for _ in range(8):
        assert left_out == B
        lengths_ms.append(bench.state.benched[B].length_ms)
        bench.state.now_ms = bench.state.benched[B].until_ms
        left_out = note_failure(bench.state, A, B)
    expected = [min(BENCH_MS * 2**n, MAX_BENCH_MS) for n in range(8)]
    assert lengths_ms == expected
    assert expected[-1] == MAX_BENCH_MS


@pytest.mark.parametrize(("later_ms", "is_remembered"), [(100.0, True), (100.0 + NEXT_MS, False)])
def test_the_bench_is_forgotten_after_as_long_as_it_lasted(later_ms: float, is_remembered: bool) -> None:
    bench = training()
    bench.state.benched[B] = Bench(until_ms=1_000.0, length_ms=100.0)
    bench.state.now_ms = 1_000.0 + later_ms
    assert was_benched(bench.state, B) is is_remembered


# ---- what ends PNodes


def test_vnodes_that_end_every_pnode_are_named_at_the_last_of_max_deaths() -> None:
    bench = training(n_pnodes=1)
    for _ in range(MAX_DEATHS - 1):
        bench.take(Lost(A, "reset"))
        assert of(bench.effects, Evict)
        assert not bench.failures()
        bench.back(A)
        bench.go_on()
    bench.take(Lost(A, "reset"))
    (failure,) = bench.failures()
    assert failure.kind == "lost"
    assert f"lost {MAX_DEATHS} times without a step in between" in failure.what


def test_pnodes_may_be_lost_any_number_of_times_with_a_step_in_between() -> None:
    bench = RecoveryBench(n_pnodes=1)
    bench.get_ready()
    for _ in range(4):
        bench.replay()
        bench.commit()
        for _ in range(MAX_DEATHS - 1):
            bench.take(Lost(A, "reset"))
            assert not bench.failures()
            bench.back(A)
            bench.go_on()
