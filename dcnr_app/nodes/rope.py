"""Rotary position embedding of heads that lie side by side. Knows no attention."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.heads import join_heads, split_heads
from dcnr_app.nodes.specs import element_count, expect_float, expect_inputs, require_positive


class Rope(VNode, frozen=True, kw_only=True, tag="rope.v1"):
    """Rotates pairs (x_i, x_{i+h/2}) of every head by a = t · base^(−2i/h).      dx = dy rotated by −a

    y_i = x_i cos a − x_{i+h/2} sin a,  y_{i+h/2} = x_{i+h/2} cos a + x_i sin a

    B batch · T tokens · H heads · h head size (even), i < h/2 · t position, from `ctx.position` on.
    x (B, T, H·h) -> y (B, T, H·h).   Any float dtype; angles in float32 or better.
    Reference: Su et al. 2021 (RoFormer), half-rotation layout as in GPT-NeoX and Llama.
    """

    n_heads: int
    base: float = 10000.0

    def __post_init__(self) -> None:
        """Refuse no heads and a base that is not above zero."""
        require_positive("rope.v1", n_heads=self.n_heads, base=self.base)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, T, H·h) -> the same; h must be even."""
        expect_inputs("rope.v1", ins, 1)
        expect_float("rope.v1", "x", ins[0])
        shape = ins[0].shape
        if len(shape) != 3 or shape[-1] % (2 * self.n_heads):
            expected = f"(batch, tokens, {self.n_heads} heads of an even size)"
            raise ValueError(f"rope.v1 expects x of shape {expected}, got {shape}")
        return ins

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """3 per element: two products and a sum."""
        return 3 * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """Every head rotated by its token's position."""
        return Forward((self._rotate(ctx, ins[0], inverse=False),), {})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """A rotation's gradient is the rotation back."""
        return Backward((self._rotate(ctx, grads[0], inverse=True),), {})

    def _rotate(self, ctx: Context, x_BTC: Array, *, inverse: bool) -> Array:
        x_BHTD = split_heads(ctx.backend, x_BTC, self.n_heads)
        return join_heads(ctx.backend, ctx.backend.rope(x_BHTD, self.base, ctx.position, inverse=inverse))
