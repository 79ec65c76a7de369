"""Learned absolute positions. Knows nothing about tokens."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, VNode
from dcnr_app.nodes.specs import expect_inputs, expect_sequences, require_not_negative, require_positive


class Position(VNode, frozen=True, kw_only=True, tag="position.v1"):
    """Adds a learned row per position  y_bt = x_bt + W[p + t].      dx = dy,  dW[p + t] = Σ_b dy_bt

    B batch · T tokens · D model width · P positions · p first position (`ctx.position`, 0 in training).
    x (B, T, D) -> y (B, T, D).   Any float dtype; dW accumulates in float32. dx is dy itself.
    Reference: Gehring et al. 2017; init std 0.02 as GPT-2 (Radford et al. 2019).
    """

    n_positions: int
    n_dim: int
    init_std: float = 0.02

    def __post_init__(self) -> None:
        """Refuse empty tables and a negative spread."""
        require_positive("position.v1", n_positions=self.n_positions, n_dim=self.n_dim)
        require_not_negative("position.v1", init_std=self.init_std)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(B, T, D) -> (B, T, D), T at most P."""
        expect_inputs("position.v1", ins, 1)
        _, n_rows = expect_sequences("position.v1", ins[0], self.n_dim)
        if n_rows > self.n_positions:
            raise ValueError(f"position.v1 expects at most {self.n_positions} tokens, got {n_rows}")
        return ins

    def params(self) -> Mapping[str, ParamSpec]:
        """weight (P, D)."""
        shape = (self.n_positions, self.n_dim)
        return {"weight": ParamSpec(shape=shape, init="normal", std=self.init_std, decays=True)}

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """x plus the table's rows from `ctx.position` on. Raises ValueError past the table's end."""
        (x_BTD,) = ins
        stop = ctx.position + x_BTD.shape[1]
        if stop > self.n_positions:
            raise ValueError(f"position.v1 expects positions below {self.n_positions}, got {stop - 1}")
        rows_TD = ctx.backend.slice_axis(params["weight"], 0, ctx.position, stop)
        return Forward((x_BTD + rows_TD,), {})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dx = dy; dW is the batch sum of dy in its rows and zero elsewhere."""
        dy_BTD = grads[0]
        rows_TD = ctx.backend.sum(dy_BTD, 0)
        dtype = ctx.backend.dtype_of(rows_TD)
        n_after = self.n_positions - ctx.position - dy_BTD.shape[1]
        parts = [
            ctx.backend.zeros((ctx.position, self.n_dim), dtype),
            rows_TD,
            ctx.backend.zeros((n_after, self.n_dim), dtype),
        ]
        dW_PD = ctx.backend.concat([part for part in parts if part.shape[0]], 0)
        return Backward((dy_BTD,), {"weight": dW_PD})
