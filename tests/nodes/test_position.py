"""position.v1 against plain indexing."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.position import Position
from tests.contracts.vnode import context


@pytest.mark.parametrize("first", [0, 1, 3])
def test_rows_from_the_first_position_are_added(backend: Backend, first: int) -> None:
    random = np.random.default_rng(3)
    weight, x, dy = random.normal(size=(5, 3)), random.normal(size=(4, 2, 3)), random.normal(size=(4, 2, 3))
    ctx = context(backend, position=first)
    params = {"weight": backend.from_host(weight)}
    vnode = Position(n_positions=5, n_dim=3)
    (y,), saved = vnode.forward(ctx, params, (backend.from_host(x),))
    (dx,), gradients = vnode.backward(ctx, params, saved, (backend.from_host(dy),))
    expected = np.zeros((5, 3))
    expected[first : first + 2] = dy.sum(axis=0)
    np.testing.assert_allclose(backend.to_host(y), x + weight[[first, first + 1]], rtol=1e-12)
    np.testing.assert_allclose(backend.to_host(gradients["weight"]), expected, rtol=1e-12)
    np.testing.assert_array_equal(backend.to_host(dx), dy)


def test_positions_past_the_table_are_refused(backend: Backend) -> None:
    params = {"weight": backend.zeros((5, 3), "float32")}
    x = backend.zeros((1, 2, 3), "float32")
    with pytest.raises(ValueError, match="expects positions below 5, got 5"):
        Position(n_positions=5, n_dim=3).forward(context(backend, position=4), params, (x,))


def test_too_many_tokens_are_refused_before_any_array_exists() -> None:
    with pytest.raises(ValueError, match="at most 5 tokens, got 6"):
        Position(n_positions=5, n_dim=3).shapes((TensorSpec((1, 6, 3), "float32"),))


def test_missing_token_axis_is_refused(ctx: Context) -> None:
    with pytest.raises(ValueError, match=r"\(batch, tokens, 3\), got \(6, 3\)"):
        Position(n_positions=5, n_dim=3).shapes((TensorSpec((6, 3), "float32"),))


def test_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="n_positions > 0, got 0"):
        Position(n_positions=0, n_dim=3)
