"""The table of optimizers: slots and update of each. Knows no array library and no schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dcnr_app.engine.backend import AdamWStep, Array, Backend, DType

Slots = Mapping[str, Array]
Update = Callable[[Backend, Array, Array, Slots, AdamWStep], tuple[Array, Slots]]


class OptimizerKind(NamedTuple):
    """Slot names in canonical order, and the update."""

    slot_names: tuple[str, ...]
    update: Update


def _adamw(
    backend: Backend, weight: Array, gradient: Array, slots: Slots, step: AdamWStep
) -> tuple[Array, Slots]:
    weight, m, v = backend.adamw(weight, gradient, slots["m"], slots["v"], step)
    return weight, {"m": m, "v": v}


def _sgd(
    backend: Backend, weight: Array, gradient: Array, slots: Slots, step: AdamWStep
) -> tuple[Array, Slots]:
    weight, velocity = backend.sgd(weight, gradient, slots["velocity"], step)
    return weight, {"velocity": velocity}


OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = MappingProxyType(
    {"adamw": OptimizerKind(("m", "v"), _adamw), "sgd": OptimizerKind(("velocity",), _sgd)}
)
"""Optimizers by the `type` of the training settings; a new one is one entry."""


def slot_names(kind: str) -> tuple[str, ...]:
    """An optimizer's slot names. Raises ValueError for an unknown one."""
    return _lookup(kind).slot_names


def make_slots(backend: Backend, kind: str, weight: Array) -> Slots:
    """Zeroed slots of the weight's shape: float64 for a float64 weight, else float32."""
    dtype: DType = "float64" if backend.dtype_of(weight) == "float64" else "float32"
    return {name: backend.zeros(weight.shape, dtype) for name in slot_names(kind)}


def apply_update(
    backend: Backend, kind: str, weight: Array, gradient: Array, slots: Slots, step: AdamWStep
) -> tuple[Array, Slots]:
    """(weight, slots) after one update; the arguments are given up. Raises ValueError for missing slots."""
    optimizer = _lookup(kind)
    if set(slots) != set(optimizer.slot_names):
        raise ValueError(f"{kind} expects slots {optimizer.slot_names}, got {tuple(slots)}")
    return optimizer.update(backend, weight, gradient, slots, step)


def _lookup(kind: str) -> OptimizerKind:
    found = OPTIMIZERS.get(kind)
    if found is None:
        raise ValueError(f"expected an optimizer of {', '.join(OPTIMIZERS)}; got {kind!r}")
    return found
