"""The decision's numbers follow their closed forms, and no order of arrival changes a bit of them."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.decision import (
    Decision,
    LossScale,
    clip_coefficient_for,
    decide,
    fold_loss,
    fold_norm,
    learning_rate_at,
    scale_after,
)
from dcnr_app.cluster.messages import Norm
from dcnr_app.nodes.graph.training import Optimizer, Schedule, TrainingSettings

PEAK = 2e-3


def schedule(
    kind: str = "cosine", *, steps: int = 100, warmup: int = 10, floor: float = 0.1
) -> TrainingSettings:
    """Settings with this schedule."""
    return TrainingSettings(
        steps=steps,
        optimizer=Optimizer(learning_rate=PEAK),
        schedule=Schedule(type=kind, warmup_steps=warmup, final_fraction=floor),
    )


@pytest.mark.parametrize(
    ("t", "fraction"),
    [
        (1, 0.1),  # linear warm-up: t / 10
        (5, 0.5),
        (10, 1.0),
        (25, 0.1 + 0.9 * (0.5 + math.sqrt(3) / 4)),  # a sixth of the way: cos 30 degrees
        (40, 0.1 + 0.9 * 0.75),  # a third: cos 60 degrees
        (55, 0.1 + 0.9 * 0.5),  # half: cos 90 degrees
        (70, 0.1 + 0.9 * 0.25),
        (100, 0.1),
        (140, 0.1),  # past the end it stays
    ],
)
def test_the_rate_rises_linearly_and_falls_along_half_a_cosine(t: int, fraction: float) -> None:
    assert learning_rate_at(schedule(), t) == pytest.approx(PEAK * fraction, rel=1e-12)


def test_a_constant_rate_only_warms_up() -> None:
    rates = [learning_rate_at(schedule("constant"), t) for t in (1, 10, 11, 100, 1000)]
    assert rates == pytest.approx([PEAK / 10, PEAK, PEAK, PEAK, PEAK])


def test_without_warm_up_the_first_update_is_near_the_peak() -> None:
    assert learning_rate_at(schedule("constant", warmup=0), 1) == PEAK
    cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 100))
    assert learning_rate_at(schedule(warmup=0), 1) == pytest.approx(PEAK * cosine)


# A subnormal floor times the peak is 0 in float64: that says nothing of the schedule.
@given(
    st.integers(1, 300), st.integers(0, 300), st.floats(0.0, 1.0, allow_subnormal=False), st.integers(1, 600)
)
def test_the_rate_stays_between_floor_and_peak_and_never_rises_after_warm_up(
    steps: int, warmup: int, floor: float, t: int
) -> None:
    settings = schedule(steps=steps, warmup=warmup, floor=floor)
    rate = learning_rate_at(settings, t)
    assert 0.0 < rate <= PEAK * (1 + 1e-12) or (floor == 0.0 and rate == pytest.approx(0.0, abs=1e-15))
    if t > warmup:
        assert rate >= PEAK * floor * (1 - 1e-12)
        assert learning_rate_at(settings, t + 1) <= rate
    else:
        assert rate == pytest.approx(PEAK * t / warmup)


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_clipping_brings_the_norm_to_the_limit_and_leaves_shorter_ones(norm: float, limit: float) -> None:
    coefficient = clip_coefficient_for(norm, limit)
    if norm <= limit:
        assert coefficient == 1.0
    else:
        assert coefficient * norm == pytest.approx(limit)
    assert clip_coefficient_for(norm, 0.0) == 1.0, "0 turns clipping off"


@given(st.dictionaries(st.integers(0, 31), st.floats(-1e9, 1e9), min_size=1), st.randoms())
def test_the_loss_is_folded_in_microbatch_order_whatever_came_first(
    sums: dict[int, float], random: Random
) -> None:
    expected = 0.0
    for microbatch in range(32):
        expected += sums.get(microbatch, 0.0)
    items = list(sums.items())
    random.shuffle(items)
    assert fold_loss(dict(items), 7) == expected / 7


@given(st.dictionaries(st.text(max_size=3), st.floats(0.0, 1e200), min_size=1), st.randoms())
def test_the_norm_is_folded_in_name_order_whatever_came_first(
    squares: dict[str, float], random: Random
) -> None:
    expected = 0.0
    for name in sorted(squares):
        expected += squares[name]
    items = [(name, Norm(square, True)) for name, square in squares.items()]
    random.shuffle(items)
    assert fold_norm(dict(items)) == (math.sqrt(expected), True)


@pytest.mark.parametrize(
    "norms",
    [
        {"a": Norm(1.0, True), "b": Norm(1.0, False)},
        {"a": Norm(math.inf, True)},
        {"a": Norm(math.nan, False), "b": Norm(1.0, True)},
        {"a": Norm(1.5e308, True), "b": Norm(1.5e308, True)},  # finite each, not together
    ],
)
def test_one_norm_that_is_not_finite_spoils_all(norms: dict[str, Norm]) -> None:
    assert fold_norm(norms) == (math.inf, False)


def decided(**changes: object) -> Decision:
    """A decision on one microbatch of two parameters with a gradient of length 5."""
    given: dict = {
        "settings": schedule(),
        "step": 9,
        "t_before": 4,
        "scale": LossScale(2.0, 3),
        "loss_sums": {0: 30.0, 1: 12.0},
        "target_count": 21,
        "norms": {"a": Norm(9.0, True), "b": Norm(16.0, True)},
    }
    return decide(**{**given, **changes})


def test_a_step_with_finite_gradients_is_an_update() -> None:
    assert decided() == Decision(
        step=9, loss=2.0, gradient_norm=5.0, skip=False, clip_coefficient=0.2,
        learning_rate=learning_rate_at(schedule(), 5), t=5, loss_scale=2.0, target_count=21,
    )  # fmt: skip


@pytest.mark.parametrize(
    "spoilt",
    [
        {"norms": {"a": Norm(9.0, True), "b": Norm(math.nan, False)}},
        {"norms": {"a": Norm(math.inf, False)}},
        {"loss_sums": {0: math.nan}},
        {"loss_sums": {0: math.inf, 1: -math.inf}},
    ],
)
def test_anything_not_finite_is_a_skip_that_changes_no_counter(spoilt: dict) -> None:
    decision = decided(**spoilt)
    assert (decision.skip, decision.step, decision.t) == (True, 9, 4)
    assert (decision.clip_coefficient, decision.learning_rate) == (0.0, 0.0)
    again = msgspec.json.decode(msgspec.json.encode(decision), type=Decision)
    assert again == decision, "a row that can be written and read"


def test_full_precision_keeps_its_scale_and_counts_finite_steps() -> None:
    scale = scale_after(LossScale(1.0, 4), skip=False, precision="float32")
    assert scale == LossScale(1.0, 5)
    assert scale_after(scale, skip=True, precision="float32") == LossScale(1.0, 0)


def test_half_precision_halves_its_scale_on_a_skip_down_to_one() -> None:
    assert scale_after(LossScale(8.0, 4), skip=True, precision="bfloat16") == LossScale(4.0, 0)
    assert scale_after(LossScale(1.0, 4), skip=True, precision="bfloat16") == LossScale(1.0, 0)
    assert scale_after(LossScale(8.0, 4), skip=False, precision="bfloat16") == LossScale(8.0, 5)
