"""A network as placement sees it: VNodes by number with their work, tensors between them, parameters. Pure.

Numbers follow the network's order, which is topological; host VNodes are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dcnr_app.nodes.contract import TensorSpec, spec_bytes
from dcnr_app.nodes.graph.analysis import (
    Edge,
    gradient_references,
    infer_shapes,
    network_edges,
    network_parameters,
)
from dcnr_app.nodes.graph.network import Network, split_ref


def tensor_bytes(spec: TensorSpec) -> int:
    """Size of a tensor in bytes."""
    return spec_bytes(spec)


class Use(NamedTuple):
    """One VNode's use of another's output: `key` numbers the tensor."""

    source: int
    target: int
    key: int
    n_bytes: int
    has_gradient: bool


class ParameterWork(NamedTuple):
    """One parameter: float32 bytes of its value, the VNodes that use it, and the one whose PNode owns it."""

    n_bytes: int
    sites: tuple[int, ...]
    owner: int


class NodeWork(NamedTuple):
    """One VNode's work for one microbatch, forward: see `VNode.flops`, `moved_bytes`, `made_bytes`.

    `held_bytes` is the size of inputs, outputs and what is made: what one call can hold at once.
    """

    name: str
    type: str
    flops: int
    moved_bytes: int
    made_bytes: int
    held_bytes: int
    has_backward: bool
    is_cost: bool
    hint: int | None


class Workload(NamedTuple):
    """A network for one size of microbatch. `uses` stand in the order of their targets; `outside_bytes` is
    what each VNode receives of the orchestrator; `hosts` are the VNodes that stay there."""

    nodes: tuple[NodeWork, ...]
    uses: tuple[Use, ...]
    parameters: tuple[ParameterWork, ...]
    outside_bytes: tuple[int, ...]
    hosts: tuple[str, ...]
    below: tuple[int, ...]
    """For each VNode a set of bits: itself and all that depend on it."""

    @property
    def n_nodes(self) -> int:
        """Number of VNodes to place."""
        return len(self.nodes)


def workload_of(network: Network, rows: int) -> Workload:
    """The workload for microbatches of `rows` rows. Raises InvalidError if shapes do not fit."""
    specs = infer_shapes(network, rows)
    edges = network_edges(network)
    with_gradient = gradient_edges(network, edges)
    placed = [node for node in network.nodes if not node.vnode.is_host]
    number = {node.name: index for index, node in enumerate(placed)}
    receivers = {split_ref(key.partition(">")[0])[0] for key in with_gradient if ">" in key}
    nodes = []
    for node in placed:
        ins = tuple(specs[reference] for reference in node.inputs)
        made_bytes = node.vnode.made_bytes(ins)
        nodes.append(
            NodeWork(
                name=node.name,
                type=str(type(node.vnode).__struct_config__.tag),
                flops=node.vnode.flops(ins),
                moved_bytes=node.vnode.moved_bytes(ins),
                made_bytes=made_bytes,
                held_bytes=made_bytes + spec_bytes(*ins),
                has_backward=node.vnode.is_cost or node.name in receivers,
                is_cost=node.vnode.is_cost,
                hint=node.pnode,
            )
        )
    uses = _uses(edges, number, specs, with_gradient)
    return Workload(
        nodes=tuple(nodes),
        uses=uses,
        parameters=tuple(
            ParameterWork(
                n_bytes=spec_bytes(TensorSpec(parameter.spec.shape, "float32")),
                sites=tuple(number[name] for name, _ in parameter.sites),
                owner=number[parameter.sites[0][0]],
            )
            for parameter in network_parameters(network).values()
        ),
        outside_bytes=_outside_bytes(edges, number, specs),
        hosts=tuple(node.name for node in network.nodes if node.vnode.is_host),
        below=_below(uses, len(nodes)),
    )


def gradient_edges(network: Network, edges: Sequence[Edge]) -> frozenset[str]:
    """Keys of the edges that carry a gradient back; the cost's name stands for the one it seeds itself."""
    wanted = gradient_references(network)
    keys = {edge.key for edge in edges if edge.reference in wanted}
    differentiable = {node.name for node in network.nodes if node.vnode.is_differentiable}
    costs = {node.name for node in network.nodes if node.vnode.is_cost}
    reached = set(costs) | {split_ref(reference)[0] for reference in wanted}
    keep = {edge.key for edge in edges if edge.target in differentiable and edge.target in reached}
    return frozenset((keys & keep) | costs)


