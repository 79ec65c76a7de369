"""concat.v1 against np.concatenate."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.concat import Concat
from dcnr_app.nodes.contract import Context, TensorSpec


@pytest.mark.parametrize("axis", [1, -2])
def test_equals_numpy_and_gradients_part_again(ctx: Context, axis: int) -> None:
    parts = [np.random.default_rng(length).normal(size=(2, length, 3)) for length in (3, 1, 2)]
    (y,), saved = Concat(axis=axis).forward(ctx, {}, tuple(ctx.backend.from_host(part) for part in parts))
    np.testing.assert_array_equal(ctx.backend.to_host(y), np.concatenate(parts, axis=1))
    in_grads, _ = Concat(axis=axis).backward(ctx, {}, saved, (y,))
    for gradient, part in zip(in_grads, parts, strict=True):
        np.testing.assert_array_equal(ctx.backend.to_host(gradient), part)


def test_more_than_ten_inputs_keep_their_order(ctx: Context) -> None:
    parts = tuple(ctx.backend.full((1, length), float(length), "float32") for length in range(1, 13))
    (y,), saved = Concat().forward(ctx, {}, parts)
    in_grads, _ = Concat().backward(ctx, {}, dict(sorted(saved.items())), (y,))
    assert [gradient.shape for gradient in in_grads] == [part.shape for part in parts]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TensorSpec((2, 3, 4), "float32"), "differ in axis 1 only"),
        (TensorSpec((2, 3), "float32"), "differ in axis 1 only"),
        (TensorSpec((2, 3, 5), "float16"), "expects one dtype: float32, got input 1 as float16"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(other: TensorSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Concat(axis=1).shapes((TensorSpec((2, 1, 5), "float32"), other))
