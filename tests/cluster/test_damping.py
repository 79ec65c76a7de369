"""A value that flaps is not followed at every turn, and a value that stays is followed soon."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.damping import LAST_REPEAT_MS, MAX_SETTLE_MS, SETTLE_MS, Damper, Repeater


def test_a_change_comes_into_force_once_it_has_settled() -> None:
    damper = Damper("old")
    assert [damper.observe("new", now) for now in (0.0, SETTLE_MS - 1, SETTLE_MS, SETTLE_MS + 1)] == [
        False,
        False,
        True,
        False,
    ]
    assert damper.value == "new"


def test_a_value_that_comes_back_at_once_changes_nothing() -> None:
    damper = Damper("old")
    assert not damper.observe("new", 0.0)
    assert not any(damper.observe("old", float(now)) for now in range(500, 10_000, 500))


def test_a_new_address_is_followed_within_five_seconds_when_looked_at_every_second() -> None:
    damper = Damper("old")
    damper.observe("old", 0.0)
    assert next(now for now in range(1000, 60_000, 1000) if damper.observe("new", float(now))) <= 5_000


def test_an_interface_that_flaps_for_ten_minutes_causes_no_storm() -> None:
    damper, changes = Damper(0), 0
    for now in range(0, 600_000, 500):
        changes += damper.observe((now // 2_000) % 2, float(now))  # two seconds up, two seconds down
    assert changes <= 30


def test_after_a_storm_the_value_that_stays_is_followed() -> None:
    damper = Damper(0)
    for now in range(0, 100_000, 1_000):
        damper.observe((now // 2_000) % 2, float(now))
    last_ms = 100_000.0
    followed = [damper.observe(7, last_ms + later) for later in (0.0, MAX_SETTLE_MS)]
    assert followed == [False, True]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 3_000)), max_size=80))
def test_only_a_value_that_stayed_comes_into_force(steps: list[tuple[int, float]]) -> None:
    damper, now, since, last = Damper(0), 0.0, 0.0, 0
    for value, later in steps:
        now += later
        if value != last:
            last, since = value, now
        if damper.observe(value, now):
            assert now - since >= SETTLE_MS
            assert damper.value == value


def test_a_repeat_comes_at_once_and_then_after_twice_the_time_up_to_a_minute() -> None:
    repeater = Repeater()
    said = [now for now in range(0, 300_000, 100) if repeater.is_due(float(now))]
    gaps = [later - now for now, later in itertools.pairwise(said)]
    assert said[0] == 0
    assert gaps == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_a_change_starts_the_repeats_over() -> None:
    repeater = Repeater()
    for now in range(0, 300_000, 100):
        repeater.is_due(float(now))
    repeater.start_over()
    assert repeater.is_due(300_000.0)
    assert not repeater.is_due(300_999.0)
    assert repeater.is_due(301_000.0)


def test_in_an_hour_without_change_it_is_said_no_more_than_once_a_minute() -> None:
    repeater = Repeater()
    n_said = sum(repeater.is_due(float(now)) for now in range(0, 3_600_000, 500))
    assert n_said <= 3_600_000 / LAST_REPEAT_MS + 7
