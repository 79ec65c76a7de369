"""Faults come at regular times, in a drawn order, with at most one silent one in five."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.chaos.faults import KINDS, SILENT, fault_order, fault_times_s, parse_kinds
from dcnr_app.errors import UserError

some_kinds = st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True).filter(
    lambda kinds: kinds != [SILENT]
)


def drawing(seed: int) -> Callable[[int], int]:
    return random.Random(seed).randrange  # noqa: S311


@settings(deadline=None)
@given(some_kinds, st.integers(1, 60), st.integers(0, 9))
def test_of_any_five_faults_in_a_row_at_most_one_is_silent(kinds: list[str], n: int, seed: int) -> None:
    order = fault_order(kinds, n, drawing(seed))  # type: ignore[arg-type]
    assert len(order) == n
    assert set(order) <= set(kinds)
    assert all(order[i : i + 5].count(SILENT) <= 1 for i in range(n))


@settings(deadline=None)
@given(some_kinds, st.integers(1, 60), st.integers(0, 9))
def test_every_loud_kind_comes_as_often_as_the_others(kinds: list[str], n: int, seed: int) -> None:
    counts = Counter(fault_order(kinds, n, drawing(seed)))  # type: ignore[arg-type]
    loud = [counts[kind] for kind in kinds if kind != SILENT]  # type: ignore[index]
    assert max(loud) - min(loud) <= 1


def test_ten_minutes_with_a_fault_a_minute_have_ten_faults_of_all_kinds_two_of_them_silent() -> None:
    times = fault_times_s(600.0, 60.0)
    assert times == tuple(30.0 + 60.0 * i for i in range(10))
    order = fault_order(tuple(KINDS), len(times), drawing(0))
    assert set(order) == set(KINDS)
    assert order.count(SILENT) == 2


def test_the_same_draws_give_the_same_order_and_others_another() -> None:
    orders = {fault_order(tuple(KINDS), 20, drawing(seed)) for seed in (1, 1, 2, 3)}
    assert len(orders) == 3


@pytest.mark.parametrize(("duration_s", "every_s"), [(10.0, 11.0), (0.1, 1.0)])
def test_too_little_time_for_a_fault_is_refused(duration_s: float, every_s: float) -> None:
    with pytest.raises(UserError, match="no room for a fault"):
        fault_times_s(duration_s, every_s)


def test_silence_alone_is_refused_since_it_would_be_more_than_one_in_five() -> None:
    with pytest.raises(UserError, match="more than one silent fault in five"):
        fault_order((SILENT,), 3, drawing(0))


def test_kinds_are_read_by_name_and_an_unknown_one_is_refused_with_those_known() -> None:
    assert parse_kinds("") == tuple(KINDS)
    assert parse_kinds("stop, kill") == ("kill", "stop")
    with pytest.raises(UserError, match="no kind of fault 'earthquake'") as refused:
        parse_kinds("kill,earthquake")
    assert "orchestrator" in refused.value.why
