"""What one run of a session is to do: its job, where it starts, and the coordinator's assignment for it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.feeds import outside_references
from dcnr_app.cluster.generation import Sampling
from dcnr_app.cluster.inputs import Handle, Handles
from dcnr_app.cluster.local_cluster import worker_ids
from dcnr_app.cluster.orchestrator_seams import Parts
from dcnr_app.cluster.placement import assign
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.ids import PNodeId, SessionId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network, encode_network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.tables import HandleTable


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where training starts: the state after `step`, and the decisions made after it in an earlier run."""

    step: int = 0
    t: int = 0
    scale: LossScale = LossScale()
    parts: Parts = {}
    recorded: Mapping[int, Decision] = {}
    validated: frozenset[int] = frozenset()
    device_class: str = ""


class SessionJob(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a session. `generation` is higher than that of all its earlier runs."""

    session: SessionId
    generation: int
    network: Network
    settings: TrainingSettings
    context: int = 1
    start: StartPoint = StartPoint()
    prompt: str = "def "
    sampling: Sampling = Sampling(n_tokens=120, temperature=0.7, seed=0)


def plan_for(job: SessionJob, n_workers: int) -> Plan:
    """Placement and task order. Raises InvalidError if the network cannot be spread over so many workers."""
    pnodes = worker_ids(n_workers)
    assignment = assign(job.network, job.settings.rows, pnodes)
    return build_plan(job.network, assignment, pnodes, job.settings, generation=job.generation)


def assignment_for(job: SessionJob, plan: Plan, handles: HandleTable) -> Assignment:
    """The coordinator's assignment; state to load goes into `handles`."""
    start = job.start
    return Assignment(
        session=job.session,
        plan=plan,
        network=encode_network(job.network),
        settings=job.settings,
        inputs=outside_references(job.network, plan),
        resume_step=start.step,
        t=start.t,
        scale=start.scale,
        recorded=start.recorded,
        checked_device_class=start.device_class,
        validated=start.validated,
        loads=_loads(job, plan, handles),
    )


def _loads(job: SessionJob, plan: Plan, handles: HandleTable) -> dict[PNodeId, dict[str, Handles]]:
    """What each PNode must load: owners take all slots, other sites of shared parameters the weight."""
    if not job.start.parts:
        return {}
    loads: dict[PNodeId, dict[str, Handles]] = {pnode: {} for pnode in plan.pnodes}
    for name, parameter in network_parameters(job.network).items():
        slots = {slot: Handle(handles.put(tensor)) for slot, tensor in job.start.parts[name].items()}
        owner = plan.assignment[parameter.sites[0][0]]
        loads[owner][name] = slots
        for node, _ in parameter.sites:
            pnode = plan.assignment[node]
            if pnode != owner:
                loads[pnode][name] = {"weight": slots["weight"]}
    return loads
