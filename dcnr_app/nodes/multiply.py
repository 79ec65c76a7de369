"""Elementwise product: gates. Knows no producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_all_equal, expect_float, expect_inputs


class Multiply(VNode, frozen=True, kw_only=True, tag="multiply.v1"):
    """Elementwise product  z = x ∘ y.      dx = dz ∘ y,  dy = dz ∘ x

    x, y (...) of one shape and dtype -> z (...).   Any float dtype.
    Reference: gates of Dauphin et al. 2017.
    """

    in_ports: ClassVar[tuple[str, ...]] = ("x", "y")
    is_row_wise: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The inputs' common spec."""
        expect_inputs("multiply.v1", ins, 2)
        x = expect_all_equal("multiply.v1", ins)
        expect_float("multiply.v1", "x", x)
        return (x,)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """x y; saves both."""
        x, y = ins
        return Forward((x * y,), {"x": x, "y": y})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dz times the other input."""
        return Backward((grads[0] * saved["y"], grads[0] * saved["x"]), {})
