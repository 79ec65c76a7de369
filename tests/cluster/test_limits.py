"""An owner's limits are kept: hours round midnight, battery, full screen, cores and memory; what cannot be
told is said."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.limits import allowed_now, limited, threads_for
from dcnr_app.cluster.presence import is_full_screen, on_battery, verdict_now
from dcnr_app.errors import UserError
from dcnr_app.limits import Limits, in_words, parse_hours
from tests.cluster.facts import device

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process limit itself so")


@pytest.mark.parametrize(
    ("hours", "minutes", "is_allowed"),
    [
        ("22:00-07:00", 22 * 60, True),
        ("22:00-07:00", 23 * 60 + 59, True),
        ("22:00-07:00", 0, True),
        ("22:00-07:00", 7 * 60 - 1, True),
        ("22:00-07:00", 7 * 60, False),
        ("22:00-07:00", 21 * 60 + 59, False),
        ("09:30-17:00", 9 * 60 + 30, True),
        ("09:30-17:00", 9 * 60 + 29, False),
        ("09:30-17:00", 17 * 60, False),
        ("00:00-23:59", 1439, False),
        ("", 720, True),
    ],
)
def test_hours_include_their_beginning_and_may_pass_midnight(
    hours: str, minutes: int, is_allowed: bool
) -> None:
    found = allowed_now(Limits(hours=hours), minutes, None, None)
    assert found.is_allowed is is_allowed
    assert bool(found.reason) is not is_allowed


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_hours_are_the_minutes_that_a_clock_passes_from_one_to_the_other(
    begins: int, ends: int, minutes: int
) -> None:
    hours = "{:02}:{:02}-{:02}:{:02}".format(*divmod(begins, 60), *divmod(ends, 60))
    if begins == ends:
        with pytest.raises(UserError):
            parse_hours(hours)
        return
    passed, now = set(), begins
    while now != ends:
        passed.add(now)
        now = (now + 1) % 1440
    assert allowed_now(Limits(hours=hours), minutes, None, None).is_allowed == (minutes in passed)


@pytest.mark.parametrize("hours", ["22-7", "24:00-01:00", "22:60-23:00", "22:00", "noon", "22:00-22:00", " "])
def test_hours_that_cannot_be_read_are_refused_with_an_example(hours: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_hours(hours)
    assert "22:00-07:00" in raised.value.fix


def test_battery_and_full_screen_forbid_only_where_the_owner_says_so() -> None:
    careful = Limits(on_battery=False, during_full_screen=False)
    assert allowed_now(Limits(), 0, True, True).is_allowed
    assert allowed_now(careful, 0, False, False).is_allowed
    both = allowed_now(careful, 0, True, True)
    assert (both.is_allowed, both.unknown) == (False, ())
    assert both.reason == "on battery; a full-screen program runs"


def test_what_the_system_does_not_tell_forbids_nothing_and_is_named() -> None:
    found = allowed_now(Limits(on_battery=False, during_full_screen=False), 0, None, None)
    assert found.is_allowed
    assert len(found.unknown) == 2
    assert allowed_now(Limits(), 0, None, None).unknown == ()


@pytest.mark.parametrize(
    ("cores", "n_cores", "n_pnodes", "threads"), [(None, 8, 1, 8), (3, 8, 1, 3), (16, 8, 2, 4), (1, 8, 3, 1)]
)
def test_pnodes_share_the_cores_that_are_allowed(
    cores: int | None, n_cores: int, n_pnodes: int, threads: int
) -> None:
    assert threads_for(Limits(cores=cores), n_cores, n_pnodes) == threads


def test_memory_limits_hold_for_the_kind_of_memory_they_name() -> None:
    limits = Limits(memory_bytes=100, device_memory_bytes=40, cores=2)
    cpu = device("a", free_memory_bytes=500, cores=8)
    gpu = device("b", kind="cuda", free_memory_bytes=500)
    assert limited(cpu, limits).free_memory_bytes == 100
    assert limited(cpu, limits, taken_bytes=70).free_memory_bytes == 30
    assert limited(cpu, limits, taken_bytes=700).free_memory_bytes == 0
    assert limited(gpu, limits).free_memory_bytes == 40
    assert limited(device("c", free_memory_bytes=None), limits).free_memory_bytes == 100
    assert limited(device("c", free_memory_bytes=60), limits).free_memory_bytes == 60
    assert limited(cpu, limits).cores == 2
    assert limited(cpu, Limits()) == cpu


def test_this_system_tells_or_says_that_it_does_not() -> None:
    assert on_battery() in (True, False, None)
    assert is_full_screen() in (True, False, None)
    assert verdict_now(Limits()).is_allowed


def run_python(code: str) -> str:
    """What a process prints that runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout.strip()


@linux
def test_a_process_that_keeps_to_memory_cannot_take_more() -> None:
    told = run_python("""
        import numpy
        from dcnr_app.cluster.presence import keep_to_memory
        assert keep_to_memory(200 << 20)
        kept = numpy.ones(100 << 20, numpy.uint8)
        try:
            numpy.ones(200 << 20, numpy.uint8)
        except MemoryError:
            print("refused", len(kept))
    """)
    assert told == f"refused {100 << 20}"


@linux
def test_a_process_that_keeps_to_cores_runs_on_no_others() -> None:
    told = run_python("""
        import os
        from dcnr_app.cluster.presence import keep_to_cores
        assert keep_to_cores(1)
        print(len(os.sched_getaffinity(0)))
    """)
    assert told == "1"


def test_limits_are_told_in_one_line() -> None:
    assert in_words(Limits()) == ""
    everything = Limits(
        cores=4, memory_bytes=8 << 30, device_memory_bytes=1 << 29, hours="22:00-07:00", on_battery=False,
        during_full_screen=False,
    )  # fmt: skip
    assert in_words(everything) == (
        "4 cores, 8.0 GiB of memory, 0.5 GiB of device memory, 22:00-07:00, not on battery, "
        "not while a full-screen program runs"
    )
    assert in_words(Limits(cores=1)) == "1 core"
