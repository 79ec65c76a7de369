"""GELU activation. Knows nothing about where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import element_count, expect_float, expect_inputs


class Gelu(VNode, frozen=True, kw_only=True, tag="gelu.v1"):
    """Gaussian error linear unit, tanh form  y = x (1 + tanh u) / 2,  u = √(2/π) (x + 0.044715 x³).

    dx = dy ((1 + tanh u) / 2 + x (1 − tanh² u) u' / 2),  u' = √(2/π) (1 + 0.134145 x²)
    x (...) -> y (...).   Any float dtype; computed in float32.   Reference: Hendrycks & Gimpel 2016.
    """

    is_row_wise: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The input's spec."""
        expect_inputs("gelu.v1", ins, 1)
        expect_float("gelu.v1", "x", ins[0])
        return ins

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """About 20 per element: a tanh counts as 12."""
        return 20 * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """gelu(x); saves x."""
        return Forward((ctx.backend.gelu_forward(ins[0]),), {"x": ins[0]})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy gelu'(x)."""
        return Backward((ctx.backend.gelu_backward(saved["x"], grads[0]),), {})
