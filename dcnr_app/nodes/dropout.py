"""Dropout. Knows no random state: the mask is a function of the context's key."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode, spec_bytes
from dcnr_app.nodes.specs import element_count, expect_float, expect_inputs


class Dropout(VNode, frozen=True, kw_only=True, tag="dropout.v1"):
    """Zeroes elements with probability `rate`  y = m ∘ x,  m = 0 or 1 / (1 − rate).      dx = m ∘ dy

    x (...) -> y (...).   Any float dtype; m is in x's dtype. m is drawn from `ctx.key` alone, so a VNode that
    moves to another PNode draws the same one. Identity (y is x) when not training or when `rate` is 0.
    Reference: Srivastava et al. 2014, inverted form.
    """

    rate: float

    def __post_init__(self) -> None:
        """Refuse a rate outside [0, 1)."""
        if not 0.0 <= self.rate < 1.0:
            raise ValueError(f"dropout.v1 expects 0 <= rate < 1, got {self.rate}")

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The input's spec."""
        expect_inputs("dropout.v1", ins, 1)
        expect_float("dropout.v1", "x", ins[0])
        return ins

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """About 30 per element: ten Philox rounds for four numbers, a comparison and a product."""
        return 30 * element_count(ins[0].shape)

    def moved_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """Numbers, comparison, multiplier and product: ten passes."""
        return 10 * spec_bytes(ins[0])

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """The output and the multiplier."""
        return 2 * spec_bytes(ins[0])

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The masked and scaled input; saves the multiplier m."""
        (x,) = ins
        if self.rate == 0.0 or not ctx.is_training:
            return Forward((x,), {})
        uniform = ctx.backend.random_uniform(ctx.key, x.shape)
        # Both sides negated: "dropped" must be uniform < rate, strictly, and there is no `less`.
        is_dropped = ctx.backend.greater(-uniform, -self.rate)
        zeros = ctx.backend.zeros(x.shape, ctx.backend.dtype_of(x))
        multiplier = ctx.backend.where(is_dropped, zeros, 1.0 / (1.0 - self.rate))
        return Forward((x * multiplier,), {"multiplier": multiplier})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy times the saved multiplier; nothing saved means identity."""
        if "multiplier" not in saved:
            return Backward((grads[0],), {})
        return Backward((grads[0] * saved["multiplier"],), {})
