"""The coordinator core's watchdog: what counts as progress, and when a session stands still."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.effects import AppendCommit, BeginGeneration, Evict, Recovering
from dcnr_app.cluster.inputs import Tick
from dcnr_app.cluster.messages import Ready, Status
from tests.cluster.coordinator_bench import CoordinatorBench, of
from tests.cluster.cores import A, B
from tests.cluster.recovery_bench import STALL_MS, RecoveryBench, training

NEXT_MS = 0.001
TIMES_LONGEST = 20.0
MAX_STALLS = 3


def ended(bench: RecoveryBench) -> list[Recovering]:
    """What the last effects say about a generation that ended."""
    return of(bench.effects, Recovering)


def test_a_generation_ends_when_it_stands_still_for_longer_than_the_limit() -> None:
    bench = training()
    assert bench.tick(STALL_MS) == []
    bench.tick(STALL_MS + NEXT_MS)
    (recovering,) = ended(bench)
    assert recovering.reason == "no progress for 30 s"
    assert recovering.pnode == ""
    assert of(bench.effects, BeginGeneration), "at once"
    assert not of(bench.effects, Evict), "nobody is known to be stuck"


def test_what_was_asked_for_in_configuring_is_watched_too() -> None:
    bench = RecoveryBench()
    assert bench.tick(STALL_MS) == []
    bench.now_ms = STALL_MS
    bench.tell(A, Ready(**bench.ids, device_class="x", pid=1))
    assert bench.tick(2 * STALL_MS) == []
    bench.tick(2 * STALL_MS + NEXT_MS)
    assert ended(bench)


@pytest.mark.parametrize("stage", ["batching", "committing"])
def test_a_slow_disk_is_no_fault_of_pnodes(stage: str) -> None:
    bench = RecoveryBench()
    bench.get_ready()
    if stage == "committing":
        assert of(bench.train_step(), AppendCommit)
    assert bench.state.stage == stage
    assert bench.tick(1e9) == []


def test_a_session_that_may_not_recover_is_not_watched() -> None:
    bench = CoordinatorBench()
    bench.get_ready()
    bench.finish(bench.batch())
    bench.state.progress_ms = -1e9
    assert bench.take(Tick()) == []


# ---- progress


@pytest.mark.parametrize(("tasks_done", "is_progress"), [(3, False), (4, True)])
def test_a_pnode_makes_progress_when_it_is_elsewhere_than_before(tasks_done: int, is_progress: bool) -> None:
    bench = training()
    bench.report(A, tasks_done=3)
    bench.now_ms = 10_000.0
    bench.report(A, tasks_done=tasks_done)
    bench.tick(STALL_MS + NEXT_MS)
    assert bool(ended(bench)) is not is_progress


def test_any_other_message_of_the_generation_is_progress() -> None:
    bench = training()
    bench.now_ms = 10_000.0
    bench.tell(A, bench.gradients(A))
    assert bench.tick(10_000.0 + STALL_MS) == []
    bench.tick(10_000.0 + STALL_MS + NEXT_MS)
    assert ended(bench)


def test_a_message_of_another_generation_is_none() -> None:
    bench = training()
    bench.now_ms = 10_000.0
    bench.tell(A, msgspec.structs.replace(bench.gradients(A), generation=9))
    bench.tick(STALL_MS + NEXT_MS)
    assert ended(bench)


def test_where_effects_take_long_the_limit_is_longer() -> None:
    bench = training()
    longest_ms = 2 * STALL_MS / TIMES_LONGEST
    for n_done, running_ms in ((0, longest_ms), (1, 5.0)):
        bench.report(A, tasks_done=n_done, running_ms=running_ms)
    assert bench.tick(2 * STALL_MS) == []
    bench.tick(2 * STALL_MS + NEXT_MS)
    assert ended(bench)


def test_an_effect_that_has_not_ended_is_no_measure() -> None:
    bench = training()
    for running_ms in (5_000.0, 14_000.0):
        bench.report(A, running_ms=running_ms)
    bench.tick(STALL_MS + NEXT_MS)
    assert ended(bench)


# ---- who is stuck


@pytest.mark.parametrize("over_ms", [0.0, NEXT_MS])
def test_the_pnode_whose_effect_has_run_for_half_of_it_is_the_stuck_one(over_ms: float) -> None:
    bench = training()
    bench.report(A, running_ms=STALL_MS / 2)
    bench.report(B, running_ms=STALL_MS / 2 + over_ms)
    bench.tick(STALL_MS + NEXT_MS)
    evicted = [effect.pnode for effect in of(bench.effects, Evict)]
    assert evicted == ([B] if over_ms else [])
    (recovering,) = ended(bench)
    if over_ms:
        assert "train F of segment 0 has been running for 15 s" in recovering.reason
        assert recovering.pnode == B


def test_of_two_the_one_that_runs_longer_is_stuck_and_the_other_waits_for_it() -> None:
    bench = training()
    bench.report(A, running_ms=STALL_MS)
    bench.report(B, running_ms=STALL_MS - 1.0)
    bench.tick(STALL_MS + NEXT_MS)
    assert [effect.pnode for effect in of(bench.effects, Evict)] == [A]


def test_what_a_pnode_said_in_an_earlier_generation_does_not_count_against_it() -> None:
    bench = training()
    bench.report(A, running_ms=STALL_MS)
    bench.cannot_reach(B, B)
    bench.go_on()
    bench.finish(bench.batch())
    bench.tick(STALL_MS + NEXT_MS)
    assert ended(bench)
    assert not of(bench.effects, Evict)


# ---- how often


def stall(bench: RecoveryBench) -> None:
    """Let the longest time pass and, if the session goes on, begin the next generation's first step."""
    bench.tick(bench.now_ms + STALL_MS + NEXT_MS)
    if not bench.failures():
        bench.go_on()
        bench.finish(bench.batch())


def test_a_session_that_stands_still_three_times_without_a_step_has_failed() -> None:
    bench = training()
    for _ in range(MAX_STALLS - 1):
        stall(bench)
        assert bench.state.stage == "training"
    stall(bench)
    (failure,) = bench.failures()
    assert failure.kind == "failed"
    assert failure.what == "no progress for 30 s, after 3 attempts"
    assert failure.where == "step 1"


def test_a_step_in_between_begins_the_count_anew() -> None:
    bench = RecoveryBench()
    bench.get_ready()
    for _ in range(MAX_STALLS):
        bench.replay()
        bench.commit()
        bench.finish(bench.batch())
        for _ in range(MAX_STALLS - 1):
            bench.tick(bench.now_ms + STALL_MS + NEXT_MS)
            assert not bench.failures()
            bench.go_on()
            bench.replay()
            bench.finish(bench.batch())
        bench.cannot_reach(A, A)
        bench.go_on()


def test_a_status_of_a_stranger_is_refused() -> None:
    bench = training()
    bench.report(A)
    before = dict(bench.state.statuses)
    stranger = msgspec.structs.replace(before[A], generation=9)
    assert isinstance(stranger, Status)
    bench.tell(A, stranger)
    assert bench.state.statuses == before
