"""Which machines of a cluster are there, by what their agents say and when. Pure: the caller says what time
it is, by its own monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dcnr_app.cluster.agent_messages import AgentStatus, PNodeReport
from dcnr_app.ids import PNodeId

Presence = Literal["live", "suspect", "offline"]

SUSPECT_MS = 5_000.0
OFFLINE_MS = 15_000.0
"""Silence after which a machine is suspect, and after which it leaves the counts."""


class Heard(msgspec.Struct, frozen=True):
    """A machine's newest status and when it came."""

    status: AgentStatus
    at_ms: float


class Machines:
    """What was heard of the machines of a cluster."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}

    def heard(self, status: AgentStatus, now_ms: float) -> None:
        """A status came."""
        self._heard[status.machine] = Heard(status, now_ms)

    def left(self, machine: str) -> None:
        """A machine said goodbye, or was removed."""
        self._heard.pop(machine, None)

    def status(self, machine: str) -> AgentStatus | None:
        """The newest status of a machine, if one came since it last left."""
        found = self._heard.get(machine)
        return None if found is None else found.status

    def silent_ms(self, machine: str, now_ms: float) -> float | None:
        """How long a machine has said nothing; None if it never spoke."""
        found = self._heard.get(machine)
        return None if found is None else now_ms - found.at_ms

    def presence(self, machine: str, now_ms: float) -> Presence:
        """Whether it counts as there."""
        silent_ms = self.silent_ms(machine, now_ms)
        if silent_ms is None or silent_ms >= OFFLINE_MS:
            return "offline"
        return "suspect" if silent_ms >= SUSPECT_MS else "live"

    def listening(self, now_ms: float) -> Mapping[PNodeId, PNodeReport]:
        """PNodes that can be dialled, of machines that are there."""
        return {
            report.pnode: report
            for machine, heard in sorted(self._heard.items())
            if self.presence(machine, now_ms) != "offline"
            for report in heard.status.pnodes
            if report.address
        }


class Offered:
    """Which process of each PNode a session's process knows, and which it has given up: a PNode is offered
    again only when its process is another one."""

    def __init__(self) -> None:
        self._given: dict[PNodeId, int] = {}
        self._evicted: dict[PNodeId, int] = {}

    def begin(self, reports: Mapping[PNodeId, PNodeReport]) -> None:
        """A session's process was told of these."""
        self._given = {pnode: report.pid for pnode, report in reports.items()}
        self._evicted = {}

    def evicted(self, pnode: PNodeId) -> int:
        """The session gave a PNode up; returns the pid that must end, 0 if it is not known."""
        pid = self._given.pop(pnode, 0)
        if pid:
            self._evicted[pnode] = pid
        return pid

    def withdrawn(self, pnode: PNodeId) -> None:
        """The session was told that a PNode is gone, or it has drained it."""
        self._given.pop(pnode, None)

    def to_restart(self) -> Mapping[PNodeId, int]:
        """Processes that must end, by PNode: they are told again until another one is there."""
        return dict(self._evicted)

    def news(self, reports: Mapping[PNodeId, PNodeReport]) -> tuple[PNodeReport, ...]:
        """PNodes to offer now: new ones, and those with another process than before."""
        fresh = []
        for pnode, report in reports.items():
            if report.pid in (self._given.get(pnode), self._evicted.get(pnode)):
                continue
            self._given[pnode] = report.pid
            self._evicted.pop(pnode, None)
            fresh.append(report)
        return tuple(fresh)
