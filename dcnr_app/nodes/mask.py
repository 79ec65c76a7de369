"""Causal and padding masks. Knows no attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_float, expect_inputs, expect_integer

DEFAULT_FILL = {"causal": -1e30, "padding": 0.0}


class Mask(VNode, frozen=True, kw_only=True, tag="mask.v1"):
    """Overwrites masked elements  y = x where visible, else fill.      dx = dy where visible, else 0

    `causal`: x (..., T, S); row t sees columns s ≤ t + `ctx.position`. Default fill −1e30 (−inf in float16).
    `padding`: x (B, T, ...) and ids (B, T); token t is hidden where ids = `pad_id`. Default fill 0.
    B batch · T tokens · S columns.   Any float dtype; ids are integer and have no gradient.
    Inputs: one for `causal`, two for `padding`.   Reference: Vaswani et al. 2017, section 3.2.3.
    """

    kind: Literal["causal", "padding"] = "causal"
    fill: float | None = None
    pad_id: int = 0

    is_variadic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an unknown kind, which code (not YAML) could pass."""
        if self.kind not in DEFAULT_FILL:
            raise ValueError(f"mask.v1 expects kind 'causal' or 'padding', got {self.kind!r}")

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The spec of x."""
        expect_inputs(f"mask.v1 ({self.kind})", ins, 1 if self.kind == "causal" else 2)
        expect_float("mask.v1", "x", ins[0])
        if len(ins[0].shape) < 2:
            raise ValueError(f"mask.v1 ({self.kind}) expects x with two axes or more, got {ins[0].shape}")
        if self.kind == "padding":
            expect_integer("mask.v1", "ids", ins[1])
            if ins[1].shape != ins[0].shape[:2]:
                raise ValueError(
                    f"mask.v1 (padding) expects ids of shape {ins[0].shape[:2]}, got {ins[1].shape}"
                )
        return (ins[0],)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """x with its masked elements overwritten."""
        fill = DEFAULT_FILL[self.kind] if self.fill is None else self.fill
        saved = {} if self.kind == "causal" else {"ids": ins[1]}
        return Forward((self._masked(ctx, ins[0], saved, fill),), saved)

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy with its masked elements zero; None for ids."""
        dx = self._masked(ctx, grads[0], saved, 0.0)
        return Backward((dx,) if self.kind == "causal" else (dx, None), {})

    def _masked(self, ctx: Context, x: Array, saved: Mapping[str, Array], fill: float) -> Array:
        if self.kind == "causal":
            n_rows, n_columns = x.shape[-2:]
            visible = ctx.backend.causal_mask(ctx.position + n_rows, n_columns)
            visible = ctx.backend.slice_axis(visible, 0, ctx.position, ctx.position + n_rows)
            return ctx.backend.where(visible, x, fill)
        ids = ctx.backend.reshape(saved["ids"], (*x.shape[:2], *[1] * (len(x.shape) - 2)))
        return ctx.backend.where(ctx.backend.equal(ids, self.pad_id), fill, x)
