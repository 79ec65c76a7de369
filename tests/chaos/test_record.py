"""From lines and times to faults that were noticed and got over. Times are in ms."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.chaos.faults import Kind
from dcnr_app.chaos.lines import Began, Line, Noticed, Over, Planned, PNodeReady, Stepped
from dcnr_app.chaos.record import SETTLED_MS, Fault, RunRecord


def step(number: int, *, is_replay: bool = False) -> Stepped:
    return Stepped(number, 100, is_replay)


def running(at_ms: float = 1000.0) -> RunRecord:
    """Two PNodes that have made step 1."""
    record = RunRecord()
    record.started(0.0)
    for line in (Began("s", 10), Planned(("a", "b"), 0), PNodeReady("a", 11), PNodeReady("b", 12), step(1)):
        record.take(line, at_ms)
    return record


def hit(record: RunRecord, kind: Kind, at_ms: float) -> Fault:
    fault = Fault(kind=kind, pnode="a", pid=11, step=record.step, injected_ms=at_ms)
    record.injected(fault)
    return fault


def recover(record: RunRecord, at_ms: float) -> None:
    """A plan for both PNodes, one of them in a new process, and a replayed step."""
    for line in (Planned(("a", "b"), 0), PNodeReady("b", 12), PNodeReady("a", 13), step(1, is_replay=True)):
        record.take(line, at_ms)


def test_a_run_is_calm_once_every_pnode_of_the_plan_is_ready_and_a_step_was_made() -> None:
    record = RunRecord()
    assert not record.is_calm(0.0)
    for line in (Planned(("a", "b"), 0), PNodeReady("a", 11), PNodeReady("b", 12)):
        record.take(line, 1.0)
        assert not record.is_calm(1.0)
    record.take(step(1), 2.0)
    assert record.is_calm(2.0)
    assert record.pids == {"a": 11, "b": 12}


def test_a_death_is_noticed_at_the_notice_and_got_over_at_the_next_step() -> None:
    record = running()
    fault = hit(record, "kill", 2000.0)
    record.take(step(2), 2001.0)  # it was under way
    assert (fault.noticed_ms, fault.recovered_ms) == (None, None)
    record.take(Noticed("lost PNode a"), 2300.0)
    assert not record.is_calm(2300.0)
    recover(record, 4000.0)
    assert (fault.noticed_ms, fault.recovered_ms) == (2300.0, 4000.0)
    assert record.is_calm(4000.0)
    assert record.pids == {"b": 12, "a": 13}
    assert record.recoveries == ["lost PNode a"]


def test_a_dead_orchestrator_is_noticed_when_its_process_ends() -> None:
    record = running()
    fault = hit(record, "orchestrator", 2000.0)
    record.died(2100.0)
    assert not record.pids
    recover(record, 5000.0)
    assert (fault.noticed_ms, fault.recovered_ms) == (2100.0, 5000.0)


def test_a_forgiven_pause_is_got_over_at_the_next_step_and_settles_later() -> None:
    record = running()
    fault = hit(record, "stop-short", 2000.0)
    record.take(step(2), 2500.0)
    record.resumed(4000.0)
    record.take(step(3), 4200.0)
    assert (fault.noticed_ms, fault.recovered_ms) == (None, 4200.0)
    assert not record.is_calm(4000.0 + SETTLED_MS - 1)
    assert record.is_calm(4000.0 + SETTLED_MS)


def test_a_pause_that_is_taken_for_a_death_afterwards_is_noticed_and_got_over_anew() -> None:
    record = running()
    fault = hit(record, "pause-all", 2000.0)
    record.resumed(4000.0)
    record.take(step(2), 4200.0)
    record.take(Noticed("lost PNode a"), 5000.0)
    assert (fault.noticed_ms, fault.recovered_ms) == (5000.0, None)
    recover(record, 7000.0)
    assert fault.recovered_ms == 7000.0


def test_a_later_recovery_does_not_touch_faults_that_are_over() -> None:
    record = running()
    first = hit(record, "kill", 2000.0)
    record.take(Noticed("lost PNode a"), 2100.0)
    recover(record, 3000.0)
    record.take(Noticed("PNode c joined"), 9000.0)
    assert (first.noticed_ms, first.recovered_ms) == (2100.0, 3000.0)


def test_replayed_steps_are_no_commits_and_tokens_count_after_the_first_commit() -> None:
    record = running(1000.0)
    for number in range(2, 6):
        record.take(step(number), 1000.0 * number)
    record.take(step(3, is_replay=True), 5500.0)
    assert (record.n_commits, record.step) == (5, 5)
    assert record.tokens_per_s() == pytest.approx(400 / 4.0)
    assert record.tokens_per_s(9000.0) == pytest.approx(400 / 8.0)


def test_the_cost_of_faults_is_the_time_to_the_next_new_steps_and_two_at_once_cost_it_once() -> None:
    record = running()
    hit(record, "kill-two", 2000.0)
    hit(record, "kill-two", 2000.0)
    record.take(Noticed("lost PNode a"), 2100.0)
    recover(record, 4000.0)
    record.take(step(2), 4500.0)
    hit(record, "stop-short", 9000.0)
    record.resumed(11_000.0)
    record.take(step(3), 11_100.0)
    record.take(step(4), 11_200.0)
    assert record.stalled_ms() == 2500.0 + 2100.0


def test_only_steps_are_progress() -> None:
    record = running(1000.0)
    record.take(Noticed("lost PNode a"), 50_000.0)
    record.take(PNodeReady("a", 14), 60_000.0)
    assert record.idle_ms(61_000.0) == 60_000.0
    record.hung(61_000.0)
    assert (record.hangs, record.idle_ms(61_000.0)) == (1, 0.0)


def test_what_failed_is_kept_in_its_words() -> None:
    record = running()
    record.take(Over("failed", "the disk is full"), 2000.0)
    assert (record.status, record.failures) == ("failed", ["the disk is full"])


@pytest.mark.parametrize(
    "line",
    [Began("s", 1), Planned(("a",), 3), PNodeReady("a", 1), step(1), Noticed("why"), Over("failed", "words")],
)
def test_lines_come_back_as_they_were_said(line: Line) -> None:
    assert msgspec.json.decode(msgspec.json.encode(line), type=Line) == line
