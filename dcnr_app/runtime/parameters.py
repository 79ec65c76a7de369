"""Parameter values of one PNode: made from the seed, loaded, copied out, shared by use sites.

Knows the Network's parameters and the optimizer's slots, not who runs what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dcnr_app.engine.backend import AdamWStep, Array, Backend
from dcnr_app.engine.optimizers import apply_update, make_slots, slot_names
from dcnr_app.errors import InvalidError
from dcnr_app.nodes.contract import ParamSpec
from dcnr_app.nodes.graph.analysis import Parameter
from dcnr_app.nodes.graph.training import Optimizer
from dcnr_app.runtime.liveness import BufferLedger

HostArray = np.ndarray[Any, Any]


def initial_value(seed: int, name: str, spec: ParamSpec) -> HostArray:
    """The float32 value that parameter `name` starts with, the same whoever makes it.

    `normal` draws from Philox4x64 (Salmon et al. 2011) keyed by blake2b-128 of seed and canonical name.
    """
    match spec.init:
        case "zeros":
            return np.zeros(spec.shape, np.float32)
        case "ones":
            return np.ones(spec.shape, np.float32)
        case "normal":
            text = seed.to_bytes(8, "little") + name.encode()
            key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
            generator = np.random.Generator(np.random.Philox(key=key))
            return generator.standard_normal(spec.shape, np.float32) * np.float32(spec.std)


class ParameterSet:
    """The parameters with a use site on this PNode; of those it owns, the optimizer slots too.

    All local sites of a parameter use one array. Values are float32.
    """

    def __init__(
        self,
        ledger: BufferLedger,
        backend: Backend,
        parameters: Mapping[str, Parameter],
        owned: frozenset[str],
        optimizer: Optimizer,
    ) -> None:
        self._ledger = ledger
        self._backend = backend
        self._parameters = parameters
        self._owned = owned
        self._optimizer = optimizer
        self._values: dict[str, Array] = {}
        self._slots: dict[str, Mapping[str, Array]] = {}
        self._by_node: dict[str, dict[str, Array]] = {}

    def of_node(self, node: str) -> Mapping[str, Array]:
        """Arrays of one VNode by its own names; empty if it has none or before they were made."""
        return self._by_node.get(node, {})

    def initialise(self, seed: int) -> None:
        """Make every value from the seed, and fresh optimizer slots."""
        for name, parameter in self._parameters.items():
            self._set(name, self._backend.from_host(initial_value(seed, name, parameter.spec)))
            if name in self._owned:
                slots = make_slots(self._backend, self._optimizer.type, self._values[name])
                self._slots[name] = slots

    def value(self, name: str) -> HostArray:
        """A host copy. Raises InvalidError for a parameter without a value here."""
        self._check_known(name)
        return np.array(self._backend.to_host(self._values[name]))

    def state(self, name: str) -> dict[str, HostArray]:
        """Host copies of `weight` and, if owned, the slots; later updates do not touch them."""
        slots = self._slots.get(name, {})
        copies = {slot: np.array(self._backend.to_host(array)) for slot, array in slots.items()}
        return {"weight": self.value(name), **copies}

    def set_value(self, name: str, host: HostArray) -> None:
        """Replace a value. Raises InvalidError if name, shape or dtype does not fit."""
        self._set(name, self._from_host(name, "weight", host))

    def load(self, name: str, tensors: Mapping[str, HostArray]) -> None:
        """Replace `weight` and, if owned, every slot. Raises InvalidError if names, shapes or dtypes do not
        fit; then nothing was replaced."""
        self._check_local(name)
        slots = slot_names(self._optimizer.type) if name in self._owned else ()
        missing = sorted({"weight", *slots} - set(tensors))
        if missing:
            raise InvalidError(
                f"the state of parameter {name!r} lacks {', '.join(missing)}",
                why=f"it came with {', '.join(sorted(tensors)) or 'nothing'}",
                fix="load a checkpoint that was written with the same optimizer",
            )
        loaded = {slot: self._from_host(name, slot, tensors[slot]) for slot in ("weight", *slots)}
        self._set(name, loaded.pop("weight"))
        if name in self._owned:
            self._slots[name] = loaded

    def update(self, name: str, gradient: Array, step: AdamWStep) -> None:
        """One optimizer update of an owned parameter; `gradient` is given up."""
        weight, slots = apply_update(
            self._backend, self._optimizer.type, self._values[name], gradient, self._slots[name], step
        )
        self._slots[name] = slots
        self._set(name, weight)

    def clear(self) -> None:
        """Forget all values and slots."""
        for value in self._values.values():
            self._ledger.disown(value)
        self._values.clear()
        self._slots.clear()
        self._by_node.clear()

    def _set(self, name: str, value: Array) -> None:
        # Foreign: a VNode may give out a view of its parameter, whose memory must never be released.
        self._ledger.hold(value, is_foreign=True)
        if name in self._values:
            self._ledger.disown(self._values[name])
        self._values[name] = value
        for node, own_name in self._parameters[name].sites:
            self._by_node.setdefault(node, {})[own_name] = value

    def _from_host(self, name: str, tensor: str, host: HostArray) -> Array:
        self._check_local(name)
        shape = self._parameters[name].spec.shape
        if host.shape != shape or host.dtype != np.float32:
            raise InvalidError(
                f"tensor {tensor!r} of parameter {name!r} does not fit",
                why=f"expected float32 {shape}, got {host.dtype} {host.shape}",
            )
        # Updates may write in place: never into memory that the caller holds.
        return self._backend.from_host(np.array(host, order="C"))

    def _check_local(self, name: str) -> None:
        if name not in self._parameters:
            raise InvalidError(f"parameter {name!r} has no use site here")

    def _check_known(self, name: str) -> None:
        self._check_local(name)
        if name not in self._values:
            raise InvalidError(f"parameter {name!r} has no value yet", fix="initialise or load it first")
