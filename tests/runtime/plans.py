"""Hand-made plans: segments as lists of node names, with the edges that cross them."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr_app.cluster.plan import Plan, Segment
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import Edge, gradient_references, network_edges
from dcnr_app.nodes.graph.network import Network

Cut = Sequence[tuple[str, Sequence[str]]]


def make_plan(network: Network, cut: Cut, n_microbatches: int) -> Plan:
    """A Plan whose segment i is cut[i] = (PNode, node names); segments must be in topological order."""
    place = {name: index for index, (_, names) in enumerate(cut) for name in names}
    edges = network_edges(network)
    with_gradient = _with_gradient(network, edges)
    segments = tuple(
        _segment(index, PNodeId(pnode), tuple(names), edges, place, with_gradient)
        for index, (pnode, names) in enumerate(cut)
    )
    (cost,) = (entry.name for entry in network.nodes if entry.vnode.is_cost)
    pnodes = tuple(dict.fromkeys(PNodeId(pnode) for pnode, _ in cut))
    return Plan(
        generation=1,
        pnodes=pnodes,
        assignment={name: PNodeId(pnode) for pnode, names in cut for name in names},
        segments=segments,
        tasks={},
        cost_segment=place[cost],
        n_microbatches=n_microbatches,
        in_flight=n_microbatches,
        predicted_flops={},
        hop_bytes={},
    )


def cut_at(network: Network, *firsts: str, pnodes: Sequence[str] = ("a",)) -> Cut:
    """Runs of nodes that begin at the named nodes, given to `pnodes` in turn."""
    runs: list[list[str]] = [[]]
    for entry in network.nodes:
        if entry.name in firsts:
            runs.append([])
        runs[-1].append(entry.name)
    return [(pnodes[index % len(pnodes)], run) for index, run in enumerate(runs) if run]


def _with_gradient(network: Network, edges: Sequence[Edge]) -> frozenset[Edge]:
    wanted = gradient_references(network)
    costs = {entry.name for entry in network.nodes if entry.vnode.is_cost}
    passing = costs | {reference.rpartition(":")[0] for reference in wanted}
    return frozenset(edge for edge in edges if edge.reference in wanted and edge.target in passing)


def _segment(
    index: int,
    pnode: PNodeId,
    names: tuple[str, ...],
    edges: Sequence[Edge],
    place: dict[str, int],
    with_gradient: frozenset[Edge],
) -> Segment:
    entering = [edge for edge in edges if edge.target in names and edge.source not in names]
    leaving = [edge for edge in edges if edge.source in names and edge.target not in names]
    return Segment(
        index=index,
        pnode=pnode,
        level=index,
        nodes=names,
        needs=tuple(dict.fromkeys(edge.reference for edge in entering)),
        gives=tuple(dict.fromkeys(edge.reference for edge in leaving)),
        gradients_in=tuple(edge.key for edge in leaving if edge in with_gradient),
        gradients_out=tuple(edge.key for edge in entering if edge in with_gradient and edge.source in place),
        has_backward=any(edge.source in names or edge.target in names for edge in with_gradient),
    )
