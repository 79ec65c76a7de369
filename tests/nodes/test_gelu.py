"""gelu.v1 against its formula and the exact Gaussian form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.gelu import Gelu


def test_equals_the_tanh_formula(ctx: Context) -> None:
    x = np.linspace(-6.0, 6.0, 97)
    (y,) = Gelu().forward(ctx, {}, (ctx.backend.from_host(x),)).outs
    # tanh u = 1 − 2 / (e^{2u} + 1), so y = x (1 − 1 / (e^{2u} + 1))
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    np.testing.assert_allclose(ctx.backend.to_host(y), x * (1 - 1 / (np.exp(2 * u) + 1)), rtol=0, atol=1e-14)


def test_is_close_to_the_gaussian_form(ctx: Context) -> None:
    x = np.linspace(-4.0, 4.0, 33)
    (y,) = Gelu().forward(ctx, {}, (ctx.backend.from_host(x),)).outs
    exact = [value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x]
    np.testing.assert_allclose(ctx.backend.to_host(y), exact, rtol=0, atol=1e-3)


def test_large_inputs_stay_finite(ctx: Context) -> None:
    x = ctx.backend.from_host(np.array([-1e4, -50.0, 50.0, 1e4], np.float32))
    (y,), saved = Gelu().forward(ctx, {}, (x,))
    (dx,), _ = Gelu().backward(ctx, {}, saved, (ctx.backend.from_host(np.ones(4, np.float32)),))
    np.testing.assert_array_equal(ctx.backend.to_host(y), [0.0, 0.0, 50.0, 1e4])
    np.testing.assert_array_equal(ctx.backend.to_host(dx), [0.0, 0.0, 1.0, 1.0])


def test_integer_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gelu\.v1 expects x of a float dtype, got int32"):
        Gelu().shapes((TensorSpec((2,), "int32"),))
