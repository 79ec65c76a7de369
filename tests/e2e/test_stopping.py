"""Ctrl-C, SIGTERM, SIGHUP and the stop file: when they come decides what is kept; never is a process left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.e2e.conftest import LONG
from tests.e2e.place import Place, Running

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

FOREVER = 100_000


def check_stopped(place: Place, workers_step: int) -> None:
    """The session is recorded as stopped, at a step whose state was kept."""
    (listed,) = place.sessions()
    assert listed["status"] == "stopped"
    assert listed["step"] == place.n_commits() >= workers_step
    assert place.checkpoints()[-1].name == f"step-{listed['step']:08d}"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_one_signal_stops_with_a_checkpoint_of_the_last_step(
    place: Place, number: signal.Signals, code: int
) -> None:
    with place.running(*place.demo(workers=2, steps=FOREVER), "--json") as run:
        run.until_step(3)
        run.signal(number)
        ended = run.ended(10)
        run.no_worker_within(0.5)
    assert (ended.code, ended.stderr) == (code, "")
    assert ended.result["status"] == "stopped"
    assert len(ended.result["losses"]) == place.n_commits()
    check_stopped(place, 3)


def test_a_stopped_session_goes_on_where_it_stopped(place: Place) -> None:
    with place.running(*place.demo(workers=0, steps=LONG), "--json") as run:
        run.until_step(7)
        run.signal(signal.SIGINT)
        stopped = run.ended(10).result
    done = place.run("session", "resume", "latest", "--workers", "2", "--json")
    assert (done.code, done.stderr) == (0, "")
    result = done.result
    assert result["status"] == "finished"
    assert (result["resumed_from_step"], result["steps_recomputed"]) == (len(stopped["losses"]), 0)
    assert result["losses"][: len(stopped["losses"])] == stopped["losses"]


def test_a_second_signal_ends_at_once(place: Place) -> None:
    with place.running(*place.demo(workers=2, steps=FOREVER), "--json") as run:
        run.until_step(3)
        run.signal(signal.SIGINT)
        run.signal(signal.SIGINT)
        ended = run.ended(1.0)
        run.no_worker_within(2.0)
    assert ended.code == 130
    (listed,) = place.sessions()
    assert listed["status"] in ("interrupted", "stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_workers_start_ends_without_any(place: Place, number: signal.Signals) -> None:
    with place.running(*place.demo(workers=3, steps=FOREVER), "--json") as run:
        run.until(lambda: len(run.workers()) > 0)
        run.signal(number)
        ended = run.ended(5)
        run.no_worker_within(0.5)
    assert (ended.code, ended.stderr) == (130 if number == signal.SIGINT else 143, "")
    assert ended.result["status"] == "stopped"
    (listed,) = place.sessions()
    assert (listed["status"], listed["step"]) == ("stopped", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_preparation_ends_and_leaves_no_half_dataset(
    place: Place, number: signal.Signals
) -> None:
    more = place.home.root.parent / "more"
    more.mkdir()
    for i in range(20):
        (more / f"{i}.txt").write_text(f"{i} more words " * 20_000)
    before = sorted(place.home.datasets.iterdir())
    n_tokenizers = len(list(place.home.tokenizers.iterdir()))
    with place.running(*place.demo(workers=2), "--data", str(more)) as run:
        run.until(lambda: len(list(place.home.tokenizers.iterdir())) > n_tokenizers)
        run.signal(number)
        ended = run.ended(10)
    assert ended.code == (130 if number == signal.SIGINT else 143)
    assert "Traceback" not in ended.stderr
    assert sorted(place.home.datasets.iterdir()) == before
    assert not place.home.lock_holder.exists()
    assert place.sessions() == []


def test_session_stop_of_another_process_stops_with_a_checkpoint_and_exit_code_0(place: Place) -> None:
    with place.running(*place.demo(workers=1, steps=FOREVER), "--json") as run:
        run.until_step(3)
        asked = place.run("session", "stop", "latest", "--json")
        ended = run.ended(10)
    assert (asked.code, asked.result["status"]) == (0, "stopped")
    assert (ended.code, ended.stderr) == (0, "")
    check_stopped(place, 3)


def test_a_closed_terminal_stops_with_a_checkpoint(place: Place) -> None:
    ours, theirs = os.openpty()
    terminal = os.ttyname(theirs)
    arguments = shlex.join([sys.executable, "-m", "dcnr_app", *place.demo(workers=1, steps=FOREVER)])
    # The first terminal that the leader of a new session opens is the one that can hang up.
    line = f"exec {arguments} <{terminal} >{terminal} 2>{terminal}"
    with subprocess.Popen(
        ["/bin/sh", "-c", line], env=place.environment, start_new_session=True, text=True
    ) as process:
        run = Running(place, process)
        try:
            run.until(lambda: bool(os.read(ours, 65_536)) and place.n_commits() >= 3)
            os.close(theirs)
            os.close(ours)
            assert process.wait(20) == 129
            run.no_worker_within(0.5)
        finally:
            run.kill_all()
    check_stopped(place, 3)


def test_a_hang_up_is_ignored_where_the_caller_ignores_it(place: Place) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with place.running(*place.demo(workers=0, steps=LONG), "--json") as run:
            run.until_step(2)
            run.signal(signal.SIGHUP)
            ended = run.ended()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (ended.code, ended.result["status"]) == (0, "finished")


def test_a_person_at_a_terminal_is_told_that_it_stops(place: Place) -> None:
    with place.running(*place.demo(workers=0, steps=FOREVER)) as run:
        run.until_step(3)
        run.signal(signal.SIGINT)
        ended = run.ended(10)
    assert "press Ctrl-C again to end at once" in ended.stderr
    assert "dcnr-app session resume s-" in ended.stdout
