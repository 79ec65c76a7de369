"""From what an agent knows to what people are shown. Pure."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from dcnr_app.cluster.agent_joining import JoiningState
from dcnr_app.cluster.agent_messages import PNodeReport
from dcnr_app.cluster.agent_session import SessionState
from dcnr_app.cluster.neighbours import Neighbour
from dcnr_app.cluster.pending_join import PendingJoin
from dcnr_app.ui.local_api import (
    JoiningView,
    NeighbourView,
    PendingView,
    PNodeView,
    Role,
    SessionView,
)


def with_report(view: PNodeView, report: PNodeReport, *, is_training: bool) -> PNodeView:
    """A PNode's view with what its agent reports."""
    return msgspec.structs.replace(
        view,
        state="training" if is_training and report.state == "idle" else report.state,
        why=report.why,
        address=report.address,
        pid=report.pid or None,
        device=report.device,
        device_class=report.device_class,
        memory_bytes=report.memory_bytes or None,
        free_memory_bytes=report.free_memory_bytes or None,
        device_facts=cast(dict[str, Any], msgspec.json.decode(report.facts)) if report.facts else None,
    )


def neighbour_view(heard: Neighbour, members: set[str]) -> NeighbourView:
    """A machine that was heard."""
    said = heard.announcement
    return NeighbourView(
        machine=heard.machine,
        name=said.name,
        role=cast(Role, said.role) if said.role in ("orchestrator", "worker") else "none",
        cluster=said.cluster,
        cluster_name=said.cluster_name,
        presence=heard.state,
        version=said.app_version,
        device=said.device_summary,
        addresses=heard.addresses,
        front_door_port=said.front_door_port,
        is_member=heard.machine in members,
        is_duplicate=heard.is_duplicate,
    )


def trouble_notice(trouble: str) -> str:
    """Why the orchestrator is not reached, with what helps where that is known."""
    if "is not a member of this cluster" in trouble:  # removed while this machine was away
        return f"{trouble}\n  try: dcnr-app pnode leave, then join again"
    return trouble


def joining_view(state: JoiningState) -> JoiningView:
    """How far joining is."""
    return JoiningView(**msgspec.structs.asdict(state))


def pending_view(waiting: PendingJoin) -> PendingView:
    """A machine that waits to join."""
    fields = msgspec.structs.asdict(waiting)
    return PendingView(**{name: fields[name] for name in PendingView.__struct_fields__})


def session_view(state: SessionState) -> SessionView:
    """The session."""
    fields = msgspec.structs.asdict(state)
    lines = fields.pop("lines")
    return SessionView(events=tuple(lines), **fields)
