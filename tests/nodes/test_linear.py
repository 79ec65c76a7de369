"""linear.v1 against einsum."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.linear import Linear


def test_forward_and_gradients_equal_einsum(ctx: Context) -> None:
    random = np.random.default_rng(1)
    x, weight, bias = random.normal(size=(2, 3, 4)), random.normal(size=(5, 4)), random.normal(size=5)
    dy = random.normal(size=(2, 3, 5))
    backend = ctx.backend
    params = {"weight": backend.from_host(weight), "bias": backend.from_host(bias)}
    vnode = Linear(n_in=4, n_out=5)
    (y,), saved = vnode.forward(ctx, params, (backend.from_host(x),))
    (dx,), gradients = vnode.backward(ctx, params, saved, (backend.from_host(dy),))
    np.testing.assert_allclose(backend.to_host(y), np.einsum("bti,oi->bto", x, weight) + bias, rtol=1e-12)
    np.testing.assert_allclose(backend.to_host(dx), np.einsum("bto,oi->bti", dy, weight), rtol=1e-12)
    np.testing.assert_allclose(
        backend.to_host(gradients["weight"]), np.einsum("bto,bti->oi", dy, x), rtol=1e-12
    )
    np.testing.assert_allclose(backend.to_host(gradients["bias"]), dy.sum(axis=(0, 1)), rtol=1e-12)


def test_without_bias_there_is_one_parameter() -> None:
    assert set(Linear(n_in=2, n_out=3, has_bias=False).params()) == {"weight"}


def test_default_spread_is_one_over_root_of_width() -> None:
    assert Linear(n_in=16, n_out=3).params()["weight"].std == 0.25
    assert Linear(n_in=16, n_out=3, init_std=0.02).params()["weight"].std == 0.02


def test_flops_count_two_per_multiply_add() -> None:
    assert Linear(n_in=4, n_out=5).flops((TensorSpec((2, 3, 4), "float32"),)) == 2 * 6 * 4 * 5


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 3)])
def test_empty_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"linear\.v1 expects n_\w+ > 0, got"):
        Linear(n_in=sizes[0], n_out=sizes[1])


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expects x of shape \(\.\.\., 4\), got \(2, 3\)"):
        Linear(n_in=4, n_out=5).shapes((TensorSpec((2, 3), "float32"),))


def test_integer_input_is_refused() -> None:
    with pytest.raises(ValueError, match="float dtype, got int32"):
        Linear(n_in=4, n_out=5).shapes((TensorSpec((2, 4), "int32"),))
