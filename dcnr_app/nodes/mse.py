"""Squared-error cost. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.specs import (
    accumulation_dtype,
    element_count,
    expect_all_equal,
    expect_float,
    expect_inputs,
)


class Mse(VNode, frozen=True, kw_only=True, tag="mse.v1"):
    """Sum of squared errors  ℓ = Σ (p − t)².      dp = 2 (p − t) dℓ,  dt = −dp

    prediction p and target t (...) of one float dtype -> ℓ () in float32 (float64 for float64).
    A sum, not a mean: the incoming gradient is the seed scale / count, which makes the mean of it.
    """

    in_ports: ClassVar[tuple[str, ...]] = ("prediction", "target")
    is_cost: ClassVar[bool] = True

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(...) twice -> ()."""
        expect_inputs("mse.v1", ins, 2)
        prediction = expect_all_equal("mse.v1", ins)
        expect_float("mse.v1", "prediction", prediction)
        return (TensorSpec((), accumulation_dtype(prediction.dtype)),)

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """3 per element."""
        return 3 * element_count(ins[0].shape)

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """The loss sum; saves both inputs."""
        prediction, target = ins
        error = _error(ctx, prediction, target)
        return Forward((ctx.backend.sum(error * error, None),), {"prediction": prediction, "target": target})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """Twice the error times the seed, and its negative."""
        error = _error(ctx, saved["prediction"], saved["target"])
        dprediction = ctx.backend.cast(error * (grads[0] * 2.0), ctx.backend.dtype_of(saved["prediction"]))
        return Backward((dprediction, -dprediction), {})


def _error(ctx: Context, prediction: Array, target: Array) -> Array:
    """p − t in the accumulation dtype."""
    dtype = accumulation_dtype(ctx.backend.dtype_of(prediction))
    return ctx.backend.cast(prediction, dtype) - ctx.backend.cast(target, dtype)
