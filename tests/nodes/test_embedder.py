"""embedder.v1 against one-hot products."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.embedder import Embedder


def test_lookup_and_gradient_equal_one_hot_products(ctx: Context) -> None:
    random = np.random.default_rng(2)
    weight, dy = random.normal(size=(6, 4)), random.normal(size=(2, 5, 4))
    ids = np.array([[0, 5, 5, 1, 0], [5, 2, 0, 0, 1]], np.int32)
    one_hot = np.eye(6)[ids]
    params = {"weight": ctx.backend.from_host(weight)}
    vnode = Embedder(n_tokens=6, n_dim=4)
    (y,), saved = vnode.forward(ctx, params, (ctx.backend.from_host(ids),))
    in_grads, gradients = vnode.backward(ctx, params, saved, (ctx.backend.from_host(dy),))
    np.testing.assert_array_equal(ctx.backend.to_host(y), one_hot @ weight)
    expected = np.einsum("btv,btd->vd", one_hot, dy)
    np.testing.assert_allclose(ctx.backend.to_host(gradients["weight"]), expected, rtol=1e-12)
    assert in_grads == (None,)


@pytest.mark.parametrize("bad", [-1, 6])
def test_id_outside_the_vocabulary_is_refused(ctx: Context, bad: int) -> None:
    params = {"weight": ctx.backend.zeros((6, 4), "float32")}
    ids = ctx.backend.from_host(np.array([[bad]], np.int32))
    with pytest.raises(ValueError, match=str(bad)):
        Embedder(n_tokens=6, n_dim=4).forward(ctx, params, (ids,))


def test_float_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="ids of an integer dtype, got float32"):
        Embedder(n_tokens=6, n_dim=4).shapes((TensorSpec((2, 3), "float32"),))


def test_default_spread_is_that_of_gpt2() -> None:
    assert Embedder(n_tokens=6, n_dim=4).params()["weight"].std == 0.02


def test_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="n_tokens > 0, got 0"):
        Embedder(n_tokens=0, n_dim=4)
