"""One tensor for many consumers. Knows no consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_float, expect_inputs, require_positive


class Broadcast(VNode, frozen=True, kw_only=True, tag="broadcast.v1"):
    """The same tensor at every output  y_j = x,  j < J.      dx = Σ_j dy_j, added in port order

    J outputs.   x (...) -> J times (...); every output aliases x.   Any float dtype.
    """

    n_outputs: int

    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse no outputs."""
        require_positive("broadcast.v1", n_outputs=self.n_outputs)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The input's spec, `n_outputs` times."""
        expect_inputs("broadcast.v1", ins, 1)
        expect_float("broadcast.v1", "x", ins[0])
        return ins * self.n_outputs

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing is computed."""
        return 0

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: the outputs are views."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """x at every port."""
        return Forward(ins * self.n_outputs, {})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """The gradients' sum, ((dy_0 + dy_1) + dy_2) + …"""
        dx = grads[0]
        for dy in grads[1:]:
            dx = dx + dy
        return Backward((dx,), {})
