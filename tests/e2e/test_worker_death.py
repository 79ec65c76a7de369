"""A worker that dies or falls silent, wherever it stood: the session goes on by itself to the undisturbed
losses. Matrix rows 1 to 3 and 18; also what others lost here: the place of a step, a rejoin, a busy wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import LONG
from tests.e2e.place import Ended, Place, Running, is_alive

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

EVERY = 10
FOREVER = 100_000

DIES_ONCE = """
import os, pathlib, signal, sys
if "pnode-process" in sys.orig_argv:
    from dcnr_app.cluster.compute import Compute
    from dcnr_app.runtime.executor import Executor
    from dcnr_app.runtime.parameters import ParameterSet

    at = {"step": 0, "calls": 0}
    execute = Compute.execute

    def counting(self, effect):
        step = getattr(effect, "step", getattr(getattr(effect, "commit", None), "step", 0))
        at.update(step=step, calls=0)
        return execute(self, effect)

    def make_deadly(owner, name):
        real = getattr(owner, name)

        def call(*arguments, **more):
            at["calls"] += 1
            if at["step"] == STEP and at["calls"] == 3:
                try:
                    (pathlib.Path(__file__).parent / "died").touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        setattr(owner, name, call)

    Compute.execute = counting
    make_deadly(OWNER, "NAME")
"""
STARTS_LATE = """
import pathlib, sys, time
if "pnode-process" in sys.orig_argv and (pathlib.Path(__file__).parent / "late").exists():
    time.sleep(DELAY_S)
"""


def check_went_on(place: Place, ended: Ended, undisturbed: dict[str, Any]) -> list[dict[str, Any]]:
    """It ended well, with the undisturbed series and an exact ledger; returns its recoveries."""
    assert ended.code == 0, ended.stderr
    result = ended.result
    assert result["losses"] == undisturbed["losses"]
    assert result["validation"] == undisturbed["validation"]
    ledger = place.run("session", "ledger", "latest", "--json").result
    assert (ledger["samples"], ledger["lost"], ledger["twice"]) == (LONG * 8, 0, 0)
    recoveries: list[dict[str, Any]] = result["recoveries"]
    assert all(entry["first_step_ms"] > entry["noticed_ms"] for entry in recoveries)
    return recoveries


def now_ms() -> float:
    """The clock in which a run's recoveries are told: the system's, the same for all processes."""
    return time.monotonic() * 1000.0


@pytest.mark.parametrize(
    ("owner", "name"),
    [("Executor", "_forward_step"), ("Executor", "_backward_step"), ("ParameterSet", "update")],
    ids=["in the middle of a forward", "in the middle of a backward", "between two parameters' updates"],
)
def test_a_death_at_a_point_of_a_step_changes_no_bit(
    place: Place, undisturbed: dict[str, Any], owner: str, name: str
) -> None:
    code = DIES_ONCE.replace("STEP", str(EVERY + 4)).replace("OWNER", owner).replace("NAME", name)
    startup = place.at_startup(code)
    with place.running(*place.demo(workers=3, steps=LONG), "--json") as run:
        ended = run.ended()
        run.no_worker_within(2.0)
    assert (startup / "died").exists()
    (recovery,) = check_went_on(place, ended, undisturbed)
    assert "worker-" in recovery["reason"]  # by its own streams, or by a neighbour that cannot reach it
    # Before the commit of its step, or, in an update, after it: the next step may have begun elsewhere.
    assert EVERY + 3 <= recovery["step"] <= EVERY + 5


def test_a_killed_worker_is_noticed_within_a_second_and_its_next_process_takes_its_place_at_once(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    with place.running(*place.demo(workers=3, steps=LONG), "--json") as run:
        run.until_step(EVERY + 2)
        before = {worker.pid for worker in run.workers()}
        victim = run.workers()[0]
        killed_ms = now_ms()
        victim.kill()
        run.until(lambda: len(run.workers()) == 4)
        ended = run.ended()
    (recovery,) = check_went_on(place, ended, undisturbed)  # one: the state was loaded the first time
    assert 0.0 <= recovery["noticed_ms"] - killed_ms <= 1000.0
    assert recovery["step"] >= EVERY + 2  # and training did not begin anew
    pids = {facts["pid"] for facts in ended.result["pnodes"] if facts["role"] == "worker"}
    assert len(pids) == 3
    assert len(pids & before) == 2
    assert victim.pid not in pids


def test_a_worker_that_stands_still_for_three_seconds_is_forgiven(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    with place.running(*place.demo(workers=3, steps=LONG), "--json") as run:
        run.until_step(EVERY + 2)
        before = {worker.pid for worker in run.workers()}
        victim = run.workers()[1]
        victim.suspend()
        # Time is what is tested here: nothing happens for which one could wait.
        time.sleep(3.0)
        victim.resume()
        ended = run.ended()
    assert check_went_on(place, ended, undisturbed) == []
    assert {facts["pid"] for facts in ended.result["pnodes"] if facts["role"] == "worker"} == before


def test_a_worker_that_stays_silent_is_replaced_within_five_seconds_and_nobody_spins_meanwhile(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    with place.running(*place.demo(workers=3, steps=LONG), "--json") as run:
        run.until_step(EVERY + 2)
        victim, *others = run.workers()
        victim.suspend()
        stopped_ms = now_ms()
        assert busy_share([psutil.Process(run.process.pid), *others], settle_s=1.0, over_s=2.0) < 0.05
        run.until(lambda: len(run.workers()) == 4)
        assert not is_alive(victim)  # the old process is gone before the new one is there
        ended = run.ended()
    (recovery,) = check_went_on(place, ended, undisturbed)
    assert 3000.0 < recovery["noticed_ms"] - stopped_ms <= 5000.0


def busy_share(processes: list[psutil.Process], *, settle_s: float, over_s: float) -> float:
    """Share of one core that the busiest of them uses over a while, after what is under way has ended."""
    time.sleep(settle_s)
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(over_s)
    after = [sum(process.cpu_times()[:2]) for process in processes]
    return max(b - a for a, b in zip(before, after, strict=True)) / over_s


@contextmanager
def busy_machine(n_processes: int) -> Iterator[None]:
    """Meanwhile so many processes compete for the cores."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_processes)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_workers_of_an_overloaded_machine_are_slow_and_not_dead(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    with place.running(*place.demo(workers=3, steps=LONG), "--json") as run:
        run.until_step(EVERY + 2)
        with busy_machine(2 * psutil.cpu_count()):
            run.until_step(LONG - 5)
        ended = run.ended()
    assert check_went_on(place, ended, undisturbed) == []


