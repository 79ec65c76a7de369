"""Layer normalization over the last axis. Knows nothing about where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array, LayerNormSaved
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, VNode
from dcnr_app.nodes.specs import element_count, expect_float, expect_inputs, expect_last, require_positive


class LayerNorm(VNode, frozen=True, kw_only=True, tag="layernorm.v1"):
    """Normalizes rows  y = g ∘ x̂ + b,  x̂ = (x − μ) r,  r = 1 / √(σ² + ε).

    With a = dy ∘ g:  dx = r (a − mean(a) − x̂ mean(a ∘ x̂)),  dg = Σ_N dy ∘ x̂,  db = Σ_N dy
    N rows (all leading axes) · D width; μ and σ² (biased) are a row's mean and variance.
    x (..., D) -> y (..., D).   Any float dtype; statistics and sums in float32.
    Reference: Ba, Kiros & Hinton 2016.
    """

    n_dim: int
    eps: float = 1e-5
    has_bias: bool = True

    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an empty width and an eps that is not above zero."""
        require_positive("layernorm.v1", n_dim=self.n_dim, eps=self.eps)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(..., D) -> (..., D)."""
        expect_inputs("layernorm.v1", ins, 1)
        expect_float("layernorm.v1", "x", ins[0])
        expect_last("layernorm.v1", "x", ins[0], self.n_dim)
        return ins

    def params(self) -> Mapping[str, ParamSpec]:
        """gain (D,) of ones, and bias (D,) of zeros if it has one."""
        gain = ParamSpec(shape=(self.n_dim,), init="ones")
        if not self.has_bias:
            return {"gain": gain}
        return {"gain": gain, "bias": ParamSpec(shape=(self.n_dim,), init="zeros")}

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """8 per element: mean, variance, normalization, gain and bias."""
        return 8 * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The normalized rows; saves x and the rows' statistics."""
        (x,) = ins
        x_ND = ctx.backend.reshape(x, (-1, self.n_dim))
        y_ND, rows = ctx.backend.layernorm_forward(x_ND, params["gain"], params.get("bias"), self.eps)
        saved = {"x": x, "mean": rows.mean_N1, "inverse_std": rows.inverse_std_N1}
        return Forward((ctx.backend.reshape(y_ND, x.shape),), saved)

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dx, dgain and dbias."""
        x = saved["x"]
        dx_ND, dgain_D, dbias_D = ctx.backend.layernorm_backward(
            ctx.backend.reshape(x, (-1, self.n_dim)),
            params["gain"],
            LayerNormSaved(saved["mean"], saved["inverse_std"]),
            ctx.backend.reshape(grads[0], (-1, self.n_dim)),
            has_bias=self.has_bias,
        )
        param_grads = {"gain": dgain_D} if dbias_D is None else {"gain": dgain_D, "bias": dbias_D}
        return Backward((ctx.backend.reshape(dx_ND, x.shape),), param_grads)
