"""Turns a batch source's microbatches into the tensors that a Network takes from outside. Runs host
VNodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dcnr_app.data.source import BatchSource, HostArray, Microbatch
from dcnr_app.engine.backend import Backend
from dcnr_app.errors import InvalidError
from dcnr_app.nodes.contract import Context
from dcnr_app.nodes.graph.network import Network, ref

TOKENS = "tokens"
TARGETS = "targets"


def check_inputs(network: Network) -> None:
    """Raise InvalidError unless the network takes just `tokens` and `targets`, as a language model does."""
    names = {entry.name for entry in network.inputs}
    if names != {TOKENS, TARGETS}:
        raise InvalidError(
            f"network {network.name!r} takes {', '.join(sorted(names))}",
            why="a dataset gives the inputs tokens and targets",
            fix=f"declare the inputs {TOKENS} and {TARGETS}",
        )


def feed(
    network: Network,
    backend: Backend,
    assets: Mapping[str, Any],
    tokens_BT: HostArray,
    targets_BT: HostArray,
) -> dict[str, HostArray]:
    """Input tensors by reference, int32, the outputs of host VNodes included."""
    values: dict[str, Any] = {ref(TOKENS): tokens_BT, ref(TARGETS): targets_BT}
    context = Context(backend=backend, assets=assets)
    for node in network.nodes:
        if node.vnode.is_host and all(reference in values for reference in node.inputs):
            outs = node.vnode.forward(context, {}, tuple(values[reference] for reference in node.inputs)).outs
            values.update({ref(node.name, port): out for port, out in enumerate(outs)})
    return {reference: backend.to_host(value) for reference, value in values.items()}


class SessionFeed:
    """A session's Feed: its batch source behind the network's host VNodes."""

    def __init__(
        self, network: Network, source: BatchSource, backend: Backend, assets: Mapping[str, Any]
    ) -> None:
        check_inputs(network)
        self._network = network
        self._source = source
        self._backend = backend
        self._assets = assets

    def batch(self, step: int) -> tuple[list[dict[str, HostArray]], list[int], list[int]]:
        """(tensors per microbatch, target counts, sample ids) of a step."""
        microbatches = self._source.batch(step)
        samples = [sample for microbatch in microbatches for sample in microbatch.samples]
        return self._tensors(microbatches), [m.target_count for m in microbatches], samples

    def validation(self) -> tuple[list[dict[str, HostArray]], list[int]]:
        """(tensors per microbatch, target counts) of the validation."""
        microbatches = self._source.validation()
        return self._tensors(microbatches), [m.target_count for m in microbatches]

    def prompt(self, ids: Sequence[int], rows: int, context: int) -> tuple[dict[str, HostArray], int]:
        """(tensors, row of the last id) for generating after `ids`; only the last `context` of them fit."""
        kept = list(ids)[-context:]
        tokens_BT = np.zeros((rows, context), np.int32)
        tokens_BT[0, : len(kept)] = kept
        targets_BT = np.full((rows, context), -1, np.int32)
        return self._feed(tokens_BT, targets_BT), len(kept) - 1

    def _tensors(self, microbatches: Sequence[Microbatch]) -> list[dict[str, HostArray]]:
        return [self._feed(microbatch.tokens, microbatch.targets) for microbatch in microbatches]

    def _feed(self, tokens_BT: HostArray, targets_BT: HostArray) -> dict[str, HostArray]:
        return feed(self._network, self._backend, self._assets, tokens_BT, targets_BT)
