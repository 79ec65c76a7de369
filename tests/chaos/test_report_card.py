"""The report card's figures, and what makes a run fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dcnr_app.chaos.record import Fault, RunRecord
from dcnr_app.chaos.report_card import Comparison, is_passed, report_card, rows_of, summary_of

GOOD = Comparison(
    undisturbed_tokens_per_s=1000.0,
    disturbed_tokens_per_s=900.0,
    loss_bitwise=True,
    compared_steps=50,
    samples_lost=0,
    samples_twice=0,
)


def record_of(*faults: Fault) -> RunRecord:
    record = RunRecord()
    record.session, record.step, record.checkpoint_every = "s-1", 50, 10
    record.faults = list(faults)
    return record


def killed() -> Fault:
    return Fault(
        kind="kill",
        pnode="worker-2",
        pid=7,
        step=20,
        injected_ms=1000.0,
        noticed_ms=1200.0,
        recovered_ms=4000.0,
    )


def paused(noticed_ms: float | None = None) -> Fault:
    return Fault(
        kind="stop-short", pnode="worker-1", pid=6, step=40, injected_ms=9000.0, resumed_ms=11_000.0,
        noticed_ms=noticed_ms, recovered_ms=11_500.0,
    )  # fmt: skip


def silent() -> Fault:
    return Fault(
        kind="stop", pnode="worker-3", pid=8, step=30, injected_ms=0.0, noticed_ms=4400.0, recovered_ms=7000.0
    )


def test_the_card_has_seconds_since_each_fault_and_the_share_of_throughput() -> None:
    card = report_card(record_of(killed(), paused()), GOOD)
    assert card["faults"] == [
        {"kind": "kill", "pnode": "worker-2", "pid": 7, "step": 20, "detect_s": 0.2, "recover_s": 3.0,
         "as_meant": True},
        {"kind": "stop-short", "pnode": "worker-1", "pid": 6, "step": 40, "detect_s": None, "recover_s": 2.5,
         "as_meant": True},
    ]  # fmt: skip
    assert card["throughput_kept"] == pytest.approx(0.9)
    assert (card["hangs"], card["samples_lost"], card["samples_twice"]) == (0, 0, 0)
    assert (card["loss_bitwise"], card["steps"], card["checkpoint_every"]) == (True, 50, 10)
    assert is_passed(card)


@pytest.mark.parametrize(
    "change",
    [
        {"loss_bitwise": False},
        {"compared_steps": 49},
        {"samples_lost": 1},
        {"samples_twice": 1},
    ],
)
def test_a_difference_or_a_sample_at_fault_fails_the_run(change: dict[str, Any]) -> None:
    assert not is_passed(report_card(record_of(killed()), msgspec.structs.replace(GOOD, **change)))


def test_a_hang_and_a_failure_fail_the_run() -> None:
    hung, failed = record_of(killed()), record_of(killed())
    hung.hangs = 1
    failed.failures = ["the disk is full"]
    assert not is_passed(report_card(hung, GOOD))
    assert not is_passed(report_card(failed, GOOD))


def test_a_fault_that_was_not_got_over_or_a_pause_that_was_not_forgiven_fails_the_run() -> None:
    stuck = killed()
    stuck.recovered_ms = None
    unseen = killed()
    unseen.noticed_ms = None
    for fault in (stuck, unseen, paused(noticed_ms=10_000.0)):
        assert not is_passed(report_card(record_of(fault), GOOD))


def test_people_see_a_row_per_fault_and_the_worst_times_of_death_and_silence_apart() -> None:
    card = report_card(record_of(killed(), paused(), silent()), GOOD)
    assert rows_of(card)[:2] == [
        ("kill", "worker-2", "7", "20", "after 0.20 s", "after 3.00 s"),
        ("stop-short", "worker-1", "6", "40", "forgiven", "after 2.50 s"),
    ]
    summary = summary_of(card)
    assert summary["noticed, worst"] == "0.20 s on a death, 4.40 s on silence"
    assert summary["going on, worst"] == "7.00 s"
    assert summary["loss series"].startswith("bit for bit")
    assert summary["throughput kept"].startswith("90.0 %")


def test_a_run_without_an_undisturbed_speed_keeps_nothing_and_divides_by_nothing() -> None:
    nothing = msgspec.structs.replace(GOOD, undisturbed_tokens_per_s=0.0)
    assert report_card(record_of(), nothing)["throughput_kept"] == 0.0
    assert "none was tried" in summary_of(report_card(record_of(), nothing))["noticed, worst"]
