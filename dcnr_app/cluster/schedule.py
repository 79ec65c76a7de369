"""From an assignment to a Plan: segments, and one global task order restricted to each PNode. Pure.

The order comes from a list-scheduling simulation of one step: backward before forward, lowest microbatch
first (1F1B, Narayanan et al. 2019), at most `in_flight` microbatches under way. Since it is a topological
order of all tasks, PNodes that each follow their part of it cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dcnr_app.cluster.placement import tensor_bytes
from dcnr_app.cluster.plan import Plan, Segment, Task
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import Edge, gradient_references, infer_shapes, network_edges, node_flops
from dcnr_app.nodes.graph.network import Network, split_ref
from dcnr_app.nodes.graph.training import TrainingSettings


def build_plan(
    network: Network,
    assignment: Mapping[str, PNodeId],
    pnodes: Sequence[PNodeId],
    settings: TrainingSettings,
    *,
    generation: int,
) -> Plan:
    """The Plan of one generation for this assignment."""
    segments = _segments(network, assignment)
    in_flight = settings.in_flight or 2 * (1 + max(segment.level for segment in segments)) + 2
    in_flight = min(settings.microbatches, in_flight)
    flops = node_flops(network, settings.rows)
    costs = [sum(flops[name] for name in segment.nodes) for segment in segments]
    order = _task_order(segments, costs, settings.microbatches, in_flight)
    cost_names = {node.name for node in network.nodes if node.vnode.is_cost}
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
        cost_segment=next(s.index for s in segments if cost_names & set(s.nodes)),
        n_microbatches=settings.microbatches,
        in_flight=in_flight,
        predicted_flops=predicted,
        hop_bytes=_hop_bytes(network, segments, settings.rows),
    )


def _segments(network: Network, assignment: Mapping[str, PNodeId]) -> tuple[Segment, ...]:
    """Connected groups of equal (PNode, level); an edge between groups always goes to a higher level."""
    placed = [node for node in network.nodes if not node.vnode.is_host]
    names = {node.name for node in placed}
    edges = network_edges(network)
    level: dict[str, int] = {}
    for node in placed:
        level[node.name] = max(
            (
                level[source] + (assignment[source] != assignment[node.name])
                for source in (split_ref(reference)[0] for reference in node.inputs)
                if source in names
            ),
            default=0,
        )
    group: dict[str, str] = {node.name: node.name for node in placed}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for edge in edges:
        same = edge.source in names and level[edge.source] == level[edge.target]
        if same and assignment[edge.source] == assignment[edge.target]:
            group[root(edge.target)] = root(edge.source)
    members: dict[str, list[str]] = {}
    for node in placed:
        members.setdefault(root(node.name), []).append(node.name)
    ordered = sorted(members.values(), key=lambda nodes: level[nodes[0]])
    of_node = {name: index for index, nodes in enumerate(ordered) for name in nodes}
    graph = _Graph(edges, of_node, _gradient_edges(network, edges), text_nodes(network))
    return tuple(
        _segment(index, nodes, level[nodes[0]], assignment[nodes[0]], graph)
        for index, nodes in enumerate(ordered)
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


def _gradient_edges(network: Network, edges: Sequence[Edge]) -> frozenset[str]:
    """Keys of the edges that carry a gradient back; the cost's key stands for the one it seeds itself."""
    wanted = gradient_references(network)
    keys = {edge.key for edge in edges if edge.reference in wanted}
    differentiable = {node.name for node in network.nodes if node.vnode.is_differentiable}
    costs = {node.name for node in network.nodes if node.vnode.is_cost}
    reached = set(costs) | {split_ref(reference)[0] for reference in wanted}
    keep = {edge.key for edge in edges if edge.target in differentiable and edge.target in reached}
    return frozenset((keys & keep) | costs)


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


class _Simulation:
    """One step's list schedule in simulated time; holds what is done and what each PNode may start."""

    def __init__(
        self, segments: Sequence[Segment], costs: Sequence[int], n_microbatches: int, in_flight: int
    ) -> None:
        self.segments = segments
        self.costs = [max(1, cost) for cost in costs]
        self.n_microbatches = n_microbatches
        self.in_flight = in_flight
        self.done: dict[Task, float] = {}
        links = segment_links(segments)
        self.before = {s.index: [a for a, b in links if b == s.index] for s in segments}
        of_node = {name: segment.index for segment in segments for name in segment.nodes}
        self.gradient_from: dict[int, set[int]] = {segment.index: set() for segment in segments}
        for segment in segments:
            for edge_key in segment.gradients_out:
                self.gradient_from[of_node[edge_key.partition(":")[0]]].add(segment.index)
        self.latency = max(1, sum(self.costs) // len(segments))

    def needs_of(self, task: Task) -> list[Task]:
        """Tasks that must end before `task` starts."""
        segment, microbatch = self.segments[task.segment], task.microbatch
        needs: list[Task] = []
        if microbatch:
            needs.append(Task(task.direction, microbatch - 1, task.segment))
        if task.direction == "F":
            needs += [Task("F", microbatch, index) for index in self.before[segment.index]]
            if not self.before[segment.index] and microbatch >= self.in_flight:
                needs += [
                    Task("B", microbatch - self.in_flight, s.index) for s in self.segments if s.has_backward
                ]
        else:
            needs.append(Task("F", microbatch, segment.index))
            needs += [Task("B", microbatch, index) for index in sorted(self.gradient_from[segment.index])]
        return needs

    def ready_at(self, task: Task) -> float | None:
        """When all that `task` needs has arrived, or None if something is not even done."""
        at = 0.0
        own = self.segments[task.segment].pnode
        for need in self.needs_of(task):
            end = self.done.get(need)
            if end is None:
                return None
            at = max(at, end + (self.latency if self.segments[need.segment].pnode != own else 0))
        return at

    def duration(self, task: Task) -> int:
        """Simulated time: forward FLOPs, twice that for backward."""
        return self.costs[task.segment] * (1 if task.direction == "F" else 2)


def _task_order(
    segments: Sequence[Segment], costs: Sequence[int], n_microbatches: int, in_flight: int
) -> list[Task]:
    """All tasks of a step by simulated start time, which is a topological order."""
    simulation = _Simulation(segments, costs, n_microbatches, in_flight)
    candidates = {Task("F", 0, segment.index) for segment in segments}
    candidates |= {Task("B", 0, segment.index) for segment in segments if segment.has_backward}
    free_at = {segment.pnode: 0.0 for segment in segments}
    order: list[Task] = []
    while candidates:
        start, _, task = min(_startable(simulation, candidates, free_at))
        candidates.remove(task)
        if task.microbatch + 1 < n_microbatches:
            candidates.add(Task(task.direction, task.microbatch + 1, task.segment))
        end = start + simulation.duration(task)
        simulation.done[task] = end
        free_at[segments[task.segment].pnode] = end
        order.append(task)
    return order


def _startable(
    simulation: _Simulation, candidates: Iterable[Task], free_at: Mapping[PNodeId, float]
) -> Iterator[tuple[float, tuple[int, int, int], Task]]:
    """Tasks that could start next, with their start time; backward first, then low microbatch, deep
    segment."""
    for task in candidates:
        ready = simulation.ready_at(task)
        if ready is not None:
            start = max(ready, free_at[simulation.segments[task.segment].pnode])
            yield start, (0 if task.direction == "B" else 1, task.microbatch, -task.segment), task
