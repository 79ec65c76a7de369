"""add.v1 sums in input order."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.add import Add
from dcnr_app.nodes.contract import Context, TensorSpec


def test_inputs_are_added_in_order(ctx: Context) -> None:
    # In float32 1e8 + 1 is 1e8: a sum from the right would give 0.
    ins = tuple(ctx.backend.from_host(np.array([value], np.float32)) for value in (1e8, -1e8, 1.0))
    (y,), _ = Add().forward(ctx, {}, ins)
    np.testing.assert_array_equal(ctx.backend.to_host(y), [1.0])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_input_gets_the_gradient(ctx: Context, count: int) -> None:
    ins = tuple(ctx.backend.full((2,), float(index), "float32") for index in range(count))
    (y,), saved = Add().forward(ctx, {}, ins)
    np.testing.assert_array_equal(ctx.backend.to_host(y), np.full(2, sum(range(count))))
    dy = ctx.backend.full((2,), 3.0, "float32")
    in_grads, _ = Add().backward(ctx, {}, saved, (dy,))
    assert len(in_grads) == count
    assert all(gradient is dy for gradient in in_grads)


def test_unequal_shapes_are_refused_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"add\.v1 expects equal inputs"):
        Add().shapes((TensorSpec((2, 3), "float32"), TensorSpec((3,), "float32")))


def test_unequal_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="got input 1 as float16"):
        Add().shapes((TensorSpec((2,), "float32"), TensorSpec((2,), "float16")))
