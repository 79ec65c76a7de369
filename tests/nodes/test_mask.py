"""mask.v1 against np.tri and plain indexing."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.mask import Mask
from tests.contracts.vnode import context


def test_causal_hides_later_columns(ctx: Context) -> None:
    x = np.random.default_rng(9).normal(size=(2, 4, 4))
    (y,) = Mask().forward(ctx, {}, (ctx.backend.from_host(x),)).outs
    np.testing.assert_array_equal(ctx.backend.to_host(y), np.where(np.tri(4, dtype=bool), x, -1e30))


def test_causal_row_counts_from_the_first_position(backend: Backend) -> None:
    x = np.ones((1, 2, 5))
    ctx = context(backend, position=2)
    (y,) = Mask(fill=0.0).forward(ctx, {}, (backend.from_host(x),)).outs
    np.testing.assert_array_equal(backend.to_host(y)[0], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])


def test_causal_gradient_is_zero_where_hidden(ctx: Context) -> None:
    dy = ctx.backend.from_host(np.ones((1, 3, 3)))
    (dx,), _ = Mask().backward(ctx, {}, {}, (dy,))
    np.testing.assert_array_equal(ctx.backend.to_host(dx)[0], np.tri(3))


def test_padding_hides_whole_tokens(ctx: Context) -> None:
    x = np.random.default_rng(10).normal(size=(2, 3, 2))
    ids = np.array([[4, 7, 4], [1, 4, 2]], np.int32)
    vnode = Mask(kind="padding", pad_id=4, fill=5.0)
    (y,), saved = vnode.forward(ctx, {}, (ctx.backend.from_host(x), ctx.backend.from_host(ids)))
    expected = x.copy()
    expected[ids == 4] = 5.0
    np.testing.assert_array_equal(ctx.backend.to_host(y), expected)
    (dx, dids), _ = vnode.backward(ctx, {}, saved, (ctx.backend.from_host(np.ones_like(x)),))
    np.testing.assert_array_equal(ctx.backend.to_host(dx), np.repeat((ids != 4)[..., None], 2, axis=-1))
    assert dids is None


def test_padding_fills_with_zero_unless_told(ctx: Context) -> None:
    ids = ctx.backend.from_host(np.zeros((1, 2), np.int32))
    x = ctx.backend.from_host(np.ones((1, 2)))
    (y,) = Mask(kind="padding").forward(ctx, {}, (x, ids)).outs
    np.testing.assert_array_equal(ctx.backend.to_host(y), [[0.0, 0.0]])


def test_padding_without_ids_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mask\.v1 \(padding\) expects 2 inputs, got 1"):
        Mask(kind="padding").shapes((TensorSpec((2, 3), "float32"),))


def test_padding_with_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ids of shape \(2, 3\), got \(2, 4\)"):
        Mask(kind="padding").shapes((TensorSpec((2, 3, 5), "float32"), TensorSpec((2, 4), "int32")))


def test_one_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="two axes or more"):
        Mask().shapes((TensorSpec((3,), "float32"),))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'full'"):
        Mask(kind="full")  # type: ignore[arg-type]  # what is tested
