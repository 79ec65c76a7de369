"""relu.v1 against |x|."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.relu import Relu


def test_forward_and_gradient(ctx: Context) -> None:
    x = np.array([-2.0, -0.5, 0.0, 0.5, 3.0])
    (y,), saved = Relu().forward(ctx, {}, (ctx.backend.from_host(x),))
    (dx,), _ = Relu().backward(ctx, {}, saved, (ctx.backend.from_host(np.full(5, 7.0)),))
    np.testing.assert_array_equal(ctx.backend.to_host(y), (x + np.abs(x)) / 2)
    np.testing.assert_array_equal(ctx.backend.to_host(dx), [0, 0, 0, 7, 7])


def test_integer_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"relu\.v1 expects x of a float dtype, got int32"):
        Relu().shapes((TensorSpec((2,), "int32"),))
