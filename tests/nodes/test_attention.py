"""attention.v1 against its heads, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.nodes.attention import Attention
from dcnr_app.nodes.attention_head import AttentionHead
from dcnr_app.nodes.contract import Context, TensorSpec


@pytest.mark.parametrize("base", [0.0, 30.0])
@pytest.mark.parametrize("has_bias", [True, False])
def test_equals_its_heads_side_by_side(ctx: Context, base: float, has_bias: bool) -> None:
    random = np.random.default_rng(13)
    backend = ctx.backend
    many = Attention(n_dim=6, n_heads=3, n_head_dim=4, rope_base=base, has_bias=has_bias)
    one = AttentionHead(n_dim=6, n_head_dim=4, rope_base=base, has_bias=has_bias)
    params = {name: random.normal(size=spec.shape) for name, spec in many.params().items()}
    x, dy = backend.from_host(random.normal(size=(2, 7, 6))), random.normal(size=(2, 7, 12))
    device = {name: backend.from_host(array) for name, array in params.items()}
    (y,), saved = many.forward(ctx, device, (x,))
    (dx,), gradients = many.backward(ctx, device, saved, (backend.from_host(dy),))
    dx_of_heads = np.zeros((2, 7, 6))
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        own = {name: backend.from_host(array[rows].copy()) for name, array in params.items()}
        (y_head,), saved_head = one.forward(ctx, own, (x,))
        dy_head = backend.from_host(dy[..., rows].copy())
        (dx_head,), gradients_head = one.backward(ctx, own, saved_head, (dy_head,))
        np.testing.assert_allclose(backend.to_host(y)[..., rows], backend.to_host(y_head), rtol=1e-12)
        dx_of_heads += backend.to_host(dx_head)
        for name in params:
            np.testing.assert_allclose(
                backend.to_host(gradients[name])[rows], backend.to_host(gradients_head[name]), atol=1e-12
            )
    np.testing.assert_allclose(backend.to_host(dx), dx_of_heads, atol=1e-11)


def test_one_head_is_an_attention_head_bit_for_bit(ctx: Context) -> None:
    random = np.random.default_rng(14)
    many, one = Attention(n_dim=6, n_heads=1, n_head_dim=4), AttentionHead(n_dim=6, n_head_dim=4)
    params = {n: ctx.backend.from_host(random.normal(size=s.shape)) for n, s in many.params().items()}
    x = ctx.backend.from_host(random.normal(size=(2, 7, 6)))
    first, second = (ctx.backend.to_host(v.forward(ctx, params, (x,)).outs[0]) for v in (many, one))
    assert first.tobytes() == second.tobytes()


def test_saved_never_holds_a_square_of_tokens(ctx: Context) -> None:
    vnode = Attention(n_dim=4, n_heads=2, n_head_dim=2)
    params = {name: ctx.backend.zeros(spec.shape, "float32") for name, spec in vnode.params().items()}
    _, saved = vnode.forward(ctx, params, (ctx.backend.zeros((1, 50, 4), "float32"),))
    assert max(int(np.prod(array.shape)) for array in saved.values()) == 50 * 4


def test_shapes_and_parameters_join_the_heads() -> None:
    vnode = Attention(n_dim=6, n_heads=3, n_head_dim=4)
    assert vnode.shapes((TensorSpec((2, 5, 6), "float32"),)) == (TensorSpec((2, 5, 12), "float32"),)
    assert {spec.shape for spec in vnode.params().values()} == {(12, 6), (12,)}


@pytest.mark.parametrize("field", ["n_dim", "n_heads", "n_head_dim"])
def test_empty_sizes_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=rf"attention\.v1 expects {field} > 0, got 0"):
        Attention(**{"n_dim": 4, "n_heads": 2, "n_head_dim": 2, field: 0})


def test_odd_head_with_rotation_is_refused() -> None:
    with pytest.raises(ValueError, match="even n_head_dim with rope, got 3"):
        Attention(n_dim=5, n_heads=2, n_head_dim=3, rope_base=10.0)
