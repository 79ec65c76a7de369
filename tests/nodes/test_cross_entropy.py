"""cross_entropy.v1 against probabilities in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.cross_entropy import CrossEntropy


def test_sum_and_gradient_equal_the_formula(ctx: Context) -> None:
    logits = np.random.default_rng(19).normal(size=(2, 3, 5))
    targets = np.array([[0, -1, 4], [2, 2, -1]], np.int32)
    (loss,), saved = CrossEntropy().forward(
        ctx, {}, (ctx.backend.from_host(logits), ctx.backend.from_host(targets))
    )
    seed = ctx.backend.full((), 0.25, "float64")
    (dlogits, dtargets), _ = CrossEntropy().backward(ctx, {}, saved, (seed,))
    total = 0.0
    for row in np.ndindex(2, 3):
        probabilities = np.exp(logits[row]) / np.exp(logits[row]).sum()
        expected = np.zeros(5)
        if targets[row] >= 0:
            total -= math.log(probabilities[targets[row]])
            expected = 0.25 * (probabilities - np.eye(5)[targets[row]])
        np.testing.assert_allclose(ctx.backend.to_host(dlogits)[row], expected, rtol=0, atol=1e-14)
    assert float(ctx.backend.to_host(loss)) == pytest.approx(total, rel=1e-12)
    assert dtargets is None


def test_equal_logits_cost_the_log_of_the_vocabulary(ctx: Context) -> None:
    logits, targets = ctx.backend.zeros((4, 7), "float32"), ctx.backend.zeros((4,), "int32")
    (loss,) = CrossEntropy().forward(ctx, {}, (logits, targets)).outs
    assert float(ctx.backend.to_host(loss)) == pytest.approx(4 * math.log(7), rel=1e-6)


def test_huge_logits_stay_finite(ctx: Context) -> None:
    logits = ctx.backend.from_host(np.array([[1e4, 0.0], [0.0, 1e4]], np.float32))
    targets = ctx.backend.from_host(np.array([0, 0], np.int32))
    (loss,), saved = CrossEntropy().forward(ctx, {}, (logits, targets))
    (dlogits, _), _ = CrossEntropy().backward(ctx, {}, saved, (ctx.backend.full((), 1.0, "float32"),))
    assert float(ctx.backend.to_host(loss)) == pytest.approx(1e4)
    np.testing.assert_allclose(ctx.backend.to_host(dlogits), [[0, 0], [-1, 1]], atol=1e-6)


def test_only_ignored_targets_cost_nothing(ctx: Context) -> None:
    logits = ctx.backend.from_host(np.random.default_rng(20).normal(size=(3, 4)))
    targets = ctx.backend.from_host(np.full(3, -1, np.int32))
    (loss,), saved = CrossEntropy().forward(ctx, {}, (logits, targets))
    (dlogits, _), _ = CrossEntropy().backward(ctx, {}, saved, (ctx.backend.full((), 1.0, "float64"),))
    assert float(ctx.backend.to_host(loss)) == 0.0
    np.testing.assert_array_equal(ctx.backend.to_host(dlogits), np.zeros((3, 4)))


def test_half_precision_logits_give_a_float32_sum() -> None:
    specs = (TensorSpec((2, 5), "bfloat16"), TensorSpec((2,), "int32"))
    assert CrossEntropy().shapes(specs) == (TensorSpec((), "float32"),)


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets of shape \(2, 3\) for logits \(2, 3, 5\), got \(3, 2\)"):
        CrossEntropy().shapes((TensorSpec((2, 3, 5), "float32"), TensorSpec((3, 2), "int32")))


def test_float_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="targets of an integer dtype, got float32"):
        CrossEntropy().shapes((TensorSpec((2, 5), "float32"), TensorSpec((2,), "float32")))


def test_it_is_a_cost() -> None:
    assert CrossEntropy.is_cost
