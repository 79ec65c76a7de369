"""The predicted time, memory and traffic of a placement, as data for people, plans and re-planning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dcnr_app.cluster.costs import CostTables, Estimate, cost_tables, crossing, estimate, sync_bytes
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.workload import workload_of
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings

_DECIDES = 0.5
"""A PNode or link that is busy for this share of a step is its bottleneck; below it, waiting is."""


class PNodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """One PNode's part of a predicted step. `free_memory_bytes` is None where it is not known."""

    pnode: PNodeId
    n_vnodes: int
    compute_ms: float
    memory_bytes: int
    free_memory_bytes: int | None


class LinkShare(msgspec.Struct, frozen=True, kw_only=True):
    """What passes from one PNode to another in a predicted step, and for how long it occupies the link."""

    source: PNodeId
    target: PNodeId
    bytes_per_step: int
    sending_ms: float


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """What a step waits for most; `where` is a PNode or `from>to`, empty for waiting."""

    kind: Literal["compute", "link", "memory", "waiting"]
    where: str = ""
    busy_ms: float = 0.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a placement. `step_ms` = tasks with their hops + shared parameters + update + decision."""

    step_ms: float
    tasks_ms: float
    sync_ms: float
    update_ms: float
    overhead_ms: float
    pnodes: tuple[PNodeShare, ...]
    links: tuple[LinkShare, ...]
    bottleneck: Bottleneck

    def compute_ms(self) -> dict[PNodeId, float]:
        """Predicted time in tasks by PNode."""
        return {share.pnode: share.compute_ms for share in self.pnodes}


def predict(
    network: Network, settings: TrainingSettings, facts: ClusterFacts, assignment: Mapping[str, PNodeId]
) -> Prediction:
    """What a step of this assignment takes. PNodes that `facts` does not have are taken as unmeasured ones.

    Raises InvalidError if the network's shapes do not fit.
    """
    work = workload_of(network, settings.rows)
    at = [assignment[node.name] for node in work.nodes]
    known = facts.only(tuple(dict.fromkeys((*facts.pnodes, *at))))
    tables = cost_tables(work, known, settings)
    number = {pnode: place for place, pnode in enumerate(known.pnodes)}
    return prediction_of(tables, estimate(tables, [number[pnode] for pnode in at]))


def prediction_of(tables: CostTables, found: Estimate) -> Prediction:
    """An estimate in words: shares of the PNodes that are used, and of the links between them."""
    used = sorted(set(found.groups.places))
    n_vnodes = dict.fromkeys(used, 0)
    for place, members in zip(found.groups.places, found.groups.members, strict=True):
        n_vnodes[place] += len(members)
    devices = tables.facts.devices
    shares = tuple(
        PNodeShare(
            pnode=devices[place].pnode,
            n_vnodes=n_vnodes[place],
            compute_ms=found.timeline.busy[place],
            memory_bytes=found.needs_bytes[place],
            free_memory_bytes=devices[place].free_memory_bytes,
        )
        for place in used
    )
    links = _links(tables, found)
    return Prediction(
        step_ms=found.step_ms,
        tasks_ms=found.timeline.end,
        sync_ms=found.sync_ms,
        update_ms=found.update_ms,
        overhead_ms=found.overhead_ms,
        pnodes=shares,
        links=links,
        bottleneck=_bottleneck(found.step_ms, shares, links),
    )


def _links(tables: CostTables, found: Estimate) -> tuple[LinkShare, ...]:
    n_microbatches = tables.settings.microbatches
    total: dict[tuple[int, int], int] = {}
    forward, backward = crossing(tables.work.uses, found.groups)
    places = found.groups.places
    for flows, is_forward in ((forward, True), (backward, False)):
        for (producer, consumer), n_bytes in flows.items():
            pair = (places[producer], places[consumer])
            source, target = pair if is_forward else pair[::-1]
            if source != target:
                total[source, target] = total.get((source, target), 0) + n_microbatches * n_bytes
    at = [places[group] for group in found.groups.of_node]
    for pair, n_bytes in sync_bytes(tables.work, at).items():
        total[pair] = total.get(pair, 0) + n_bytes
    pnodes = tables.facts.pnodes
    return tuple(
        LinkShare(
            source=pnodes[source],
            target=pnodes[target],
            bytes_per_step=n_bytes,
            sending_ms=n_bytes * tables.links[source][target].ms_per_byte,
        )
        for (source, target), n_bytes in sorted(total.items())
    )


def _bottleneck(step_ms: float, shares: tuple[PNodeShare, ...], links: tuple[LinkShare, ...]) -> Bottleneck:
    busiest = max(shares, key=lambda share: share.compute_ms)
    fullest = max(links, key=lambda link: link.sending_ms, default=None)
    if fullest is not None and fullest.sending_ms > busiest.compute_ms:
        found = Bottleneck(
            kind="link", where=f"{fullest.source}>{fullest.target}", busy_ms=fullest.sending_ms
        )
    else:
        found = Bottleneck(kind="compute", where=busiest.pnode, busy_ms=busiest.compute_ms)
    if found.busy_ms >= _DECIDES * step_ms:
        return found
    return Bottleneck(kind="waiting", busy_ms=step_ms - found.busy_ms)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction beside what was measured; times per step, `ratio` is measured over predicted."""

    predicted_step_ms: float
    measured_step_ms: float
    ratio: float
    predicted_compute_ms: Mapping[PNodeId, float]
    measured_compute_ms: Mapping[PNodeId, float]


def beside(
    prediction: Prediction, measured_step_ms: float, measured_compute_ms: Mapping[PNodeId, float]
) -> Comparison:
    """The prediction of a run's plan beside the run's own figures: mean time per step, and of each PNode in
    its tasks."""
    return Comparison(
        predicted_step_ms=prediction.step_ms,
        measured_step_ms=measured_step_ms,
        ratio=measured_step_ms / prediction.step_ms,
        predicted_compute_ms=prediction.compute_ms(),
        measured_compute_ms=dict(measured_compute_ms),
    )
