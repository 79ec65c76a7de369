"""Heads side by side. Knows no head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_all_equal, expect_float, length_mark


class Stack(VNode, frozen=True, kw_only=True, tag="stack.v1"):
    """Joins equal tensors along the last axis  y = [x_0 … x_{N−1}].      dx_i = the i-th part of dy

    N inputs · h their width.   N times (..., h) -> y (..., N·h): no new axis, so that N heads (B, T, h)
    become what a linear VNode takes. Inputs of unequal width or another axis: `concat.v1`.   Any float dtype.
    """

    is_variadic: ClassVar[bool] = True
    is_row_wise: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """N times (..., h) -> (..., N·h)."""
        x = expect_all_equal("stack.v1", ins)
        expect_float("stack.v1", "x", x)
        if not x.shape:
            raise ValueError("stack.v1 expects inputs with one axis or more, got ()")
        return (TensorSpec((*x.shape[:-1], len(ins) * x.shape[-1]), x.dtype),)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing is computed."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The inputs side by side; saves their number as a shape."""
        y = ctx.backend.concat(ins, len(ins[0].shape) - 1)
        return Forward((y,), {"count": length_mark(ctx.backend, len(ins))})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy cut into equal parts."""
        dy = grads[0]
        axis = len(dy.shape) - 1
        n_inputs = saved["count"].shape[0]
        width = dy.shape[axis] // n_inputs
        starts = range(0, dy.shape[axis], width)
        return Backward(tuple(ctx.backend.slice_axis(dy, axis, start, start + width) for start in starts), {})
