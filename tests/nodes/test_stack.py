"""stack.v1 joins heads along the last axis."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.stack import Stack


@pytest.mark.parametrize("count", [1, 2, 4])
def test_heads_lie_side_by_side_and_gradients_part_again(ctx: Context, count: int) -> None:
    heads = [np.random.default_rng(seed).normal(size=(2, 3, 5)) for seed in range(count)]
    (y,), saved = Stack().forward(ctx, {}, tuple(ctx.backend.from_host(head) for head in heads))
    for index, head in enumerate(heads):
        np.testing.assert_array_equal(ctx.backend.to_host(y)[..., 5 * index : 5 * index + 5], head)
    in_grads, _ = Stack().backward(ctx, {}, saved, (y,))
    for gradient, head in zip(in_grads, heads, strict=True):
        np.testing.assert_array_equal(ctx.backend.to_host(gradient), head)


def test_unequal_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"input 0 is float32 \(2, 3\), got input 1 as float32 \(2, 4\)"):
        Stack().shapes((TensorSpec((2, 3), "float32"), TensorSpec((2, 4), "float32")))
