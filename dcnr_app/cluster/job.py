"""What one run of a session is to do: its job, where it starts, and the coordinator's assignment for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dcnr_app.cluster.coordinator_recovery import loads_for
from dcnr_app.cluster.coordinator_state import Assignment, Recovery
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.generation import Sampling
from dcnr_app.cluster.inputs import Handle, Handles
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.planning import plan_on
from dcnr_app.cluster.routes import outside_references
from dcnr_app.cluster.start_point import StartPoint
from dcnr_app.ids import PNodeId, SessionId
from dcnr_app.nodes.graph.network import Network, encode_network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.tables import HandleTable


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


def plan_for(job: SessionJob, pnodes: Sequence[PNodeId], facts: ClusterFacts | None = None) -> Plan:
    """Placement and task order. Raises InvalidError if the network cannot be spread over so many PNodes."""
    return plan_on(job.network, job.settings, pnodes, facts, job.generation)


def assignment_for(
    job: SessionJob, plan: Plan, handles: HandleTable, recovery: Recovery | None = None
) -> Assignment:
    """The coordinator's assignment; state to load goes into `handles`. Without `recovery` a lost PNode ends
    the run."""
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
        loads=loads_for(job.network, plan.assignment, plan.pnodes, _in_table(start, handles)),
        recovery=recovery,
    )


def _in_table(start: StartPoint, handles: HandleTable) -> dict[str, Handles]:
    return {
        name: {slot: Handle(handles.put(tensor)) for slot, tensor in part.items()}
        for name, part in start.parts.items()
    }
