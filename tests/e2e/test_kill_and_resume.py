"""kill -9 at any moment: nothing that was committed is lost, and the joined series is the undisturbed one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import LONG
from tests.e2e.place import Place

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

EVERY = 10


def killed(place: Place, workers: int, step: int) -> list[tuple[int, bytes]]:
    """Start LONG steps, kill the orchestrator and all workers after `step`; returns the commit rows."""
    with place.running(*place.demo(workers=workers, steps=LONG), "--json") as run:
        run.until_step(step)
        run.until(lambda: len(place.checkpoints()) > 0)
        run.kill_all()
        run.process.wait()
        run.no_worker_within(2.0)
    (rows,) = place.commits().values()
    return rows


def resumed(place: Place, *options: str) -> dict[str, Any]:
    done = place.run("session", "resume", "latest", "--json", *options)
    assert (done.code, done.stderr) == (0, "")
    result: dict[str, Any] = done.result
    return result


def check_joined(place: Place, result: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """The series of both runs together is the undisturbed one, and the ledger is exact."""
    assert result["losses"] == undisturbed["losses"]
    assert result["validation"] == undisturbed["validation"]
    ledger = place.run("session", "ledger", "latest", "--json")
    assert ledger.code == 0, ledger.stderr
    found = ledger.result
    assert (found["samples"], found["lost"], found["twice"]) == (LONG * 8, 0, 0)


@pytest.mark.parametrize(("seed", "before", "after"), [(1, 2, 2), (2, 2, 0), (3, 0, 3), (4, 1, 2)])
def test_all_killed_at_a_random_step_then_resumed_equals_the_undisturbed_run(
    place: Place, undisturbed: dict[str, Any], seed: int, before: int, after: int
) -> None:
    step = int(np.random.default_rng(seed).integers(EVERY + 1, LONG - 5))
    rows = killed(place, before, step)
    assert step <= len(rows) < LONG
    (listed,) = place.sessions()
    assert (listed["status"], listed["step"]) == ("interrupted", len(rows))
    result = resumed(place, "--workers", str(after))
    assert result["resumed_from_step"] > 0
    assert result["resumed_from_step"] + result["steps_recomputed"] == len(rows)
    assert result["steps_recomputed"] <= EVERY
    (kept,) = place.commits().values()
    assert kept[: len(rows)] == rows
    check_joined(place, result, undisturbed)


def test_a_session_killed_twice_and_before_its_first_checkpoint_is_resumed_too(
    place: Place, undisturbed: dict[str, Any]
) -> None:
    with place.running(*place.demo(workers=0, steps=LONG), "--json") as run:
        run.until_step(2)
        run.kill_all()
        run.process.wait()
    n_first = place.n_commits()
    assert 2 <= n_first <= EVERY + 1
    with place.running("session", "resume", "latest", "--json", "--workers", "2") as run:
        run.until_step(max(15, n_first + 1))
        run.kill_all()
        run.process.wait()
    check_joined(place, resumed(place, "--workers", "0"), undisturbed)


def test_workers_are_gone_two_seconds_after_their_orchestrator_is_killed(place: Place) -> None:
    with place.running(*place.demo(workers=3, steps=1000), "--json") as run:
        run.until_step(3)
        assert len(run.workers()) == 3
        run.process.kill()
        run.no_worker_within(2.0)
        assert run.ended().stderr == ""


def test_workers_that_are_still_starting_go_with_their_orchestrator(place: Place) -> None:
    with place.running(*place.demo(workers=3, steps=1000), "--json") as run:
        run.until(lambda: len(run.workers()) == 3)
        run.process.kill()
        run.no_worker_within(2.0)
        assert run.ended().stderr == ""
