"""What a placement costs: one step's time, memory per PNode, bytes per link, by measured rates. Pure.

Forward takes FLOPs / GEMM rate + bytes moved / row-wise rate, backward twice that; a hop the link's half
round trip + bytes / bandwidth. One step's tasks are then scheduled as PNodes run them (timeline.py). What is
the same for all placements is added so that the figure can be compared with a measured step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.memory_needs import Pool, memory_needs, pools_of
from dcnr_app.cluster.timeline import Flow, Pipeline, Stage, Timeline, simulate
from dcnr_app.cluster.workload import Groups, Workload, group_nodes
from dcnr_app.ids import ORCHESTRATOR
from dcnr_app.nodes.graph.training import TrainingSettings

TASK_MS = 0.15
"""What a PNode does around one task: messages, queue, the way to the compute thread and back."""
NODE_MS = 0.02
"""Python's share of one VNode's call."""
STEP_MS = 6.0
"""The decision of a step is on the disk before it is told: one SQLite commit with fsync."""
_BACKWARD = 2.0
_UPDATE_PASSES = 8
"""Times that an update reads or writes a parameter's bytes: weight, gradient, two slots, unscale and norm."""


class LinkRate(NamedTuple):
    """One direction between two places: how long a byte occupies it, and half a round trip."""

    ms_per_byte: float
    delay_ms: float


class CostTables(NamedTuple):
    """A workload on a cluster, in numbers: places are the PNodes in the order of `facts`.

    `forward_ms[place][node]` is one microbatch. `control_ms` is a round trip between the orchestrator and
    each place.
    """

    work: Workload
    facts: ClusterFacts
    settings: TrainingSettings
    forward_ms: tuple[tuple[float, ...], ...]
    update_ms_per_byte: tuple[float, ...]
    links: tuple[tuple[LinkRate, ...], ...]
    control_ms: tuple[float, ...]
    pools: tuple[Pool, ...]

    @property
    def n_places(self) -> int:
        """Number of PNodes that may be used."""
        return len(self.forward_ms)


class Estimate(NamedTuple):
    """One assignment's cost. `excess_bytes` is what it needs beyond the memory that is there."""

    excess_bytes: int
    step_ms: float
    timeline: Timeline
    groups: Groups
    needs_bytes: tuple[int, ...]
    sync_ms: float
    update_ms: float
    overhead_ms: float


def cost_tables(work: Workload, facts: ClusterFacts, settings: TrainingSettings) -> CostTables:
    """The rates of every VNode on every PNode, worked out once."""
    forward_ms, update_ms = [], []
    for device in facts.devices:
        flops_per_ms = device.flops_per_s(settings.precision) / 1e3
        bytes_per_ms = device.row_bytes_per_s / 1e3
        forward_ms.append(
            tuple(
                node.flops / flops_per_ms + node.moved_bytes / bytes_per_ms + NODE_MS for node in work.nodes
            )
        )
        update_ms.append(_UPDATE_PASSES / bytes_per_ms)
    found = [[facts.link(source, target) for target in facts.pnodes] for source in facts.pnodes]
    return CostTables(
        work=work,
        facts=facts,
        settings=settings,
        forward_ms=tuple(forward_ms),
        update_ms_per_byte=tuple(update_ms),
        links=tuple(
            tuple(LinkRate(1e3 / link.bytes_per_s, link.round_trip_ms / 2) for link in row) for row in found
        ),
        control_ms=tuple(facts.link(ORCHESTRATOR, pnode).round_trip_ms for pnode in facts.pnodes),
        pools=pools_of(facts),
    )


def in_flight_for(settings: TrainingSettings, levels: Sequence[int]) -> int:
    """Microbatches under way at once: the setting, else twice the depth of the pipeline."""
    wanted = settings.in_flight or 2 * (1 + max(levels, default=0)) + 2
    return min(settings.microbatches, wanted)


