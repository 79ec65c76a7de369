"""Failpoints: what their text means, and that each action really happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from dcnr_app.errors import UserError
from dcnr_app.failpoints import PLACES, Failpoint, Failpoints, InjectedError, parse
from dcnr_app.settings import failpoint_text

PLACE, BYTES_PLACE = "transport.send", "transport.receive"


def armed(text: str, process: str = "") -> Failpoints:
    return Failpoints(parse(text), process)


def test_text_names_places_processes_actions_and_hits() -> None:
    assert parse("") == ()
    assert parse(f"{PLACE}:kill@3, {BYTES_PLACE}#worker-1:corrupt@5+") == (
        Failpoint(name=PLACE, action="kill", nth=3),
        Failpoint(name=BYTES_PLACE, action="corrupt", process="worker-1", nth=5, goes_on=True),
    )
    assert parse(f"{PLACE}:sleep=0.5") == (Failpoint(name=PLACE, action="sleep", seconds=0.5),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("elsewhere:kill", "there is no place 'elsewhere'"),
        (f"{PLACE}:explode", "'explode' is no action there"),
        (f"{PLACE}:corrupt", "'corrupt' is no action there"),
        (f"{PLACE}:sleep", "needs its seconds"),
        (f"{PLACE}:kill=3", "needs its seconds"),
        (f"{PLACE}", "should read"),
        (f"{PLACE}:kill@0", "should read"),
        (f"{PLACE}:kill@x", "should read"),
        (f"{PLACE}:kill; rm -rf", "should read"),
    ],
)
def test_text_that_is_not_understood_is_refused_with_what_there_is(text: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert why in caught.value.why
    assert "DCNR_FAILPOINT" in caught.value.fix


def test_action_comes_at_its_hit_and_once() -> None:
    points = armed(f"{PLACE}:raise@3")
    points.hit(PLACE)
    points.hit(BYTES_PLACE)
    points.hit(PLACE)
    with pytest.raises(InjectedError, match=r"failpoint transport\.send"):
        points.hit(PLACE)
    points.hit(PLACE)


def test_plus_means_every_hit_from_there() -> None:
    points = armed(f"{BYTES_PLACE}:corrupt@2+")
    flipped = [points.hit_with(BYTES_PLACE, b"\0\0\0") for _ in range(4)]
    assert flipped == [b"\0\0\0"] + [b"\0\x10\0"] * 3


def test_other_processes_and_other_places_are_left_alone() -> None:
    points = armed(f"{PLACE}#worker-1:raise", process="worker-0")
    points.hit(PLACE)
    with pytest.raises(InjectedError):
        armed(f"{PLACE}#worker-1:raise", process="worker-1").hit(PLACE)


def test_nothing_armed_does_nothing() -> None:
    for place in PLACES:
        Failpoints().hit(place)
    data = b"abc"
    assert Failpoints().hit_with(BYTES_PLACE, data) is data


def test_sleep_takes_its_time() -> None:
    begin = time.monotonic()
    armed(f"{PLACE}:sleep=0.05").hit(PLACE)
    assert time.monotonic() - begin >= 0.05


def child(action: str) -> subprocess.Popen[bytes]:
    code = (
        "from dcnr_app.failpoints import Failpoints, parse\n"
        "from dcnr_app.settings import failpoint_text\n"
        f"Failpoints(parse(failpoint_text())).hit({PLACE!r})"
    )
    environment = {"DCNR_FAILPOINT": f"{PLACE}:{action}"}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_kill_ends_the_process_as_kill_minus_9_does() -> None:
    assert child("kill").wait(20) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_stop_halts_the_process_until_it_is_told_to_go_on() -> None:
    process = child("stop")
    stopped = psutil.Process(process.pid)
    deadline = time.monotonic() + 20
    while stopped.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    stopped.resume()
    assert process.wait(20) == 0


def test_environment_is_read_in_settings() -> None:
    assert failpoint_text({"DCNR_FAILPOINT": "x"}) == "x"
    assert failpoint_text({}) == ""
