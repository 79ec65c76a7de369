"""Which VNode runs on which PNode. `place` minimises the predicted step time on measured devices and links;
`assign` splits by FLOPs where nothing is known of the PNodes. Both cut at cheap edges and follow hints. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dcnr_app.cluster.chain import Chain, cut_chain
from dcnr_app.cluster.costs import CostTables, Estimate, cost_tables, estimate
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.exact_search import improve_exactly, is_small
from dcnr_app.cluster.prediction import Bottleneck, Prediction, prediction_of
from dcnr_app.cluster.search import Search, search
from dcnr_app.cluster.workload import tensor_bytes, workload_of
from dcnr_app.errors import InvalidError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.analysis import infer_shapes, network_edges, node_flops
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings

_MATTERS = 0.01
"""Differences of predicted times below this share are not worth a word."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where every VNode goes, the PNodes in use (in the order of the facts), and what is predicted of it.

    `single_ms` is the predicted step time of the best single PNode, None where the network fits on none.
    """

    assignment: Mapping[str, PNodeId]
    pnodes: tuple[PNodeId, ...]
    prediction: Prediction
    single_ms: float | None
    warnings: tuple[str, ...] = ()


def place(
    network: Network, settings: TrainingSettings, facts: ClusterFacts, *, uses_all: bool = False
) -> Placement:
    """The fastest placement found on these PNodes: the best there is for up to 10 VNodes on 3 PNodes.

    Hints are followed, memory is never exceeded, and PNodes that make a step slower are left out, unless
    `uses_all`. Equal arguments give equal placements. Raises InvalidError if the network fits on no number of
    these PNodes, with what it needs and what is there, or if it has too few VNodes for `uses_all`.
    """
    work = workload_of(network, settings.rows)
    if not facts.devices:
        raise InvalidError(f"network {network.name!r} has no PNode to run on", fix="start a worker")
    if uses_all and work.n_nodes < len(facts.devices):
        raise InvalidError(
            f"network {network.name!r} cannot be spread over {len(facts.devices)} PNodes",
            why=f"it has {work.n_nodes} VNodes",
            fix=f"use at most {work.n_nodes} workers",
        )
    tables = cost_tables(work, facts, settings)
    found = _searched(tables, uses_all=uses_all)
    best = estimate(tables, found.best)
    if best.excess_bytes:
        raise _too_large(network, tables, best)
    if found.scores[found.best][0]:
        raise InvalidError(
            f"network {network.name!r} was not spread over all {len(facts.devices)} PNodes",
            why="its placement hints keep it on fewer",
            fix="use fewer workers, or remove the hints (`pnode:`) from the network",
        )
    single_ms = _single_ms(tables)
    assignment = dict.fromkeys(work.hosts, ORCHESTRATOR)
    assignment |= {node.name: facts.pnodes[at] for node, at in zip(work.nodes, found.best, strict=True)}
    used = set(found.best)
    return Placement(
        assignment={node.name: assignment[node.name] for node in network.nodes},
        pnodes=tuple(pnode for at, pnode in enumerate(facts.pnodes) if at in used),
        prediction=_with_memory(tables, found, best),
        single_ms=single_ms,
        warnings=tuple(_warnings(tables, found, best, single_ms)),
    )


def _searched(tables: CostTables, *, uses_all: bool) -> Search:
    found = search(tables, uses_all=uses_all)
    if is_small(tables, len(found.free)):
        improve_exactly(found)
    return found


def _single_ms(tables: CostTables) -> float | None:
    """Step time of the best PNode that can hold all VNodes, whatever the hints say."""
    alone = (estimate(tables, [at] * tables.work.n_nodes) for at in range(tables.n_places))
    return min((found.step_ms for found in alone if not found.excess_bytes), default=None)


def _with_memory(tables: CostTables, found: Search, best: Estimate) -> Prediction:
    """The prediction; its bottleneck is memory where a faster placement was seen that does not fit."""
    prediction = prediction_of(tables, best)
    faster = [score[2] for score in found.scores.values() if score[1] and not score[0]]
    if min(faster, default=best.step_ms) >= best.step_ms * (1.0 - _MATTERS):
        return prediction
    fullest = max(
        tables.pools,
        key=lambda pool: sum(best.needs_bytes[at] for at in pool.places) / max(1, pool.budget_bytes),
    )
    where = ", ".join(tables.facts.pnodes[at] for at in fullest.places)
    return msgspec.structs.replace(prediction, bottleneck=Bottleneck(kind="memory", where=where))


def _warnings(tables: CostTables, found: Search, best: Estimate, single_ms: float | None) -> Iterator[str]:
    """What a person should know before training with this placement."""
    n_used, pnodes = len(set(best.groups.places)), tables.facts.pnodes
    if single_ms is not None and best.step_ms > single_ms * (1.0 + _MATTERS):
        why = "the placement hints ask for it" if found.hints else "all were asked for"
        yield (
            f"{n_used} PNodes are predicted slower than the best one alone: {best.step_ms:.1f} ms against "
            f"{single_ms:.1f} ms per step; {why}"
        )
    if found.uses_all and n_used > 1:
        fewer = _searched(tables, uses_all=False)
        _, excess, step_ms, n_fewer = fewer.scores[fewer.best]
        if not excess and n_fewer < n_used and step_ms < best.step_ms * (1.0 - _MATTERS):
            yield (
                f"fewer PNodes would be faster: {step_ms:.1f} ms per step with {n_fewer}, "
                f"{best.step_ms:.1f} ms with {n_used}"
            )
    idle = [pnodes[at] for at in range(tables.n_places) if at not in set(best.groups.places)]
    if idle:
        yield f"{', '.join(idle)} not used: no faster placement with more PNodes was found"
    if n_used > tables.settings.microbatches:
        yield (
            f"{tables.settings.microbatches} microbatches on {n_used} PNodes: not all can work at once; "
            "more microbatches help"
        )


def _too_large(network: Network, tables: CostTables, best: Estimate) -> InvalidError:
    lines = []
    for pool in tables.pools:
        need = sum(best.needs_bytes[at] for at in pool.places)
        names = ", ".join(tables.facts.pnodes[at] for at in pool.places)
        lines.append(f"{names}: {need / 1e6:,.0f} MB needed, {pool.budget_bytes / 1e6:,.0f} MB there")
    return InvalidError(
        f"network {network.name!r} does not fit into the memory of these PNodes",
        why=f"the best placement found would need ({'; '.join(lines)})",
        fix="use more microbatches of fewer rows, more workers, or raise the owners' memory limits",
    )


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
        chain = Chain([flops[name] for name in free], [name in with_parameters for name in free])
        cuts = cut_chain(chain, _crossing_bytes(network, rows, free), wants)
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
