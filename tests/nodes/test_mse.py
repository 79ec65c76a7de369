"""mse.v1 against the expanded square."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.mse import Mse


def test_sum_and_gradients_equal_the_formula(ctx: Context) -> None:
    p, t = (np.random.default_rng(seed).normal(size=(3, 4)) for seed in (21, 22))
    (loss,), saved = Mse().forward(ctx, {}, (ctx.backend.from_host(p), ctx.backend.from_host(t)))
    (dp, dt), _ = Mse().backward(ctx, {}, saved, (ctx.backend.full((), 0.5, "float64"),))
    expanded = np.vdot(p, p) - 2 * np.vdot(p, t) + np.vdot(t, t)
    assert float(ctx.backend.to_host(loss)) == pytest.approx(expanded, rel=1e-12)
    np.testing.assert_allclose(ctx.backend.to_host(dp), p - t, rtol=1e-12)
    np.testing.assert_allclose(ctx.backend.to_host(dt), t - p, rtol=1e-12)


def test_half_precision_sums_in_float32(ctx: Context) -> None:
    # 4096 squares of 1: float16 would stop at 2048.
    ones, zeros = ctx.backend.full((4096,), 1.0, "float16"), ctx.backend.zeros((4096,), "float16")
    (loss,), saved = Mse().forward(ctx, {}, (ones, zeros))
    assert ctx.backend.dtype_of(loss) == "float32"
    assert float(ctx.backend.to_host(loss)) == 4096.0
    (dp, _), _ = Mse().backward(ctx, {}, saved, (ctx.backend.full((), 1.0, "float32"),))
    assert ctx.backend.dtype_of(dp) == "float16"


def test_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mse\.v1 expects equal inputs"):
        Mse().shapes((TensorSpec((2, 3), "float32"), TensorSpec((3,), "float32")))


def test_integer_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="prediction of a float dtype, got int32"):
        Mse().shapes((TensorSpec((2,), "int32"), TensorSpec((2,), "int32")))
