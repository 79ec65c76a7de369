"""The VNode contract: what a neural component is. Knows no array library and no network.

A VNode is a frozen tagged Struct: registry entry, YAML form, wire form and stored form in one.
Gradient locality: `backward` sees only its own parameters, its own `saved` arrays and the incoming gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from dcnr_app.engine.backend import Array, Backend, DType, Shape


class TensorSpec(msgspec.Struct, frozen=True):
    """Shape and dtype of a tensor, without the tensor."""

    shape: Shape
    dtype: DType


class ParamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter's shape and init law; the owner PNode makes the values from the session seed and its
    name."""

    shape: Shape
    init: Literal["normal", "zeros", "ones"]
    std: float = 0.0
    decays: bool = False
    """Whether weight decay applies (matrices: yes; gains and biases: no)."""


class Forward(NamedTuple):
    """What forward gives: outputs by port, and the arrays that backward will need, by name."""

    outs: tuple[Array, ...]
    saved: Mapping[str, Array]


class Backward(NamedTuple):
    """Input gradients by port (None for integer inputs) and parameter gradients by name."""

    in_grads: tuple[Array | None, ...]
    param_grads: Mapping[str, Array]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a VNode may know of its surroundings in one call.

    `key` is (session seed, step, microbatch, VNode hash): randomness is a function of it alone.
    `position` is the first token's position (0 in training). `assets` holds host objects of host VNodes.
    """

    backend: Backend
    is_training: bool = True
    key: tuple[int, ...] = (0, 0, 0, 0)
    position: int = 0
    assets: Mapping[str, Any] = {}


class VNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all VNode types; a type is one file in this folder with `tag="<name>.v<version>"`.

    Class facts: `in_ports` names the inputs (`is_variadic`: the last one repeats, at least once);
    `is_differentiable` False means that no gradient passes; `is_cost` marks a loss whose single output is a
    sum; `is_host` VNodes stay on the orchestrator; `is_row_wise` means that row i of the output depends on
    row i only.
    """

    in_ports: ClassVar[tuple[str, ...]] = ("x",)
    is_variadic: ClassVar[bool] = False
    is_differentiable: ClassVar[bool] = True
    is_cost: ClassVar[bool] = False
    is_host: ClassVar[bool] = False
    is_row_wise: ClassVar[bool] = False

    def shapes(self, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Output specs for input specs. Raises ValueError that says what was expected and what came."""
        raise NotImplementedError

    def params(self) -> Mapping[str, ParamSpec]:
        """Parameters by name; empty unless overridden."""
        return {}

    def flops(self, ins: tuple[TensorSpec, ...]) -> int:
        """Forward FLOPs (2 per multiply-add), for placement. Default: one per output element."""
        return sum(_size(out.shape) for out in self.shapes(ins))

    def moved_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """Bytes that forward reads and writes beside matrix products, for placement. Default: in and out."""
        return spec_bytes(*ins, *self.shapes(ins))

    def made_bytes(self, ins: tuple[TensorSpec, ...]) -> int:
        """Bytes of the arrays that forward makes for others or for backward, up to a few numbers per row, for
        placement. Default: the outputs, none of which is a view."""
        return spec_bytes(*self.shapes(ins))

    def forward(self, ctx: Context, params: Mapping[str, Array], ins: tuple[Array, ...]) -> Forward:
        """Outputs and saved arrays; writes into none of its arguments."""
        raise NotImplementedError

    def backward(
        self, ctx: Context, params: Mapping[str, Array], saved: Mapping[str, Array], grads: tuple[Array, ...]
    ) -> Backward:
        """Gradients from parameters, saved arrays and output gradients alone; mutates nothing."""
        raise NotImplementedError

    def decode(
        self, ctx: Context, params: Mapping[str, Array], cache: Mapping[str, Array], ins: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], Mapping[str, Array]]:
        """One generation step with a cache; default: forward, no cache."""
        return self.forward(ctx, params, ins).outs, cache


ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
)


def spec_bytes(*specs: TensorSpec) -> int:
    """Size of these tensors together, in bytes."""
    return sum(ITEM_BYTES[spec.dtype] * _size(spec.shape) for spec in specs)


def tag_of(vnode_type: type[VNode]) -> str:
    """The type's registry tag, e.g. `linear.v1`."""
    return str(vnode_type.__struct_config__.tag)


def _size(shape: Shape) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
