"""rope.v1 against complex rotation."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.contract import TensorSpec
from dcnr_app.nodes.rope import Rope
from tests.contracts.vnode import HostArray, context


def rotated(backend: Backend, x: HostArray, vnode: Rope, position: int = 0) -> HostArray:
    """The VNode's output on the host."""
    outs = vnode.forward(context(backend, position=position), {}, (backend.from_host(x),)).outs
    return backend.to_host(outs[0])


def test_equals_multiplication_by_a_complex_phase(backend: Backend) -> None:
    x = np.random.default_rng(4).normal(size=(2, 7, 3 * 8))
    heads = x.reshape(2, 7, 3, 2, 4)
    frequency = 100.0 ** (-2.0 * np.arange(4) / 8)
    phase = np.exp(1j * np.arange(7)[:, None] * frequency)[None, :, None, :]
    product = (heads[..., 0, :] + 1j * heads[..., 1, :]) * phase
    expected = np.stack([product.real, product.imag], axis=-2).reshape(2, 7, 24)
    np.testing.assert_allclose(rotated(backend, x, Rope(n_heads=3, base=100.0)), expected, rtol=0, atol=1e-12)


def test_norms_of_heads_are_kept(backend: Backend) -> None:
    x = np.random.default_rng(5).normal(size=(2, 6, 16))
    y = rotated(backend, x, Rope(n_heads=2))
    lengths = np.linalg.norm(y.reshape(2, 6, 2, 8), axis=-1)
    np.testing.assert_allclose(lengths, np.linalg.norm(x.reshape(2, 6, 2, 8), axis=-1), rtol=1e-12)


def test_dot_products_depend_on_distance_only(backend: Backend) -> None:
    random = np.random.default_rng(6)
    q, k = (np.broadcast_to(random.normal(size=8), (1, 9, 8)).copy() for _ in range(2))
    vnode = Rope(n_heads=1, base=50.0)
    scores = rotated(backend, q, vnode)[0] @ rotated(backend, k, vnode)[0].T
    for distance in range(-8, 9):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0, atol=1e-12)
    assert abs(scores[0, 0] - scores[0, 3]) > 1e-3


def test_first_position_continues_a_sequence(backend: Backend) -> None:
    x = np.random.default_rng(7).normal(size=(1, 6, 8))
    whole = rotated(backend, x, Rope(n_heads=2))
    tail = rotated(backend, x[:, 4:].copy(), Rope(n_heads=2), position=4)
    np.testing.assert_allclose(tail, whole[:, 4:], rtol=0, atol=1e-12)


def test_odd_head_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 heads of an even size\), got \(1, 4, 6\)"):
        Rope(n_heads=2).shapes((TensorSpec((1, 4, 6), "float32"),))


def test_base_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"base > 0, got 0\.0"):
        Rope(n_heads=2, base=0.0)