def test_without_its_place_being_taken_the_others_carry_on_and_a_late_one_gets_work_again(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    startup = place.at_startup(STARTS_LATE.replace("DELAY_S", "6.0"))
    with place.running(*place.demo(workers=3, steps=LONG)) as run:
        run.until_step(EVERY + 2)
        (startup / "late").touch()
        run.workers()[0].kill()
        ended = run.ended()
    assert ended.code == 0, ended.stderr
    assert "on worker-2, worker-3" in ended.stderr
    (rows,) = place.commits().values()
    assert len(rows) == LONG
    again = place.run("session", "resume", "latest", "--workers", "0", "--json")
    assert again.result["losses"] == undisturbed["losses"]


def kill_one_after_another(run: Running, n_kills: int) -> None:
    """Kill whichever worker is the oldest each time that there was progress since the last kill."""
    for _ in range(n_kills):
        run.until_step(run.place.n_commits() + 2)
        run.until(lambda: len(alive(run)) == 3)
        alive(run)[0].kill()


def alive(run: Running) -> list[psutil.Process]:
    return [worker for worker in run.workers() if is_alive(worker)]


@pytest.mark.parametrize("n_kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_one_after_another_leave_a_session_that_is_as_it_should_be(place: Place, n_kills: int) -> None:
    with place.running(*place.demo(workers=3, steps=FOREVER), "--json") as run:
        kill_one_after_another(run, n_kills)
        run.until_step(place.n_commits() + 2)
        n_open = psutil.Process(run.process.pid).num_fds()
        run.signal(signal.SIGINT)
        ended = run.ended(20)
        run.no_worker_within(0.5)
    assert (ended.code, ended.stderr) == (130, "")
    assert len(ended.result["recoveries"]) >= n_kills
    assert n_open < 200
    with place.running("session", "resume", "latest", "--workers", "0", "--json") as again:
        again.until_step(len(ended.result["losses"]) + 2)
        again.signal(signal.SIGINT)
        resumed = again.ended(20).result
    assert resumed["losses"][: len(ended.result["losses"])] == ended.result["losses"]


@pytest.mark.slow
def test_a_worker_that_never_stays_ends_the_session_with_its_reason_and_does_not_hang_it(
    place: Place,
) -> None:
    with place.running(*place.demo(workers=1, steps=FOREVER)) as run:
        for _ in range(9):
            n_commits = place.n_commits()
            run.until(lambda: place.n_commits() >= n_commits + 1 and bool(alive(run)))  # noqa: B023
            alive(run)[0].kill()
        ended = run.ended(40)
    assert ended.code == 3
    assert "worker-1" in ended.stderr
    assert "dcnr-app session resume" in ended.stderr
    assert "Traceback" not in ended.stderr
