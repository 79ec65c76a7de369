"""ReLU activation. Knows nothing about where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_float, expect_inputs


class Relu(VNode, frozen=True, kw_only=True, tag="relu.v1"):
    """Rectifier  y = max(x, 0).      dx = dy where y > 0, else 0

    x (...) -> y (...).   Any float dtype. Saves y, which the next VNode mostly saves too.
    Reference: Nair & Hinton 2010.
    """

    is_row_wise: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The input's spec."""
        expect_inputs("relu.v1", ins, 1)
        expect_float("relu.v1", "x", ins[0])
        return ins

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """max(x, 0); saves it."""
        y = ctx.backend.maximum(ins[0], 0.0)
        return Forward((y,), {"y": y})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy where the output is above 0."""
        dx = ctx.backend.where(ctx.backend.greater(saved["y"], 0.0), grads[0], 0.0)
        return Backward((dx,), {})