def estimate(tables: CostTables, places: Sequence[int]) -> Estimate:
    """The cost of running each VNode at its place."""
    groups = group_nodes(tables.work, places)
    timeline = simulate(pipeline_of(tables, groups))
    needs = memory_needs(tables.work, tables.settings, groups, timeline.peaks, tables.n_places)
    used = set(groups.places)
    sync_ms = _sync_ms(tables, places)
    update_ms = max(_update_ms(tables, places).values(), default=0.0)
    # Gradients' norms in, the decision out; done in, the next inputs out.
    overhead_ms = STEP_MS + 2 * max(tables.control_ms[place] for place in used)
    return Estimate(
        excess_bytes=sum(pool.excess(needs) for pool in tables.pools),
        step_ms=timeline.end + sync_ms + update_ms + overhead_ms,
        timeline=timeline,
        groups=groups,
        needs_bytes=needs,
        sync_ms=sync_ms,
        update_ms=update_ms,
        overhead_ms=overhead_ms,
    )


def pipeline_of(tables: CostTables, groups: Groups) -> Pipeline:
    """One step's stages and flows, in milliseconds."""
    nodes, uses = tables.work.nodes, tables.work.uses
    hops = crossing(uses, groups)
    receivers = {source for source, _ in hops[1]}
    stages = []
    for index, members in enumerate(groups.members):
        row = tables.forward_ms[groups.places[index]]
        forward = TASK_MS + sum(row[node] for node in members)
        backward = TASK_MS + _BACKWARD * sum(row[node] for node in members if nodes[node].has_backward)
        has_backward = index in receivers or any(nodes[node].is_cost for node in members)
        stages.append(Stage(groups.places[index], forward, backward if has_backward else None))
    flows = [
        [
            _flow(tables, groups.places, *pair, n_bytes)
            for pair, n_bytes in (found if is_forward else {(b, a): n for (a, b), n in found.items()}).items()
        ]
        for found, is_forward in zip(hops, (True, False), strict=True)
    ]
    return Pipeline(
        stages=stages,
        forward=flows[0],
        backward=flows[1],
        n_microbatches=tables.settings.microbatches,
        in_flight=in_flight_for(tables.settings, groups.levels),
    )


Crossing = dict[tuple[int, int], int]


def crossing(uses: Sequence[tuple[int, int, int, int, bool]], groups: Groups) -> tuple[Crossing, Crossing]:
    """Bytes by (producing group, consuming group) that pass per microbatch: forward, each tensor once for
    each consuming group, and gradients on the way back, one for each use that has one."""
    of_node = groups.of_node
    forward: Crossing = {}
    backward: Crossing = {}
    seen: set[tuple[int, int]] = set()
    for source, target, key, n_bytes, has_gradient in uses:
        here, there = of_node[source], of_node[target]
        if here == there:
            continue
        if (key, there) not in seen:
            seen.add((key, there))
            forward[here, there] = forward.get((here, there), 0) + n_bytes
        if has_gradient:
            backward[here, there] = backward.get((here, there), 0) + n_bytes
    return forward, backward


def _flow(tables: CostTables, places: Sequence[int], source: int, target: int, n_bytes: int) -> Flow:
    here, there = places[source], places[target]
    if here == there:
        return Flow(source, target, 0.0, 0.0)
    rate = tables.links[here][there]
    return Flow(source, target, n_bytes * rate.ms_per_byte, rate.delay_ms)


def _update_ms(tables: CostTables, places: Sequence[int]) -> Mapping[int, float]:
    total: dict[int, float] = {}
    for parameter in tables.work.parameters:
        owner = places[parameter.owner]
        total[owner] = total.get(owner, 0.0) + parameter.n_bytes * tables.update_ms_per_byte[owner]
    return total


def sync_bytes(work: Workload, places: Sequence[int]) -> dict[tuple[int, int], int]:
    """Bytes by (from, to) that shared parameters cost per step: each site's gradient to the owner's place,
    and the new value back to each other place."""
    total: dict[tuple[int, int], int] = {}
    for parameter in work.parameters:
        owner = places[parameter.owner]
        elsewhere = [places[site] for site in parameter.sites if places[site] != owner]
        for place in elsewhere:
            total[place, owner] = total.get((place, owner), 0) + parameter.n_bytes
        for place in set(elsewhere):
            total[owner, place] = total.get((owner, place), 0) + parameter.n_bytes
    return total


def _sync_ms(tables: CostTables, places: Sequence[int]) -> float:
    """Gradients of shared parameters go to their owners, then new values to all: the slowest link decides."""
    ms = [
        n_bytes * tables.links[source][target].ms_per_byte + tables.links[source][target].delay_ms
        for (source, target), n_bytes in sync_bytes(tables.work, places).items()
    ]
    return 2 * max(ms, default=0.0)
