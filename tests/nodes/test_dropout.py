"""dropout.v1: statistics, and that the mask is a function of the key alone."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.contract import Context
from dcnr_app.nodes.dropout import Dropout
from tests.contracts.vnode import HostArray, context


def dropped(backend: Backend, rate: float, key: tuple[int, ...], size: int = 20000) -> HostArray:
    """Dropout of ones."""
    ones = backend.full((size,), 1.0, "float32")
    return backend.to_host(Dropout(rate=rate).forward(context(backend, key=key), {}, (ones,)).outs[0])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_zeros_is_the_rate_and_the_mean_is_kept(backend: Backend, rate: float) -> None:
    y = dropped(backend, rate, (1, 2, 3, 4))
    # Five standard deviations of a binomial share, for a fixed key: it passes always or never.
    assert abs(np.mean(y == 0) - rate) < 5 * np.sqrt(rate * (1 - rate) / y.size)
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=1e-6)


def test_same_key_gives_the_same_mask(backend: Backend) -> None:
    assert dropped(backend, 0.5, (1, 2, 3, 4)).tobytes() == dropped(backend, 0.5, (1, 2, 3, 4)).tobytes()


@pytest.mark.parametrize("place", range(4))
def test_every_part_of_the_key_matters(backend: Backend, place: int) -> None:
    key = [1, 2, 3, 4]
    key[place] += 1
    same = dropped(backend, 0.5, (1, 2, 3, 4)) == dropped(backend, 0.5, tuple(key))
    assert 0.45 < np.mean(same) < 0.55


def test_backward_uses_the_saved_mask_whatever_the_key(backend: Backend) -> None:
    x = backend.full((200,), 3.0, "float64")
    vnode = Dropout(rate=0.5)
    (y,), saved = vnode.forward(context(backend, key=(1, 1, 1, 1)), {}, (x,))
    (dx,), _ = vnode.backward(context(backend, key=(9, 9, 9, 9)), {}, saved, (x,))
    np.testing.assert_array_equal(backend.to_host(dx), backend.to_host(y))


def test_is_the_identity_outside_training(backend: Backend) -> None:
    x = backend.full((5,), 3.0, "float32")
    forward = Dropout(rate=0.5).forward(context(backend, is_training=False), {}, (x,))
    assert forward.outs[0] is x
    assert forward.saved == {}


def test_rate_zero_is_the_identity_with_its_gradient(ctx: Context) -> None:
    x, dy = ctx.backend.full((5,), 3.0, "float32"), ctx.backend.full((5,), 2.0, "float32")
    (y,), saved = Dropout(rate=0.0).forward(ctx, {}, (x,))
    (dx,), _ = Dropout(rate=0.0).backward(ctx, {}, saved, (dy,))
    assert y is x
    assert dx is dy


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rate_outside_zero_to_one_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="0 <= rate < 1, got"):
        Dropout(rate=rate)
