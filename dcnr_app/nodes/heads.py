"""Projections, rotation and causal attention over heads: what attention_head and attention share.

B batch · T tokens · D model width · H heads · h head size · C = H·h.   Knows no VNode type.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array, Backend
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, spec_bytes

PROJECTIONS = ("query", "key", "value")


def split_heads(backend: Backend, x_BTC: Array, n_heads: int) -> Array:
    """(B, T, H·h) -> C-contiguous (B, H, T, h)."""
    n_batch, n_rows, width = x_BTC.shape
    x_BTHD = backend.reshape(x_BTC, (n_batch, n_rows, n_heads, width // n_heads))
    return backend.contiguous(backend.transpose(x_BTHD, (0, 2, 1, 3)))


def join_heads(backend: Backend, x_BHTD: Array) -> Array:
    """(B, H, T, h) -> C-contiguous (B, T, H·h)."""
    n_batch, n_heads, n_rows, width = x_BHTD.shape
    x_BTHD = backend.contiguous(backend.transpose(x_BHTD, (0, 2, 1, 3)))
    return backend.reshape(x_BTHD, (n_batch, n_rows, n_heads * width))


def projection_params(n_dim: int, n_out: int, *, has_bias: bool, init_std: float) -> dict[str, ParamSpec]:
    """query, key and value weights (C, D), and biases (C,) if there are any; `init_std` 0 means 1/sqrt(D)."""
    specs: dict[str, ParamSpec] = {}
    for name in PROJECTIONS:
        std = init_std or n_dim**-0.5
        specs[f"{name}_weight"] = ParamSpec(shape=(n_out, n_dim), init="normal", std=std, decays=True)
        if has_bias:
            specs[f"{name}_bias"] = ParamSpec(shape=(n_out,), init="zeros")
    return specs


def attention_flops(n_batch: int, n_rows: int, n_dim: int, n_out: int) -> int:
    """Three projections 6 B T D C, and the causal half of two T x T products per head: 2 B T² C."""
    return 6 * n_batch * n_rows * n_dim * n_out + 2 * n_batch * n_rows * n_rows * n_out


def attention_moved_bytes(x: TensorSpec, n_heads: int, n_out: int) -> int:
    """Softmax passes nine times over the causal half of T x T scores per head (measured: the kernel's time
    beyond its products, in units of a row-wise pass); q, k, v and the output are written, rotated, copied."""
    n_batch, n_rows, _ = x.shape
    scores = TensorSpec((9, n_batch, n_heads, n_rows, (n_rows + 1) // 2), "float32")
    return spec_bytes(x, scores) + 8 * spec_bytes(TensorSpec((n_batch, n_rows, n_out), x.dtype))


def attention_made_bytes(x: TensorSpec, n_out: int) -> int:
    """q, k, v and the output in head layout, and the output side by side."""
    n_batch, n_rows, _ = x.shape
    return 5 * spec_bytes(TensorSpec((n_batch, n_rows, n_out), x.dtype))


def attend(
    ctx: Context, params: Mapping[str, Array], x_BTD: Array, *, n_heads: int, rope_base: float
) -> Forward:
    """Causal attention of all heads, side by side (B, T, C).

    Saved: x; in head layout (B, H, T, h) the rotated q and k, v and the output; its logsumexp (B, H, T).
    """
    backend = ctx.backend
    n_batch, n_rows, n_dim = x_BTD.shape
    x_ND = backend.reshape(x_BTD, (-1, n_dim))
    heads: dict[str, Array] = {}
    for name in PROJECTIONS:
        y_NC = backend.linear_forward(x_ND, params[f"{name}_weight"], params.get(f"{name}_bias"))
        y_BHTD = split_heads(backend, backend.reshape(y_NC, (n_batch, n_rows, y_NC.shape[-1])), n_heads)
        if rope_base and name != "value":
            y_BHTD = backend.rope(y_BHTD, rope_base, ctx.position, inverse=False)
        heads[name] = y_BHTD
    scale = heads["query"].shape[-1] ** -0.5
    out_BHTD, logsumexp_BHT = backend.attention_forward(heads["query"], heads["key"], heads["value"], scale)
    saved = {"x": x_BTD, **heads, "out": out_BHTD, "logsumexp": logsumexp_BHT}
    return Forward((join_heads(backend, out_BHTD),), saved)


def attend_backward(
    ctx: Context,
    params: Mapping[str, Array],
    saved: Mapping[str, Array],
    dout_BTC: Array,
    *,
    n_heads: int,
    rope_base: float,
) -> Backward:
    """dx (the sum over query, key, value, in this order) and the projections' gradients."""
    backend = ctx.backend
    x_BTD = saved["x"]
    x_ND = backend.reshape(x_BTD, (-1, x_BTD.shape[-1]))
    gradients_BHTD = backend.attention_backward(
        saved["query"],
        saved["key"],
        saved["value"],
        saved["out"],
        saved["logsumexp"],
        split_heads(backend, dout_BTC, n_heads),
        saved["query"].shape[-1] ** -0.5,
    )
    dx_ND: Array = None
    param_grads: dict[str, Array] = {}
    for name, dy_BHTD in zip(PROJECTIONS, gradients_BHTD, strict=True):
        if rope_base and name != "value":
            dy_BHTD = backend.rope(dy_BHTD, rope_base, ctx.position, inverse=True)
        dy_NC = backend.reshape(join_heads(backend, dy_BHTD), (-1, dout_BTC.shape[-1]))
        dpart_ND, dW_CD, db_C = backend.linear_backward(
            x_ND, params[f"{name}_weight"], dy_NC, has_bias=f"{name}_bias" in params
        )
        dx_ND = dpart_ND if dx_ND is None else dx_ND + dpart_ND
        param_grads[f"{name}_weight"] = dW_CD
        if db_C is not None:
            param_grads[f"{name}_bias"] = db_C
    return Backward((backend.reshape(dx_ND, x_BTD.shape),), param_grads)
