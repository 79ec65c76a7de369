"""Token embedding table. Knows nothing about where ids come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dcnr_app.engine.backend import Array
from dcnr_app.nodes.contract import Backward, Context, Forward, ParamSpec, TensorSpec, VNode
from dcnr_app.nodes.specs import (
    element_count,
    expect_inputs,
    expect_integer,
    require_not_negative,
    require_positive,
)


class Embedder(VNode, frozen=True, kw_only=True, tag="embedder.v1"):
    """Row lookup  y = W[ids].      dW[v] = Σ_{i: ids_i = v} dy_i,  no gradient for ids

    V tokens of the vocabulary · D model width.   ids (...) int32 or int64 -> y (..., D) in the dtype of W
    (float32 in a Network). Rows of dW are added in the order in which ids stand: the same bits every time.
    Reference: Bengio et al. 2003; init std 0.02 as GPT-2 (Radford et al. 2019).
    """

    n_tokens: int
    n_dim: int
    init_std: float = 0.02

    in_ports: ClassVar[tuple[str, ...]] = ("ids",)
    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse empty tables and a negative spread."""
        require_positive("embedder.v1", n_tokens=self.n_tokens, n_dim=self.n_dim)
        require_not_negative("embedder.v1", init_std=self.init_std)

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """(...) integer -> (..., D) float32."""
        expect_inputs("embedder.v1", ins, 1)
        expect_integer("embedder.v1", "ids", ins[0])
        return (TensorSpec((*ins[0].shape, self.n_dim), "float32"),)

    def params(self) -> Mapping[str, ParamSpec]:
        """weight (V, D): the shape of a linear head's weight, so the two can be shared."""
        shape = (self.n_tokens, self.n_dim)
        return {"weight": ParamSpec(shape=shape, init="normal", std=self.init_std, decays=True)}

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """One per copied element: a lookup multiplies nothing."""
        return element_count(ins[0].shape) * self.n_dim

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """y = W[ids]. Raises ValueError for an id outside 0..V-1."""
        (ids,) = ins
        return Forward((ctx.backend.gather_rows(params["weight"], ids),), {"ids": ids})

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """dW by a scatter-add of the rows of dy."""
        ids_N = ctx.backend.reshape(saved["ids"], (-1,))
        dy_ND = ctx.backend.reshape(grads[0], (-1, self.n_dim))
        dW_VD = ctx.backend.scatter_add_rows(ids_N, dy_ND, self.n_tokens)
        return Backward((None,), {"weight": dW_VD})
