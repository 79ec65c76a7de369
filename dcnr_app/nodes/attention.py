"""Multi-head causal attention without output projection. Knows nothing about where it runs."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, VNode
from dcnr_app.nodes.heads import (
    attend,
    attend_backward,
    attention_flops,
    attention_made_bytes,
    attention_moved_bytes,
    projection_params,
)
from dcnr_app.nodes.specs import expect_inputs, expect_sequences, require_not_negative, require_positive


class Attention(VNode, frozen=True, kw_only=True, tag="attention.v1"):
    """Causal attention of H heads side by side  y = [y_1 … y_H],  y_j = softmax_{s ≤ t}(q_j k_jᵀ / √h) v_j.

    Gradients per head as in `attention_head.v1`; dx sums over query, key and value, in this order.
    B batch · T tokens · D model width · H heads · h head size.   x (B, T, D) -> y (B, T, H·h).
    Rows j·h … (j+1)·h − 1 of each weight and bias are head j: the concatenation of H `attention_head.v1`.
    Any float dtype; accumulates in float32. `rope_base` above 0 rotates q and k (Su et al. 2021).
    One GEMM per projection: at training sizes it is bound by arithmetic, so joining the weights saves nothing
    and would copy them at every call.
    `init_std` 0 means 1/sqrt(D).   Reference: Vaswani et al. 2017; Dao 2023 for the kernel.
    """

    n_dim: int
    n_heads: int
    n_head_dim: int
    rope_base: float = 0.0
    has_bias: bool = True
    init_std: float = 0.0

    def __post_init__(self) -> None:
        """Refuse empty sizes, and an odd head size with rotation."""
        require_positive("attention.v1", n_dim=self.n_dim, n_heads=self.n_heads, n_head_dim=self.n_head_dim)
        require_not_negative("attention.v1", rope_base=self.rope_base, init_std=self.init_std)
        if self.rope_base and self.n_head_dim % 2:
            raise ValueError(f"attention.v1 expects an even n_head_dim with rope, got {self.n_head_dim}")

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, T, D) -> (B, T, H·h)."""
        expect_inputs("attention.v1", ins, 1)
        n_batch, n_rows = expect_sequences("attention.v1", ins[0], self.n_dim)
        return (TensorSpec((n_batch, n_rows, self.n_heads * self.n_head_dim), ins[0].dtype),)

    def params(self) -> Mapping[str, ParamSpec]:
        """query_weight, key_weight, value_weight (H·h, D), and their biases (H·h,)."""
        n_out = self.n_heads * self.n_head_dim
        return projection_params(self.n_dim, n_out, has_bias=self.has_bias, init_std=self.init_std)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """6 B T D H h + 2 B T² H h."""
        n_batch, n_rows, _ = ins[0].shape
        return attention_flops(n_batch, n_rows, self.n_dim, self.n_heads * self.n_head_dim)

    def moved_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """Those of the scores outweigh input and output."""
        return attention_moved_bytes(ins[0], self.n_heads, self.n_heads * self.n_head_dim)

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """The output, and what backward needs of query, key, value and output."""
        return attention_made_bytes(ins[0], self.n_heads * self.n_head_dim)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """All heads' outputs, side by side."""
        return attend(ctx, params, ins[0], n_heads=self.n_heads, rope_base=self.rope_base)

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dx and the projections' gradients."""
        return attend_backward(ctx, params, saved, grads[0], n_heads=self.n_heads, rope_base=self.rope_base)
