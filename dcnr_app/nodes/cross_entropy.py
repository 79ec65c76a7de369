"""Cross-entropy cost of next-token prediction. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import (
    accumulation_dtype,
    element_count,
    expect_float,
    expect_inputs,
    expect_integer,
)


class CrossEntropy(VNode, frozen=True, kw_only=True, tag="cross_entropy.v1"):
    """Loss sum  ℓ = Σ_{n: t_n ≥ 0} (log Σ_v e^{z_nv} − z_n,t_n).      dz = (softmax(z) − one_hot(t)) dℓ

    N positions (all leading axes) · V vocabulary.   logits z (..., V), targets t (...) int32 or int64; rows
    with t < 0 (−1: not counted) add nothing and have gradient 0.   ℓ () in float32 (float64 for float64).
    The incoming gradient is the seed scale / count: ℓ is a sum, so microbatches add up to the batch exactly.
    Any float dtype; stable by log-sum-exp. Targets have no gradient.   Reference: Bengio et al. 2003.
    """

    in_ports: ClassVar[tuple[str, ...]] = ("logits", "targets")
    is_cost: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(..., V) and (...) -> ()."""
        expect_inputs("cross_entropy.v1", ins, 2)
        logits, targets = ins
        expect_float("cross_entropy.v1", "logits", logits)
        expect_integer("cross_entropy.v1", "targets", targets)
        if not logits.shape or targets.shape != logits.shape[:-1]:
            raise ValueError(
                f"cross_entropy.v1 expects targets of shape {logits.shape[:-1]} for logits {logits.shape}, "
                f"got {targets.shape}"
            )
        return (TensorSpec((), accumulation_dtype(logits.dtype)),)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """About 14 per logit: an exp counts as 12."""
        return 14 * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The loss sum; saves logits, targets and logsumexp."""
        logits, targets = ins
        logits_NV = ctx.backend.reshape(logits, (-1, logits.shape[-1]))
        targets_N = ctx.backend.reshape(targets, (-1,))
        loss, logsumexp_N = ctx.backend.cross_entropy_forward(logits_NV, targets_N)
        return Forward((loss,), {"logits": logits, "targets": targets, "logsumexp": logsumexp_N})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dlogits times the seed; None for targets."""
        logits = saved["logits"]
        dlogits_NV = ctx.backend.cross_entropy_backward(
            ctx.backend.reshape(logits, (-1, logits.shape[-1])),
            ctx.backend.reshape(saved["targets"], (-1,)),
            saved["logsumexp"],
            grads[0],
        )
        return Backward((ctx.backend.reshape(dlogits_NV, logits.shape), None), {})
