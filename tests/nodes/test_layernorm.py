"""layernorm.v1 against its Jacobian in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.contract import Context, TensorSpec
from dcnr_app.nodes.layernorm import LayerNorm


def test_forward_and_gradients_equal_the_closed_form(ctx: Context) -> None:
    random = np.random.default_rng(8)
    x, dy = random.normal(2.0, 3.0, size=(5, 6)), random.normal(size=(5, 6))
    gain, bias = random.normal(size=6), random.normal(size=6)
    eps = 0.01
    backend = ctx.backend
    params = {"gain": backend.from_host(gain), "bias": backend.from_host(bias)}
    vnode = LayerNorm(n_dim=6, eps=eps)
    (y,), saved = vnode.forward(ctx, params, (backend.from_host(x),))
    (dx,), gradients = vnode.backward(ctx, params, saved, (backend.from_host(dy),))
    centre = np.eye(6) - 1 / 6
    for row in range(5):
        deviation = centre @ x[row]
        std = np.sqrt(deviation @ deviation / 6 + eps)
        jacobian = (np.eye(6) / std - np.outer(deviation, deviation) / (6 * std**3)) @ centre
        np.testing.assert_allclose(backend.to_host(y)[row], gain * deviation / std + bias, rtol=1e-10)
        np.testing.assert_allclose(backend.to_host(dx)[row], (dy[row] * gain) @ jacobian, rtol=0, atol=1e-12)
    normal = (backend.to_host(y) - bias) / gain
    np.testing.assert_allclose(backend.to_host(gradients["gain"]), (dy * normal).sum(axis=0), rtol=1e-9)
    np.testing.assert_allclose(backend.to_host(gradients["bias"]), dy.sum(axis=0), rtol=1e-12)


def test_starts_as_plain_normalization() -> None:
    params = LayerNorm(n_dim=4).params()
    assert (params["gain"].init, params["bias"].init) == ("ones", "zeros")
    assert set(LayerNorm(n_dim=4, has_bias=False).params()) == {"gain"}


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layernorm\.v1 expects x of shape \(\.\.\., 4\), got \(2, 5\)"):
        LayerNorm(n_dim=4).shapes((TensorSpec((2, 5), "float32"),))


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan")])
def test_eps_not_above_zero_is_refused(eps: float) -> None:
    with pytest.raises(ValueError, match="eps > 0"):
        LayerNorm(n_dim=4, eps=eps)
