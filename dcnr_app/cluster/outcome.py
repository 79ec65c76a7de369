"""What a run did, for people and for `--json`. Plain data."""

from __future__ import annotations

import math

import msgspec

from dcnr_app.cluster.local_cluster import LOCAL
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network


class PNodeFacts(msgspec.Struct, kw_only=True):
    """One process of the run, for people and for `--json`. `parameters` counts all that its VNodes use: a
    shared one on every PNode that has a copy."""

    pnode: PNodeId
    pid: int
    role: str
    vnodes: list[str]
    parameters: int
    bytes_sent: int = 0
    bytes_received: int = 0
    compute_ms: float = 0.0
    device_class: str = ""


class RecoveryFacts(msgspec.Struct):
    """One time that the session went on in a new generation. Times are the monotonic clock's."""

    reason: str
    pnode: PNodeId
    step: int
    noticed_ms: float
    first_step_ms: float = 0.0
    """When the first step after it was committed or replayed; 0 if none was."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did; losses and validations of earlier runs are in the store."""

    is_stopped: bool
    step: int
    committed_tokens: int
    train_s: float
    max_in_flight: int
    pnodes: tuple[PNodeFacts, ...]
    sample: str
    recoveries: tuple[RecoveryFacts, ...] = ()


def pnode_facts(network: Network, plan: Plan) -> dict[PNodeId, PNodeFacts]:
    """Facts of the PNodes that hold VNodes. The one in the orchestrator's own process has its role."""
    facts = {
        pnode: PNodeFacts(pnode=pnode, pid=0, role=role, vnodes=[], parameters=0)
        for pnode, role in ((p, "orchestrator" if p == LOCAL else "worker") for p in plan.pnodes)
    }
    for node in network.nodes:
        if not node.vnode.is_host:
            facts[plan.assignment[node.name]].vnodes.append(node.name)
    for parameter in network_parameters(network).values():
        for pnode in {plan.assignment[node] for node, _ in parameter.sites}:
            facts[pnode].parameters += math.prod(parameter.spec.shape)
    return facts
