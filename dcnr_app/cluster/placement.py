"""Which VNode runs on which PNode: a contiguous split balanced by FLOPs, cut at cheap edges, hints
respected. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcnr_app.errors import InvalidError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.contract import TensorSpec
from dcnr_app.nodes.graph.analysis import infer_shapes, network_edges, node_flops
from dcnr_app.nodes.graph.network import Network

ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
_BALANCE_SLACK = (
    0.05  # a part may exceed the best possible largest part by this much, to cut at a cheaper edge
)


def tensor_bytes(spec: TensorSpec) -> int:
    """Size of a tensor in bytes."""
    total = ITEM_BYTES[spec.dtype]
    for length in spec.shape:
        total *= length
    return total


def assign(network: Network, rows: int, pnodes: Sequence[PNodeId]) -> dict[str, PNodeId]:
    """PNode of every VNode for microbatches of `rows` rows; host VNodes stay on the orchestrator.

    Unhinted VNodes are cut, in topological order, into one contiguous part per PNode: no part larger than
    the best
    possible by over 5 %, and among those cuts the one that sends the fewest bytes. Raises InvalidError if a
    PNode
    would be left without parameters.
    """
    flops = node_flops(network, rows)
    free = [node.name for node in network.nodes if not node.vnode.is_host and node.pnode is None]
    assignment: dict[str, PNodeId] = {}
    for node in network.nodes:
        if node.vnode.is_host:
            assignment[node.name] = ORCHESTRATOR
        elif node.pnode is not None:
            assignment[node.name] = pnodes[node.pnode % len(pnodes)]
    n_parts = min(len(pnodes), len(free))
    if n_parts:
        cuts = _cut([flops[name] for name in free], _crossing_bytes(network, rows, free), n_parts)
        for part, (start, stop) in enumerate(cuts):
            assignment.update(dict.fromkeys(free[start:stop], pnodes[part]))
    _check_all_used(network, assignment, pnodes)
    return assignment


def _check_all_used(network: Network, assignment: Mapping[str, PNodeId], pnodes: Sequence[PNodeId]) -> None:
    used = {assignment[node.name] for node in network.nodes if node.vnode.params()}
    idle = [pnode for pnode in pnodes if pnode not in used]
    if idle:
        n_useful = len(used)
        raise InvalidError(
            f"network {network.name!r} cannot be spread over {len(pnodes)} PNodes",
            why=f"{', '.join(idle)} would hold no parameters",
            fix=f"use at most {n_useful} worker{'s' if n_useful != 1 else ''}",
        )


def _crossing_bytes(network: Network, rows: int, order: Sequence[str]) -> list[int]:
    """Bytes that cross, forward, at the cut before each position of `order`."""
    specs = infer_shapes(network, rows)
    place = {name: index for index, name in enumerate(order)}
    last_use: dict[str, int] = {}
    for edge in network_edges(network):
        if edge.source in place and edge.target in place:
            last_use[edge.reference] = max(last_use.get(edge.reference, 0), place[edge.target])
    crossing = [0] * (len(order) + 1)
    for reference, last in last_use.items():
        source = reference.rpartition(":")[0]
        for position in range(place[source] + 1, last + 1):
            crossing[position] += tensor_bytes(specs[reference])
    return crossing


def _cut(costs: Sequence[int], crossing: Sequence[int], n_parts: int) -> list[tuple[int, int]]:
    """Ranges of a contiguous cut into `n_parts` non-empty parts: near-least largest part, then least
    crossing."""
    prefix = [0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    limit = _least_bottleneck(prefix, n_parts) * (1.0 + _BALANCE_SLACK)
    n = len(costs)
    infinite = float("inf")
    best = [[infinite] * (n + 1) for _ in range(n_parts + 1)]
    choice = [[0] * (n + 1) for _ in range(n_parts + 1)]
    best[0][0] = 0.0
    for part in range(1, n_parts + 1):
        for stop in range(part, n + 1):
            for start in range(stop - 1, part - 2, -1):
                if prefix[stop] - prefix[start] > limit:
                    break
                total = best[part - 1][start] + (crossing[start] if start else 0)
                if total < best[part][stop]:
                    best[part][stop], choice[part][stop] = total, start
    ranges: list[tuple[int, int]] = []
    stop = n
    for part in range(n_parts, 0, -1):
        ranges.append((choice[part][stop], stop))
        stop = choice[part][stop]
    return ranges[::-1]


def _least_bottleneck(prefix: Sequence[int], n_parts: int) -> int:
    """The smallest possible largest part (linear partition by dynamic programming)."""
    n = len(prefix) - 1
    least: list[float] = [float(prefix[stop]) if stop else float("inf") for stop in range(n + 1)]
    for part in range(2, n_parts + 1):
        previous = least
        least = [float("inf")] * (n + 1)
        for stop in range(part, n + 1):
            least[stop] = min(
                max(previous[start], prefix[stop] - prefix[start]) for start in range(part - 1, stop)
            )
    return int(least[n])