def _uses(
    edges: Sequence[Edge],
    number: Mapping[str, int],
    specs: Mapping[str, TensorSpec],
    with_gradient: frozenset[str],
) -> tuple[Use, ...]:
    key_of: dict[str, int] = {}
    return tuple(
        Use(
            source=number[edge.source],
            target=number[edge.target],
            key=key_of.setdefault(edge.reference, len(key_of)),
            n_bytes=spec_bytes(specs[edge.reference]),
            has_gradient=edge.key in with_gradient,
        )
        for edge in edges
        if edge.source in number and edge.target in number
    )


def _below(uses: Sequence[Use], n_nodes: int) -> tuple[int, ...]:
    below = [1 << node for node in range(n_nodes)]
    for use in sorted(uses, key=lambda use: -use.source):
        below[use.source] |= below[use.target]
    return tuple(below)


def _outside_bytes(
    edges: Sequence[Edge], number: Mapping[str, int], specs: Mapping[str, TensorSpec]
) -> tuple[int, ...]:
    total = [0] * len(number)
    for edge in edges:
        if edge.target in number and edge.source not in number:
            total[number[edge.target]] += spec_bytes(specs[edge.reference])
    return tuple(total)


class Groups(NamedTuple):
    """VNodes grouped into what will be segments: members of each in order, its place and level, and the group
    of each VNode. An edge between groups goes to a higher level."""

    members: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    levels: tuple[int, ...]
    of_node: tuple[int, ...]


def group_nodes(work: Workload, places: Sequence[int]) -> Groups:
    """Connected groups of equal (place, level); `places` numbers the place of every VNode.

    The level counts the changes of place on the way to a VNode, so groups cannot wait for each other in a
    circle. A group also ends at a fork whose branches go to other places, as a layer's heads: its tensors
    leave before the branches that stay are computed, so that all run at once.
    """
    level = [0] * len(places)
    forks = _forks(work, places)
    for use in work.uses:
        is_cut = places[use.source] != places[use.target] or use.source in forks
        reached = level[use.source] + is_cut
        if reached > level[use.target]:
            level[use.target] = reached
    parent = list(range(len(places)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for source, target, *_ in work.uses:
        if level[source] == level[target] and places[source] == places[target]:
            parent[root(target)] = root(source)
    found: dict[int, list[int]] = {}
    for node in range(len(places)):
        found.setdefault(root(node), []).append(node)
    members = sorted(found.values(), key=lambda group: level[group[0]])
    of_node = [0] * len(places)
    for index, group in enumerate(members):
        for node in group:
            of_node[node] = index
    return Groups(
        members=tuple(tuple(group) for group in members),
        places=tuple(places[group[0]] for group in members),
        levels=tuple(level[group[0]] for group in members),
        of_node=tuple(of_node),
    )


def _forks(work: Workload, places: Sequence[int]) -> set[int]:
    """VNodes that feed one here and one elsewhere of which neither waits for the other."""
    here: dict[int, list[int]] = {}
    away: dict[int, list[int]] = {}
    for use in work.uses:
        side = here if places[use.source] == places[use.target] else away
        side.setdefault(use.source, []).append(use.target)
    below = work.below
    return {
        node
        for node, others in away.items()
        for stays in here.get(node, ())
        for goes in others
        if not (below[stays] >> goes & 1 or below[goes] >> stays & 1)
    }
