"""Equal parts of one tensor. Knows no consumer."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_axis, expect_float, expect_inputs, require_positive


class Split(VNode, frozen=True, kw_only=True, tag="split.v1"):
    """Cuts one axis into equal parts  [y_0 … y_{J−1}] = x.      dx = [dy_0 … dy_{J−1}]

    J outputs · L the axis' length, a multiple of J.   x (…, L, …) -> J times (…, L/J, …), which may be
    views of x.   Any float dtype.
    """

    n_outputs: int
    axis: int = -1

    def __post_init__(self) -> None:
        """Refuse no outputs."""
        require_positive("split.v1", n_outputs=self.n_outputs)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The input's spec with the axis J times shorter, J times."""
        expect_inputs("split.v1", ins, 1)
        expect_float("split.v1", "x", ins[0])
        shape = ins[0].shape
        axis = expect_axis("split.v1", self.axis, shape)
        if shape[axis] % self.n_outputs:
            raise ValueError(f"split.v1 expects axis {self.axis} divisible by {self.n_outputs}, got {shape}")
        part = (*shape[:axis], shape[axis] // self.n_outputs, *shape[axis + 1 :])
        return (TensorSpec(part, ins[0].dtype),) * self.n_outputs

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing is computed."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The parts, in order."""
        (x,) = ins
        axis = self.axis % len(x.shape)
        length = x.shape[axis] // self.n_outputs
        starts = range(0, length * self.n_outputs, length)
        return Forward(tuple(ctx.backend.slice_axis(x, axis, start, start + length) for start in starts), {})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """The gradients joined."""
        return Backward((ctx.backend.concat(grads, self.axis % len(grads[0].shape)),), {})
