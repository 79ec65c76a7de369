"""From an assignment to a Plan: segments, and one global task order restricted to each PNode. Pure.

The order comes from a list-scheduling simulation of one step: backward before forward, lowest microbatch
first (1F1B, Narayanan et al. 2019), at most `in_flight` microbatches under way. Since it is a topological
order of all tasks, PNodes that each follow their part of it cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dcnr_app.cluster.costs import cost_tables, in_flight_for, pipeline_of
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.plan import Plan, Segment, Task
from dcnr_app.cluster.timeline import Flow, Pipeline, Stage, simulate
from dcnr_app.cluster.workload import (
    Groups,
    Workload,
    gradient_edges,
    group_nodes,
    tensor_bytes,
    workload_of,
)
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import Edge, infer_shapes, network_edges
from dcnr_app.nodes.graph.network import Network, split_ref
from dcnr_app.nodes.graph.training import TrainingSettings


def build_plan(
    network: Network,
    assignment: Mapping[str, PNodeId],
    pnodes: Sequence[PNodeId],
    settings: TrainingSettings,
    *,
    generation: int,
    facts: ClusterFacts | None = None,
) -> Plan:
    """The Plan of one generation for this assignment; with `facts` tasks are ordered by measured times.

    The order changes no result.
    """
    work = workload_of(network, settings.rows)
    number = {pnode: place for place, pnode in enumerate(pnodes)}
    groups = group_nodes(work, [number[assignment[node.name]] for node in work.nodes])
    segments = _segments(network, work, groups, pnodes)
    in_flight = in_flight_for(settings, groups.levels)
    costs = [sum(work.nodes[node].flops for node in members) for members in groups.members]
    if facts is None:
        pipeline = _unmeasured(segments, costs, settings.microbatches, in_flight)
    else:
        pipeline = pipeline_of(cost_tables(work, facts.only(pnodes), settings), groups)
    order = [
        Task("B" if is_backward else "F", microbatch, stage)
        for is_backward, microbatch, stage in simulate(pipeline).order
    ]
    predicted = dict.fromkeys(pnodes, 0)
    for segment, cost in zip(segments, costs, strict=True):
        predicted[segment.pnode] += 3 * cost * settings.microbatches
    return Plan(
        generation=generation,
        pnodes=tuple(pnodes),
        assignment=dict(assignment),
        segments=segments,
        tasks={
            pnode: tuple(task for task in order if segments[task.segment].pnode == pnode) for pnode in pnodes
        },
        cost_segment=next(
            index
            for index, members in enumerate(groups.members)
            if any(work.nodes[node].is_cost for node in members)
        ),
        n_microbatches=settings.microbatches,
        in_flight=in_flight,
        predicted_flops=predicted,
        hop_bytes=_hop_bytes(network, segments, settings.rows),
    )


def _segments(
    network: Network, work: Workload, groups: Groups, pnodes: Sequence[PNodeId]
) -> tuple[Segment, ...]:
    """The groups as segments; `pnodes` are the places that they name."""
    names = [node.name for node in work.nodes]
    of_node = dict(zip(names, groups.of_node, strict=True))
    edges = network_edges(network)
    graph = _Graph(edges, of_node, gradient_edges(network, edges), text_nodes(network))
    return tuple(
        _segment(index, [names[node] for node in members], groups.levels[index], pnodes[place], graph)
        for index, (members, place) in enumerate(zip(groups.members, groups.places, strict=True))
    )


class _Graph(NamedTuple):
    """What all segments are cut from: edges, each VNode's segment, keys with a gradient, VNodes of the
    logits."""

    edges: Sequence[Edge]
    of_node: Mapping[str, int]
    with_gradient: frozenset[str]
    text: frozenset[str]


def text_nodes(network: Network) -> frozenset[str]:
    """Names of the VNodes and inputs that the logits depend on; empty for a network without logits."""
    found = {split_ref(network.outputs["logits"])[0]} if "logits" in network.outputs else set()
    for node in reversed(network.nodes):
        if node.name in found:
            found.update(split_ref(reference)[0] for reference in node.inputs)
    return frozenset(found)


def _segment(
    index: int,
    nodes: Sequence[str],
    level: int,
    pnode: PNodeId,
    graph: _Graph,
) -> Segment:
    inside = set(nodes)
    entering = [edge for edge in graph.edges if edge.target in inside and edge.source not in inside]
    leaving = [
        edge
        for edge in graph.edges
        if edge.source in inside and edge.target not in inside and edge.target in graph.of_node
    ]
    gradients_in = tuple(edge.key for edge in leaving if edge.key in graph.with_gradient)
    return Segment(
        index=index,
        pnode=pnode,
        level=level,
        nodes=tuple(nodes),
        needs=tuple(dict.fromkeys(edge.reference for edge in entering)),
        gives=tuple(dict.fromkeys(edge.reference for edge in leaving)),
        gradients_in=gradients_in,
        gradients_out=tuple(
            edge.key for edge in entering if edge.key in graph.with_gradient and edge.source in graph.of_node
        ),
        has_backward=bool(gradients_in) or bool(graph.with_gradient & inside),
        text_needs=tuple(dict.fromkeys(edge.reference for edge in entering if edge.target in graph.text)),
    )


def segment_links(segments: Sequence[Segment]) -> tuple[tuple[int, int], ...]:
    """(from, to) pairs of segments that are joined by at least one forward tensor."""
    producer = {reference: segment.index for segment in segments for reference in segment.gives}
    links = {
        (producer[reference], segment.index)
        for segment in segments
        for reference in segment.needs
        if reference in producer
    }
    return tuple(sorted(links))


def _hop_bytes(network: Network, segments: Sequence[Segment], rows: int) -> dict[str, int]:
    specs = infer_shapes(network, rows)
    producer = {reference: segment.pnode for segment in segments for reference in segment.gives}
    of_node = {name: segment.pnode for segment in segments for name in segment.nodes}
    total: dict[str, int] = {}
    for segment in segments:
        for reference in segment.needs:
            source = producer.get(reference)
            if source is not None and source != segment.pnode:
                key = f"{source}>{segment.pnode}"
                total[key] = total.get(key, 0) + tensor_bytes(specs[reference])
        for edge_key in segment.gradients_out:
            reference = edge_key.partition(">")[0]
            target = of_node[split_ref(reference)[0]]
            if target != segment.pnode:
                key = f"{segment.pnode}>{target}"
                total[key] = total.get(key, 0) + tensor_bytes(specs[reference])
    return dict(sorted(total.items()))


def segment_flows(segments: Sequence[Segment]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(from, to) pairs of segments that are joined by a tensor, forward; and by a gradient, backward."""
    of_node = {name: segment.index for segment in segments for name in segment.nodes}
    backward = {
        (segment.index, of_node[edge_key.partition(":")[0]])
        for segment in segments
        for edge_key in segment.gradients_out
    }
    return segment_links(segments), tuple(sorted(backward))


def _unmeasured(
    segments: Sequence[Segment], costs: Sequence[int], n_microbatches: int, in_flight: int
) -> Pipeline:
    """A step where nothing was measured. The unit of time is a forward FLOP: backward takes twice the
    forward, a hop as long as a mean segment."""
    durations = [float(max(1, cost)) for cost in costs]
    latency = float(max(1, int(sum(durations)) // len(segments)))
    places = {pnode: place for place, pnode in enumerate(dict.fromkeys(s.pnode for s in segments))}

    def flow(source: int, target: int) -> Flow:
        is_hop = segments[source].pnode != segments[target].pnode
        return Flow(source, target, 0.0, latency if is_hop else 0.0)

    forward, backward = segment_flows(segments)
    return Pipeline(
        stages=[
            Stage(places[segment.pnode], duration, 2.0 * duration if segment.has_backward else None)
            for segment, duration in zip(segments, durations, strict=True)
        ],
        forward=[flow(*pair) for pair in forward],
        backward=[flow(*pair) for pair in backward],
        n_microbatches=n_microbatches,
        in_flight=in_flight,
        window_delay=latency,
    )
