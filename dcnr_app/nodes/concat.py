"""Tensors joined along one axis. Knows no producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array, Shape
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_axis, expect_float, mark_lengths, marked_lengths


class Concat(VNode, frozen=True, kw_only=True, tag="concat.v1"):
    """Joins tensors along one axis  y = [x_0 … x_{N−1}].      dx_i = the i-th part of dy

    N inputs of one dtype, alike but for the axis, with lengths L_i.   (…, L_i, …) -> y (…, Σ L_i, …).
    Any float dtype. Saves the lengths as shapes of tiny arrays.
    """

    axis: int = -1

    is_variadic: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The first input's spec with the axis as long as all together."""
        if not ins:
            raise ValueError("concat.v1 expects at least 1 input, got 0")
        first = ins[0]
        expect_float("concat.v1", "x", first)
        axis = expect_axis("concat.v1", self.axis, first.shape)
        for index, spec in enumerate(ins):
            same_rank = len(spec.shape) == len(first.shape)
            if not same_rank or _without(spec.shape, axis) != _without(first.shape, axis):
                raise ValueError(
                    f"concat.v1 expects inputs that differ in axis {self.axis} only: "
                    f"input 0 is {first.shape}, got input {index} as {spec.shape}"
                )
            if spec.dtype != first.dtype:
                raise ValueError(
                    f"concat.v1 expects one dtype: {first.dtype}, got input {index} as {spec.dtype}"
                )
        total = sum(spec.shape[axis] for spec in ins)
        return (TensorSpec((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype),)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing is computed."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The inputs in order."""
        axis = self.axis % len(ins[0].shape)
        y = ctx.backend.concat(ins, axis)
        return Forward((y,), mark_lengths(ctx.backend, tuple(x.shape[axis] for x in ins)))

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy cut at the inputs' borders."""
        dy = grads[0]
        axis = self.axis % len(dy.shape)
        parts: list[Array] = []
        start = 0
        for length in marked_lengths(saved):
            parts.append(ctx.backend.slice_axis(dy, axis, start, start + length))
            start += length
        return Backward(tuple(parts), {})


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])
