"""`dcnr-app chaos` itself, short: the real app under real faults, and its report card."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.place import Place

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

COMMON = ("--workers", "3", "--seed", "1")


def chaos(place: Place, *arguments: str) -> list[str]:
    return ["chaos", "--network", str(place.network), "--data", str(place.data), *COMMON, *arguments]


def test_three_faults_in_a_third_of_a_minute_lose_nothing_and_change_no_bit(place: Place) -> None:
    done = place.run(
        *chaos(place, "--minutes", "0.3", "--every", "6", "--kinds", "kill,orchestrator,stop", "--json"),
        limit_s=100.0,
    )
    assert (done.code, done.stderr) == (0, "")
    card = done.result
    assert sorted(fault["kind"] for fault in card["faults"]) == ["kill", "orchestrator", "stop"]
    assert (card["hangs"], card["failures"], card["samples_lost"], card["samples_twice"]) == (0, [], 0, 0)
    assert card["loss_bitwise"]
    assert card["compared_steps"] == card["steps"] > 100
    assert 0.0 < card["throughput_kept"] < 1.5
    for fault in card["faults"]:
        assert fault["pid"] > 0
        assert fault["pnode"] == "orchestrator" or fault["pnode"].startswith("worker-")
        assert 0.0 <= fault["detect_s"] <= (5.0 if fault["kind"] == "stop" else 1.0)
        assert fault["detect_s"] < fault["recover_s"] <= 15.0
    assert len(place.sessions()) == 2  # the home was named, so both stay


@pytest.mark.slow
def test_the_card_for_people_has_a_row_per_fault_and_the_exit_code_says_that_all_went_well(
    place: Place,
) -> None:
    done = place.run(*chaos(place, "--minutes", "0.15", "--every", "9", "--kinds", "stop-short"))
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("stop-short")]
    assert "forgiven" in row
    assert "bit for bit that of the undisturbed run" in done.stdout
    assert "0 lost, 0 counted twice" in done.stdout
    assert done.code == 0


def test_ctrl_c_ends_it_with_all_its_processes(place: Place) -> None:
    with place.running(*chaos(place, "--minutes", "5", "--every", "60")) as run:
        run.until_step(5)
        assert len(run.workers()) == 4  # the session's process and its three workers
        run.signal(signal.SIGINT)
        ended = run.ended(15)
        run.no_worker_within(2.0)
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
