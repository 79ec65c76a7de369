"""One causal attention head with its own projections. Knows no other head."""

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


class AttentionHead(VNode, frozen=True, kw_only=True, tag="attention_head.v1"):
    """Causal attention of one head  y = P v,  P = softmax_{s ≤ t}(q kᵀ / √h),  q, k, v = x Wᵀ + b each.

    Gradients, with δ_t = dy_t · y_t:  dv = Pᵀ dy,  dS = P ∘ (dy vᵀ − δ),  dq = dS k / √h,  dk = dSᵀ q / √h;
    then  dx = Σ dq W,  dW = dqᵀ x,  db = Σ dq  over query, key and value.
    B batch · T tokens · D model width · h head size.   x (B, T, D) -> y (B, T, h).
    Any float dtype; accumulates in float32. `rope_base` above 0 rotates q and k (Su et al. 2021).
    N heads joined by `stack` are what `attention.v1` computes at once.
    `init_std` 0 means 1/sqrt(D).   Reference: Vaswani et al. 2017; Dao 2023 for the kernel.
    """

    n_dim: int
    n_head_dim: int
    rope_base: float = 0.0
    has_bias: bool = True
    init_std: float = 0.0

    def __post_init__(self) -> None:
        """Refuse empty sizes, and an odd head size with rotation."""
        require_positive("attention_head.v1", n_dim=self.n_dim, n_head_dim=self.n_head_dim)
        require_not_negative("attention_head.v1", rope_base=self.rope_base, init_std=self.init_std)
        if self.rope_base and self.n_head_dim % 2:
            raise ValueError(f"attention_head.v1 expects an even n_head_dim with rope, got {self.n_head_dim}")

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, T, D) -> (B, T, h)."""
        expect_inputs("attention_head.v1", ins, 1)
        n_batch, n_rows = expect_sequences("attention_head.v1", ins[0], self.n_dim)
        return (TensorSpec((n_batch, n_rows, self.n_head_dim), ins[0].dtype),)

    def params(self) -> Mapping[str, ParamSpec]:
        """query_weight, key_weight, value_weight (h, D), and their biases (h,)."""
        return projection_params(self.n_dim, self.n_head_dim, has_bias=self.has_bias, init_std=self.init_std)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """6 B T D h + 2 B T² h."""
        n_batch, n_rows, _ = ins[0].shape
        return attention_flops(n_batch, n_rows, self.n_dim, self.n_head_dim)

    def moved_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """Those of the scores outweigh input and output."""
        return attention_moved_bytes(ins[0], 1, self.n_head_dim)

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """The output, and what backward needs of query, key, value and output."""
        return attention_made_bytes(ins[0], self.n_head_dim)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The head's output."""
        return attend(ctx, params, ins[0], n_heads=1, rope_base=self.rope_base)

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dx and the projections' gradients."""
        return attend_backward(ctx, params, saved, grads[0], n_heads=1, rope_base=self.rope_base)
