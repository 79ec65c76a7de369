"""Sum of equal tensors: residual connections. Knows no producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import element_count, expect_all_equal, expect_float, length_mark


class Add(VNode, frozen=True, kw_only=True, tag="add.v1"):
    """Sum  y = ((x_0 + x_1) + x_2) + …      dx_i = dy

    N inputs of one shape and dtype.   N times (...) -> y (...).   Any float dtype, added in input order.
    With one input y is x_0. Every input's gradient is dy itself: one array N times.
    """

    is_variadic: ClassVar[bool] = True
    is_row_wise: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The inputs' common spec."""
        x = expect_all_equal("add.v1", ins)
        expect_float("add.v1", "x", x)
        return (x,)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """N − 1 per element."""
        return (len(ins) - 1) * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The sum; saves the number of inputs as a shape."""
        y = ins[0]
        for x in ins[1:]:
            y = y + x
        return Forward((y,), {"count": length_mark(ctx.backend, len(ins))})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy for every input."""
        return Backward((grads[0],) * int(saved["count"].shape[0]), {})
