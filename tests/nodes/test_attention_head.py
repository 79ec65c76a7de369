"""attention_head.v1 against the plain softmax formula."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.attention_head import AttentionHead
from dcnr_app.nodes.contract import Context, TensorSpec


def softmax_head(x: np.ndarray, params: dict[str, np.ndarray], base: float) -> np.ndarray:
    """Causal softmax(q kᵀ / √h) v, row by row, with rotation as 2 x 2 matrices."""
    q, k, v = (x @ params[f"{name}_weight"].T + params[f"{name}_bias"] for name in ("query", "key", "value"))
    n_batch, n_rows, size = q.shape
    if base:
        for t in range(n_rows):
            for i in range(size // 2):
                angle = t * base ** (-2 * i / size)
                turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                for array in (q, k):
                    array[:, t, [i, i + size // 2]] = array[:, t, [i, i + size // 2]] @ turn.T
    out = np.zeros_like(v)
    for b in range(n_batch):
        for t in range(n_rows):
            weights = np.exp(q[b, t] @ k[b, : t + 1].T / np.sqrt(size))
            out[b, t] = weights @ v[b, : t + 1] / weights.sum()
    return out


@pytest.mark.parametrize("base", [0.0, 30.0])
def test_equals_the_softmax_formula(ctx: Context, base: float) -> None:
    random = np.random.default_rng(11)
    vnode = AttentionHead(n_dim=5, n_head_dim=4, rope_base=base)
    params = {name: random.normal(size=spec.shape) for name, spec in vnode.params().items()}
    x = random.normal(size=(2, 7, 5))
    device = {name: ctx.backend.from_host(array) for name, array in params.items()}
    (y,) = vnode.forward(ctx, device, (ctx.backend.from_host(x),)).outs
    np.testing.assert_allclose(ctx.backend.to_host(y), softmax_head(x, params, base), rtol=1e-10, atol=1e-12)


def test_later_tokens_change_no_earlier_output(ctx: Context) -> None:
    random = np.random.default_rng(12)
    vnode = AttentionHead(n_dim=5, n_head_dim=4)
    params = {name: ctx.backend.from_host(random.normal(size=s.shape)) for name, s in vnode.params().items()}
    x = random.normal(size=(1, 6, 5))
    changed = x.copy()
    changed[:, 4:] = random.normal(size=(1, 2, 5))
    first, second = (
        ctx.backend.to_host(vnode.forward(ctx, params, (ctx.backend.from_host(array),)).outs[0])
        for array in (x, changed)
    )
    np.testing.assert_array_equal(first[:, :4], second[:, :4])
    assert np.all(np.abs(first[:, 4:] - second[:, 4:]).max(axis=-1) > 1e-6)


def test_flops_count_projections_and_half_the_scores() -> None:
    spec = TensorSpec((2, 8, 5), "float32")
    projections, products = 3 * 2 * 16 * 5 * 4, 2 * (2 * 2 * 8 * 8 * 4) // 2
    assert AttentionHead(n_dim=5, n_head_dim=4).flops((spec,)) == projections + products


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attention_head\.v1 expects x of shape .*5\), got \(2, 3, 4\)"):
        AttentionHead(n_dim=5, n_head_dim=4).shapes((TensorSpec((2, 3, 4), "float32"),))


def test_odd_head_with_rotation_is_refused() -> None:
    with pytest.raises(ValueError, match="even n_head_dim with rope, got 3"):
        AttentionHead(n_dim=5, n_head_dim=3, rope_base=10.0)
