"""Facts derived from a Network: shapes, edges, shared parameters, FLOPs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dcnr_app.errors import InvalidError
from dcnr_app.nodes.contract import ParamSpec, TensorSpec
from dcnr_app.nodes.graph.network import Network, NetworkNode, ref, split_ref


class Edge(msgspec.Struct, frozen=True):
    """One use of one tensor: output `port` of `source` feeds input `slot` of `target`."""

    source: str
    port: int
    target: str
    slot: int

    @property
    def reference(self) -> str:
        """The tensor that this edge carries forward."""
        return ref(self.source, self.port)

    @property
    def key(self) -> str:
        """The edge's name; its gradient is known by it."""
        return f"{self.source}:{self.port}>{self.target}:{self.slot}"


class Parameter(msgspec.Struct, frozen=True):
    """A parameter with all its use sites, `(node, own name)` sorted by "node.own name"; the first site owns
    it."""

    name: str
    spec: ParamSpec
    sites: tuple[tuple[str, str], ...]


class ShapeError(InvalidError):
    """Shapes that do not fit at `node`; `slot` is the input at fault where one alone is."""

    def __init__(self, what: str, *, node: str, slot: int | None = None, why: str = "") -> None:
        super().__init__(what, why=why)
        self.node = node
        self.slot = slot


def infer_shapes(network: Network, rows: int) -> dict[str, TensorSpec]:
    """Spec of every tensor by reference, for `rows` rows in a microbatch.

    Raises ShapeError that names the node, its inputs with their shapes, and what was expected.
    """
    specs: dict[str, TensorSpec] = {}
    n_ports: dict[str, int] = {}
    for entry in network.inputs:
        shape = tuple(rows if length == "batch" else length for length in entry.shape)
        specs[ref(entry.name)] = TensorSpec(shape, entry.dtype)
    for node in network.nodes:
        for slot, reference in enumerate(node.inputs):
            if reference not in specs:
                source, port = split_ref(reference)
                raise ShapeError(
                    f"{source!r} has no output port {port}: it has {n_ports.get(source, 1)}",
                    node=node.name,
                    slot=slot,
                )
        outs = _node_shapes(node, tuple(specs[reference] for reference in node.inputs))
        n_ports[node.name] = len(outs)
        specs.update((ref(node.name, port), spec) for port, spec in enumerate(outs))
    return specs


def _node_shapes(node: NetworkNode, ins: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    try:
        return node.vnode.shapes(ins)
    except ValueError as error:
        edges = [
            f"{reference.removesuffix(':0')} {spec.dtype} {spec.shape}"
            for reference, spec in zip(node.inputs, ins, strict=True)
        ]
        shown = edges if len(edges) <= 8 else [*edges[:8], "…"]
        raise ShapeError(
            f"shapes do not fit at node {node.name!r}: {error}",
            node=node.name,
            why=f"it receives {', '.join(shown)}",
        ) from error


def network_edges(network: Network) -> tuple[Edge, ...]:
    """All edges between nodes and from inputs, in the order of target node and slot: the canonical fold
    order."""
    return tuple(
        Edge(*split_ref(reference), node.name, slot)
        for node in network.nodes
        for slot, reference in enumerate(node.inputs)
    )


def network_parameters(network: Network) -> dict[str, Parameter]:
    """Parameters by canonical name, sorted. Shared ones appear once, with every site."""
    sites: dict[str, list[tuple[str, str]]] = {}
    specs: dict[str, ParamSpec] = {}
    for node in network.nodes:
        for own_name, spec in node.vnode.params().items():
            canonical = node.share.get(own_name, f"{node.name}.{own_name}")
            sites.setdefault(canonical, []).append((node.name, own_name))
            if own_name not in node.share:
                specs[canonical] = spec
    return {
        name: Parameter(
            name, specs[name], tuple(sorted(sites[name], key=lambda site: f"{site[0]}.{site[1]}"))
        )
        for name in sorted(sites)
    }


def nodes_by_name(network: Network) -> Mapping[str, NetworkNode]:
    """Nodes by name."""
    return {node.name: node for node in network.nodes}


def node_flops(network: Network, rows: int) -> dict[str, int]:
    """Forward FLOPs per node for one microbatch of `rows` rows."""
    specs = infer_shapes(network, rows)
    return {
        node.name: node.vnode.flops(tuple(specs[reference] for reference in node.inputs))
        for node in network.nodes
    }


def gradient_references(network: Network) -> frozenset[str]:
    """References of tensors through which a gradient flows.

    A gradient flows into a node's output if the node is differentiable, some differentiable consumer passes
    one on, and a parameter lies at or above it; the cost node starts it.
    """
    has_parameter: dict[str, bool] = {entry.name: False for entry in network.inputs}
    for node in network.nodes:
        above = any(has_parameter[split_ref(reference)[0]] for reference in node.inputs)
        has_parameter[node.name] = node.vnode.is_differentiable and (above or bool(node.vnode.params()))
    wanted: set[str] = set()
    receiving: set[str] = set()
    for node in reversed(network.nodes):
        if not node.vnode.is_differentiable or not (node.vnode.is_cost or node.name in receiving):
            continue
        for reference in node.inputs:
            source = split_ref(reference)[0]
            if has_parameter[source]:
                wanted.add(reference)
                receiving.add(source)
    return frozenset(wanted)
