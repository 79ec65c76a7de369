"""From PNodes to a Plan: by predicted times where all devices were measured, else by FLOPs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.placement import assign, place
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings


def plan_on(
    network: Network,
    settings: TrainingSettings,
    pnodes: Sequence[PNodeId],
    facts: ClusterFacts | None,
    generation: int,
) -> Plan:
    """A Plan on these PNodes, or with `facts` on those of them that make a step fastest.

    Raises InvalidError if the network cannot be placed."""
    if facts is None:
        assignment = assign(network, settings.rows, pnodes)
        return build_plan(network, assignment, pnodes, settings, generation=generation)
    placement = place(network, settings, facts)
    return build_plan(
        network, placement.assignment, placement.pnodes, settings, generation=generation, facts=facts
    )
