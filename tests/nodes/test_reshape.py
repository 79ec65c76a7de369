"""reshape.v1 keeps the batch."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.reshape import Reshape


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((12,), (2, 12)),
        ((-1,), (2, 12)),
        ((2, -1), (2, 2, 6)),
        ((4, 3), (2, 4, 3)),
        ((1, 12, -1), (2, 1, 12, 1)),
    ],
)
def test_samples_are_reshaped_row_by_row(
    ctx: Context, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    (y,), saved = Reshape(shape=shape).forward(ctx, {}, (ctx.backend.from_host(x),))
    assert y.shape == expected
    np.testing.assert_array_equal(ctx.backend.to_host(y).ravel(), np.arange(24.0))
    (dx,), _ = Reshape(shape=shape).backward(ctx, {}, saved, (y,))
    np.testing.assert_array_equal(ctx.backend.to_host(dx), x)


def test_empty_shape_leaves_the_batch_alone(ctx: Context) -> None:
    (y,), _ = Reshape(shape=()).forward(ctx, {}, (ctx.backend.zeros((3, 1), "float32"),))
    assert y.shape == (3,)


@pytest.mark.parametrize("shape", [(5,), (5, -1), (24,), ()])
def test_shape_that_does_not_fit_a_sample_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expects a sample that fits .*, got \(3, 4\)"):
        Reshape(shape=shape).shapes((TensorSpec((2, 3, 4), "float32"),))


@pytest.mark.parametrize("shape", [(-1, -1), (0,), (-2, 3)])
def test_unclear_lengths_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at most one -1"):
        Reshape(shape=shape)


def test_scalar_input_is_refused() -> None:
    with pytest.raises(ValueError, match="batch axis"):
        Reshape(shape=(1,)).shapes((TensorSpec((), "float32"),))
