"""multiply.v1 against the polarization identity."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.multiply import Multiply


def test_forward_and_gradients(ctx: Context) -> None:
    x, y, dz = (np.random.default_rng(seed).normal(size=(3, 4)) for seed in (16, 17, 18))
    (z,), saved = Multiply().forward(ctx, {}, (ctx.backend.from_host(x), ctx.backend.from_host(y)))
    (dx, dy), _ = Multiply().backward(ctx, {}, saved, (ctx.backend.from_host(dz),))
    np.testing.assert_allclose(ctx.backend.to_host(z), ((x + y) ** 2 - (x - y) ** 2) / 4, atol=1e-14)
    np.testing.assert_array_equal(ctx.backend.to_host(dx), dz * y)
    np.testing.assert_array_equal(ctx.backend.to_host(dy), dz * x)


def test_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiply\.v1 expects equal inputs"):
        Multiply().shapes((TensorSpec((2, 3), "float32"), TensorSpec((3, 2), "float32")))


def test_third_input_is_refused() -> None:
    with pytest.raises(ValueError, match="expects 2 inputs, got 3"):
        Multiply().shapes((TensorSpec((2,), "float32"),) * 3)
