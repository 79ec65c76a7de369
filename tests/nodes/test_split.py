"""split.v1 against np.split."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.split import Split


@pytest.mark.parametrize("axis", [-1, 1, -2, 2])
def test_equals_numpy_and_gradients_join_again(ctx: Context, axis: int) -> None:
    x = np.random.default_rng(15).normal(size=(2, 6, 3))
    n_outputs = x.shape[axis] // 2 if x.shape[axis] == 6 else 3
    vnode = Split(n_outputs=n_outputs, axis=axis)
    outs, saved = vnode.forward(ctx, {}, (ctx.backend.from_host(x),))
    for out, expected in zip(outs, np.split(x, n_outputs, axis=axis), strict=True):
        np.testing.assert_array_equal(ctx.backend.to_host(out), expected)
    (dx,), _ = vnode.backward(ctx, {}, saved, outs)
    np.testing.assert_array_equal(ctx.backend.to_host(dx), x)


def test_unequal_parts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"axis -1 divisible by 4, got \(2, 6\)"):
        Split(n_outputs=4).shapes((TensorSpec((2, 6), "float32"),))


def test_missing_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an input with axis 2, got shape \(2, 6\)"):
        Split(n_outputs=2, axis=2).shapes((TensorSpec((2, 6), "float32"),))
