"""One home, one writer: a second session is refused in words, and readers go on."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.place import Place, listing

pytestmark = pytest.mark.e2e

OF_THE_RUNNING_ONE = ("control.sqlite", "metrics.sqlite", "sessions")


def test_a_second_demo_names_the_process_that_holds_the_home_and_changes_nothing(place: Place) -> None:
    with place.running(*place.demo(workers=1, steps=100_000), "--json") as run:
        run.until_step(2)
        before = listing(place.home.root)
        second = place.run(*place.demo(workers=1), "--json")
        after = listing(place.home.root)
        resume = place.run("session", "resume", "latest", "--json")
        (seen,) = place.sessions()
        run.signal(signal.SIGINT)
        assert run.ended(10).code == 130
    assert (second.code, second.stdout) == (5, "")
    assert f"process {run.process.pid} holds this home: training tiny" in second.stderr
    assert "Traceback" not in second.stderr
    assert resume.code == 5
    assert (seen["status"], seen["pid"]) == ("running", run.process.pid)
    # The lock file is opened for writing to see whether it is free: its time may change, its size may not.
    for name in {*before, *after}:
        if name == "lock":
            assert before[name][0] == after[name][0]
        elif not name.startswith(OF_THE_RUNNING_ONE):
            assert before[name] == after[name], name
    names = {name.split("/")[1] for name in after if name.startswith("sessions/")}
    assert names == {seen["session"]}
