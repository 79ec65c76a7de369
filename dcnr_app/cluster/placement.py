"""Which VNode runs on which PNode: a contiguous split balanced by FLOPs, cut at cheap edges, hints
respected. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf

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

    Unhinted VNodes are cut, in topological order, into one contiguous part per PNode, so that every PNode has
    parameters: no part larger than the best possible by over 5 %, and among those cuts the one that sends the
    fewest bytes. Raises InvalidError if a PNode would be left without parameters.
    """
    assignment = _place(network, rows, pnodes)
    idle = _without_parameters(network, assignment, pnodes)
    if idle:
        fewer = (pnodes[:n_pnodes] for n_pnodes in range(len(pnodes) - 1, 0, -1))
        useful = (
            some for some in fewer if not _without_parameters(network, _place(network, rows, some), some)
        )
        n_useful = len(next(useful, ()))
        raise InvalidError(
            f"network {network.name!r} cannot be spread over {len(pnodes)} PNodes",
            why=f"{', '.join(idle)} would hold no parameters",
            fix=f"use at most {n_useful} worker{'s' if n_useful != 1 else ''}" if n_useful else "",
        )
    return assignment


def _place(network: Network, rows: int, pnodes: Sequence[PNodeId]) -> dict[str, PNodeId]:
    flops = node_flops(network, rows)
    free = [node.name for node in network.nodes if not node.vnode.is_host and node.pnode is None]
    with_parameters = {node.name for node in network.nodes if node.vnode.params()}
    assignment: dict[str, PNodeId] = {}
    for node in network.nodes:
        if node.vnode.is_host:
            assignment[node.name] = ORCHESTRATOR
        elif node.pnode is not None:
            assignment[node.name] = pnodes[node.pnode % len(pnodes)]
    n_parts = min(len(pnodes), len(free))
    if n_parts:
        served = {assignment[name] for name in with_parameters if name in assignment}
        wants = [pnode not in served for pnode in pnodes[:n_parts]]
        chain = _Chain([flops[name] for name in free], [name in with_parameters for name in free])
        cuts = _cut(chain, _crossing_bytes(network, rows, free), wants)
        for part, (start, stop) in enumerate(cuts):
            assignment.update(dict.fromkeys(free[start:stop], pnodes[part]))
    return assignment


def _without_parameters(
    network: Network, assignment: Mapping[str, PNodeId], pnodes: Sequence[PNodeId]
) -> list[PNodeId]:
    used = {assignment[node.name] for node in network.nodes if node.vnode.params()}
    return [pnode for pnode in pnodes if pnode not in used]


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


class _Chain:
    """Nodes in a row, cut anywhere: the cost of a part, and whether it may stand alone."""

    def __init__(self, costs: Sequence[int], has_parameters: Sequence[bool]) -> None:
        self.n = len(costs)
        self._costs = [0, *accumulate(costs)]
        self._counts = [0, *accumulate(int(has) for has in has_parameters)]

    def cost(self, start: int, stop: int) -> int:
        """FLOPs of nodes start..stop-1."""
        return self._costs[stop] - self._costs[start]

    def fits(self, start: int, stop: int, *, wants_parameters: bool) -> bool:
        """Whether nodes start..stop-1 can be a part: some node, one with parameters where they are wanted."""
        return stop > start and (not wants_parameters or self._counts[stop] > self._counts[start])


def _cut(chain: _Chain, crossing: Sequence[int], wants: Sequence[bool]) -> list[tuple[int, int]]:
    """Ranges of a cut into one part per entry of `wants`: near-least largest part, then least crossing.

    `wants` says which parts need parameters; where that cannot be, no part does, and the caller finds out.
    """
    bottleneck = _least_bottleneck(chain, wants)
    if bottleneck == inf:
        wants = [False] * len(wants)
        bottleneck = _least_bottleneck(chain, wants)
    limit = bottleneck * (1.0 + _BALANCE_SLACK)
    n, n_parts = chain.n, len(wants)
    best = [[inf] * (n + 1) for _ in range(n_parts + 1)]
    choice = [[0] * (n + 1) for _ in range(n_parts + 1)]
    best[0][0] = 0.0
    for part in range(1, n_parts + 1):
        for stop in range(part, n + 1):
            for start in range(stop - 1, part - 2, -1):
                if chain.cost(start, stop) > limit:
                    break
                if not chain.fits(start, stop, wants_parameters=wants[part - 1]):
                    continue
                total = best[part - 1][start] + (crossing[start] if start else 0)
                if total < best[part][stop]:
                    best[part][stop], choice[part][stop] = total, start
    ranges: list[tuple[int, int]] = []
    stop = n
    for part in range(n_parts, 0, -1):
        ranges.append((choice[part][stop], stop))
        stop = choice[part][stop]
    return ranges[::-1]


def _least_bottleneck(chain: _Chain, wants: Sequence[bool]) -> float:
    """The smallest possible largest part (linear partition by dynamic programming); infinite if none is."""
    least = [0.0] + [inf] * chain.n
    for wants_parameters in wants:
        before = least
        least = [inf] * (chain.n + 1)
        for stop in range(1, chain.n + 1):
            for start in range(stop):
                if chain.fits(start, stop, wants_parameters=wants_parameters):
                    least[stop] = min(least[stop], max(before[start], chain.cost(start, stop)))
    return least[chain.n]
