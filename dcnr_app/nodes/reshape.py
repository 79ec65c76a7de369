"""Another shape for the same elements of every sample. Knows nothing about their meaning."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array, Shape
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import element_count, expect_float, expect_inputs


class Reshape(VNode, frozen=True, kw_only=True, tag="reshape.v1"):
    """Keeps the leading batch axis and reshapes what follows, in row-major order.      dx = dy in x's shape

    B batch.   x (B, *rest) -> y (B, *shape). `shape` is what stands after the batch; one length may be −1 and
    is then what remains of rest's elements. The batch is never mixed with other axes, so samples stay whole.
    Any float dtype; y may be a view of x.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse lengths below 1 other than one −1."""
        if any(length < 1 and length != -1 for length in self.shape) or self.shape.count(-1) > 1:
            raise ValueError(f"reshape.v1 expects lengths >= 1 with at most one -1, got {self.shape}")

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, *rest) -> (B, *shape)."""
        expect_inputs("reshape.v1", ins, 1)
        expect_float("reshape.v1", "x", ins[0])
        return (TensorSpec(self._resolve(ins[0].shape), ins[0].dtype),)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: nothing is computed."""
        return 0

    def moved_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: the output is a view."""
        return 0

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """0: the output is a view."""
        return 0

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """x in its new shape; saves the old one as that of an empty array."""
        (x,) = ins
        y = ctx.backend.reshape(x, self._resolve(x.shape))
        return Forward((y,), {"shape": ctx.backend.zeros((0, *x.shape[1:]), "int32")})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dy in the old shape."""
        dy = grads[0]
        return Backward((ctx.backend.reshape(dy, (dy.shape[0], *saved["shape"].shape[1:])),), {})

    def _resolve(self, shape: Shape) -> Shape:
        if not shape:
            raise ValueError("reshape.v1 expects x with a batch axis, got shape ()")
        n_elements = element_count(shape[1:])
        known = element_count(tuple(length for length in self.shape if length != -1))
        fits = n_elements % known == 0 if -1 in self.shape else n_elements == known
        if not fits:
            raise ValueError(f"reshape.v1 expects a sample that fits {self.shape}, got {shape[1:]}")
        return (shape[0], *(n_elements // known if length == -1 else length for length in self.shape))
