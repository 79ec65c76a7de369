"""Checks of a whole graph: order, use of every output, the loss, shapes, gradients. Pure.

Each refusal names the node or edge and its place in the file.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NoReturn

from dcnr_app.nodes.graph.analysis import ShapeError, gradient_references, infer_shapes
from dcnr_app.nodes.graph.expand import NodePlace
from dcnr_app.nodes.graph.network import Network, NetworkNode, split_ref
from dcnr_app.nodes.graph.values import Mark, refuse

Places = Mapping[str, NodePlace]
LOGITS = "logits"


def sort_nodes(nodes: Sequence[NetworkNode], places: Places) -> tuple[NetworkNode, ...]:
    """Nodes in topological order, in file order where that is free (Kahn 1962).

    Raises InvalidError that prints the cycle if there is one.
    """
    position = {node.name: index for index, node in enumerate(nodes)}
    consumers: dict[int, list[int]] = {}
    waiting: list[int] = []
    for index, node in enumerate(nodes):
        sources = {position[name] for name in _source_names(node) if name in position}
        waiting.append(len(sources))
        for source in sources:
            consumers.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    ordered: list[NetworkNode] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(nodes[index])
        for consumer in consumers.get(index, ()):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                heapq.heappush(ready, consumer)
    if len(ordered) < len(nodes):
        done = {node.name for node in ordered}
        _refuse_cycle([node for node in nodes if node.name not in done], places)
    return tuple(ordered)


def check_network(network: Network, places: Places, rows: int, marks: Mapping[str, Mark]) -> None:
    """Refuse a graph that cannot be trained. `marks` are the places of inputs and outputs by name.

    Raises InvalidError.
    """
    _check_loss(network, places, marks)
    counts = _check_shapes(network, places, rows)
    _check_outputs(network, counts, marks)
    _check_logits(network, marks)
    _check_used(network, places, counts, marks)
    _check_gradients(network, places)


def _source_names(node: NetworkNode) -> list[str]:
    return [split_ref(reference)[0] for reference in node.inputs]


def _refuse_cycle(rest: Sequence[NetworkNode], places: Places) -> NoReturn:
    # Every node left has a source that is left too, so walking back from any of them must come round.
    by_name = {node.name: node for node in rest}
    trail = [rest[0].name]
    seen = {trail[0]: 0}
    while True:
        source = next(name for name in _source_names(by_name[trail[-1]]) if name in by_name)
        if source in seen:
            break
        seen[source] = len(trail)
        trail.append(source)
    cycle = trail[seen[source] :][::-1]
    first = min(range(len(cycle)), key=lambda index: places[cycle[index]].mark)
    cycle = cycle[first:] + cycle[:first]
    shown = cycle if len(cycle) <= 12 else [*cycle[:10], "…", cycle[-1]]
    refuse(
        places[cycle[0]].mark,
        f"the nodes feed each other in a circle: {' -> '.join([*shown, cycle[0]])}",
        fix="cut one of these edges",
    )


def _check_loss(network: Network, places: Places, marks: Mapping[str, Mark]) -> None:
    loss = split_ref(network.outputs["loss"])[0]
    for node in network.nodes:
        if node.name == loss and not node.vnode.is_cost:
            refuse(
                marks["loss"],
                f"outputs.loss names {loss!r}, which is no cost VNode",
                fix="name a cross_entropy or mse node",
            )
        if node.vnode.is_cost and node.name != loss:
            refuse(
                places[node.name].mark,
                f"{node.name!r} is a second cost VNode",
                why=f"outputs.loss is {loss!r}, and a network has one cost",
                fix="remove it",
            )


def _check_shapes(network: Network, places: Places, rows: int) -> dict[str, int]:
    """The number of output ports of each node and input."""
    try:
        specs = infer_shapes(network, rows)
    except ShapeError as error:
        place = places[error.node]
        slot = error.slot if error.slot is not None else 0
        mark = place.inputs[slot] if error.slot is not None or len(place.inputs) == 1 else place.mark
        refuse(mark, error.what, why=error.why)
    counts: dict[str, int] = {}
    for reference in specs:
        name = split_ref(reference)[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


def _check_outputs(network: Network, counts: Mapping[str, int], marks: Mapping[str, Mark]) -> None:
    inputs = {entry.name for entry in network.inputs}
    for name, reference in network.outputs.items():
        source, port = split_ref(reference)
        if source in inputs:
            refuse(marks[name], f"outputs.{name} names the network input {source!r}, not a node")
        if port >= counts[source]:
            refuse(marks[name], f"{source!r} has no output port {port}: it has {counts[source]}")


def _check_logits(network: Network, marks: Mapping[str, Mark]) -> None:
    """`logits` are what the cost is made from: their width is the vocabulary, from them text is written."""
    loss = split_ref(network.outputs["loss"])[0]
    cost = next(node for node in network.nodes if node.name == loss)
    if LOGITS not in cost.vnode.in_ports:
        return
    source = cost.inputs[cost.vnode.in_ports.index(LOGITS)]
    named = network.outputs.get(LOGITS)
    if named == source:
        return
    shown = source.removesuffix(":0")
    refuse(
        marks["loss" if named is None else LOGITS],
        f"outputs has no `{LOGITS}`"
        if named is None
        else f"outputs.{LOGITS} names {named.removesuffix(':0')!r}, which the cost is not made from",
        why=f"the vocabulary is the width of what {loss!r} compares with the targets, {shown!r}",
        fix=f'write `{LOGITS}: "{shown}"`' if ":" in shown else f"write `{LOGITS}: {shown}`",
    )


def _check_used(
    network: Network, places: Places, counts: Mapping[str, int], marks: Mapping[str, Mark]
) -> None:
    used = {reference for node in network.nodes for reference in node.inputs} | set(network.outputs.values())
    for entry in network.inputs:
        if f"{entry.name}:0" not in used:
            refuse(marks[entry.name], f"the input {entry.name!r} is used by no node", fix="remove it")
    for node in network.nodes:
        free = [port for port in range(counts[node.name]) if f"{node.name}:{port}" not in used]
        if not free:
            continue
        whole = len(free) == counts[node.name]
        what = f"{node.name!r}" if whole else f"output port {free[0]} of {node.name!r}"
        refuse(
            places[node.name].mark,
            f"{what} is used by no node and is no output",
            fix="connect it, or remove it",
        )


def _check_gradients(network: Network, places: Places) -> None:
    reached = {split_ref(reference)[0] for reference in gradient_references(network)}
    n_trained = 0
    for node in network.nodes:
        if not node.vnode.params():
            continue
        n_trained += 1
        if node.name not in reached and not node.vnode.is_cost:
            refuse(
                places[node.name].mark,
                f"{node.name!r} has parameters, but no gradient reaches it",
                why="no differentiable path leads from it to outputs.loss",
                fix="connect it to the loss, or remove it",
            )
    if n_trained == 0:
        refuse(places[network.nodes[0].name].mark, "the network has no parameters: nothing can be trained")
