"""Affine map over the last axis. Knows nothing about where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, VNode
from dcnr_app.nodes.specs import (
    expect_float,
    expect_inputs,
    expect_last,
    require_not_negative,
    require_positive,
)


class Linear(VNode, frozen=True, kw_only=True, tag="linear.v1"):
    """Affine map  y = x Wᵀ + b.      dx = dy W,  dW = dyᵀ x,  db = Σ_N dy

    N rows (all leading axes) · I in · O out.   x (..., I) -> y (..., O).   Any float dtype; accumulates in
    float32. `init_std` 0 means 1/sqrt(I).
    """

    n_in: int
    n_out: int
    has_bias: bool = True
    init_std: float = 0.0

    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse empty sizes and a negative spread."""
        require_positive("linear.v1", n_in=self.n_in, n_out=self.n_out)
        require_not_negative("linear.v1", init_std=self.init_std)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(..., I) -> (..., O)."""
        expect_inputs("linear.v1", ins, 1)
        (x,) = ins
        expect_float("linear.v1", "x", x)
        expect_last("linear.v1", "x", x, self.n_in)
        return (TensorSpec((*x.shape[:-1], self.n_out), x.dtype),)

    def params(self) -> Mapping[str, ParamSpec]:
        """weight (O, I), and bias (O,) if it has one."""
        std = self.init_std or self.n_in**-0.5
        weight = ParamSpec(shape=(self.n_out, self.n_in), init="normal", std=std, decays=True)
        if not self.has_bias:
            return {"weight": weight}
        return {"weight": weight, "bias": ParamSpec(shape=(self.n_out,), init="zeros")}

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """2 N I O."""
        total = 2 * self.n_in * self.n_out
        for length in ins[0].shape[:-1]:
            total *= length
        return total

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """y_NO = x_NI Wᵀ + b."""
        (x,) = ins
        x_NI = ctx.backend.reshape(x, (-1, self.n_in))
        y_NO = ctx.backend.linear_forward(x_NI, params["weight"], params.get("bias"))
        return Forward((ctx.backend.reshape(y_NO, (*x.shape[:-1], self.n_out)),), {"x": x})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dx, dW and db from the saved input."""
        x = saved["x"]
        x_NI = ctx.backend.reshape(x, (-1, self.n_in))
        dy_NO = ctx.backend.reshape(grads[0], (-1, self.n_out))
        dx_NI, dw_OI, db_O = ctx.backend.linear_backward(
            x_NI, params["weight"], dy_NO, has_bias=self.has_bias
        )
        param_grads = {"weight": dw_OI} if db_O is None else {"weight": dw_OI, "bias": db_O}
        return Backward((ctx.backend.reshape(dx_NI, x.shape),), param_grads)
