"""What `network show` prints: one row per node, and totals. Plain data."""

from __future__ import annotations

from math import prod

import msgspec

from dcnr_app.engine.backend import Shape
from dcnr_app.nodes.contract import tag_of
from dcnr_app.nodes.graph.analysis import infer_shapes
from dcnr_app.nodes.graph.network import Network, ref


class NetworkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `shape` is that of output port 0; `parameters` counts what the node owns, not what it
    shares; `flops` are forward FLOPs for one microbatch."""

    name: str
    type: str
    inputs: tuple[str, ...]
    shape: Shape
    parameters: int
    flops: int


class NetworkTable(msgspec.Struct, frozen=True, kw_only=True):
    """All rows in topological order, and their sums. `rows_per_microbatch` is what `flops` counts for."""

    name: str
    rows: tuple[NetworkRow, ...]
    parameters: int
    flops: int
    rows_per_microbatch: int


def network_table(network: Network, rows: int) -> NetworkTable:
    """The table for `rows` rows in a microbatch. Raises InvalidError if the shapes do not fit."""
    specs = infer_shapes(network, rows)
    table = []
    for node in network.nodes:
        owned = [spec for name, spec in node.vnode.params().items() if name not in node.share]
        table.append(
            NetworkRow(
                name=node.name,
                type=tag_of(type(node.vnode)),
                inputs=tuple(reference.removesuffix(":0") for reference in node.inputs),
                shape=specs[ref(node.name)].shape,
                parameters=sum(prod(spec.shape) for spec in owned),
                flops=node.vnode.flops(tuple(specs[reference] for reference in node.inputs)),
            )
        )
    return NetworkTable(
        name=network.name,
        rows=tuple(table),
        parameters=sum(row.parameters for row in table),
        flops=sum(row.flops for row in table),
        rows_per_microbatch=rows,
    )
