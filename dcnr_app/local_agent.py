"""The LocalApi of this machine's agent: turns its state into views and what people ask into its verbs."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

import dcnr_app
from dcnr_app.agent_names import member_of, target_of, waiting_of
from dcnr_app.agent_views import (
    joining_view,
    neighbour_view,
    pending_view,
    session_view,
    trouble_notice,
    with_report,
)
from dcnr_app.clock import Clock
from dcnr_app.cluster.agent import Agent
from dcnr_app.cluster.agent_cluster import AgentCluster
from dcnr_app.cluster.agent_session import AgentSession, SessionState
from dcnr_app.cluster.membership import MemberRecord, PNodeRecord
from dcnr_app.cluster.qr_code import qr_text
from dcnr_app.cluster.runner_lines import SessionRequest
from dcnr_app.errors import RefusedError
from dcnr_app.ui.local_api import (
    InviteView,
    JoiningView,
    MachineView,
    NeighbourView,
    PendingView,
    PNodeView,
    SessionView,
    StartSession,
    StatusView,
)

_LINK = "dcnr://"


class LocalAgent:
    """Implements ui.local_api.LocalApi over an Agent in the same event loop."""

    def __init__(self, agent: Agent, clock: Clock, pid: int) -> None:
        self._agent = agent
        self._clock = clock
        self._pid = pid

    # ---- reading

    async def status(self) -> StatusView:
        """This machine."""
        agent, cluster = self._agent, self._agent.cluster
        now_ms = self._clock.monotonic_ms()
        records = cluster.membership.members if cluster else ()
        live = [r for r in records if cluster and self._presence(cluster, r, now_ms) == "live"]
        notices = [
            *agent.notices,
            *([trouble_notice(cluster.trouble)] if cluster and cluster.trouble else []),
        ]
        return StatusView(
            role=agent.role,
            machine=agent.machine.id,
            name=agent.machine.name,
            pnode=cluster.own.pnodes[0].pnode if cluster and cluster.own.pnodes else "",
            cluster=cluster.own.cluster if cluster else "",
            cluster_name=cluster.own.name if cluster else "",
            version=dcnr_app.__version__,
            pid=self._pid,
            started_ms=agent.started_ms,
            front_door_port=agent.front_door_port,
            addresses=agent.hosts(),
            n_machines=len(records),
            n_live=len(live),
            n_pending=sum(each.step == "comparing" for each in agent.front_door.pending()),
            session=self._session_state(cluster).session,
            notices=tuple(notices),
            silence=self._silence(),
        )

    async def machines(self) -> tuple[MachineView, ...]:
        """All machines of the cluster."""
        cluster = self._agent.cluster
        return (
            tuple(self._machine(cluster, record) for record in cluster.membership.members) if cluster else ()
        )

    async def pnodes(self) -> tuple[PNodeView, ...]:
        """All PNodes of the cluster."""
        cluster = self._agent.cluster
        if cluster is None:
            return ()
        return tuple(
            self._pnode(cluster, record, entry)
            for record in cluster.membership.members
            for entry in record.pnodes
        )

    async def neighbours(self) -> tuple[NeighbourView, ...]:
        """Machines heard on the network; orchestrators first."""
        members = (
            {r.machine for r in self._agent.cluster.membership.members} if self._agent.cluster else set()
        )
        views = [neighbour_view(each, members) for each in self._agent.discovery.snapshot()]
        return tuple(sorted(views, key=lambda view: (view.role != "orchestrator", view.name)))

    async def joining(self) -> JoiningView:
        """How far this machine's own joining is."""
        return joining_view(self._agent.joining.state)

    async def pending(self) -> tuple[PendingView, ...]:
        """Machines that want to join."""
        return tuple(pending_view(each) for each in self._agent.front_door.pending())

    async def session(self) -> SessionView:
        """The session that runs or ran last."""
        return session_view(self._session_state(self._agent.cluster))

    # ---- joining

    async def start_cluster(self, name: str) -> StatusView:
        """Make this machine the orchestrator of a new cluster."""
        await self._agent.start_cluster(name or f"{self._agent.machine.name}'s cluster")
        return await self.status()

    async def join(self, target: str, code: str) -> JoiningView:
        """Begin to join."""
        joiner = await asyncio.to_thread(self._agent.joiner)
        silence = self._silence()
        place = (
            target
            if target.startswith(_LINK)
            else target_of(target, self._agent.discovery.snapshot(), silence)
        )
        return joining_view(self._agent.joining.begin(place, code, joiner))

    async def answer(self, verdict: Literal["match", "mismatch", "cancel"]) -> JoiningView:
        """What the person here says of the digits."""
        return joining_view(self._agent.joining.answer(verdict))

    async def admit(self, machine: str) -> PendingView:
        """Admit a machine."""
        return pending_view(
            await self._agent.front_door.admit(waiting_of(machine, self._agent.front_door.pending()))
        )

    async def reject(self, machine: str) -> PendingView:
        """Reject a machine."""
        return pending_view(
            self._agent.front_door.reject(waiting_of(machine, self._agent.front_door.pending()))
        )

    async def invite(self, *, with_code: bool) -> InviteView:
        """A link, or a code to type, for one machine."""
        cluster, hosts = self._cluster(), self._agent.hosts()
        registrar = cluster.registrar
        if registrar is None:
            raise RefusedError(
                f"{self._agent.machine.name} cannot invite",
                why="it is a worker",
                fix="use the cluster's orchestrator",
            )
        port = self._agent.front_door_port
        link = qr = typed = ""
        if with_code:
            code = await asyncio.to_thread(registrar.new_code)
            typed = code.secret
        else:
            link, code = await asyncio.to_thread(registrar.new_invite, hosts, port)
            qr = qr_text(link)
        expires_s = (code.expires_ms - self._clock.wall_ms()) / 1000.0
        return InviteView(link=link, qr=qr, code=typed, host=hosts[0], port=port, expires_s=expires_s)

    # ---- machines

    async def rename(self, machine: str, name: str) -> MachineView:
        """Another name for a machine."""
        cluster = self._cluster()
        record = member_of(machine, cluster.membership.members)
        if cluster.registrar is None and record.machine != self._agent.machine.id:
            raise RefusedError("only the cluster's orchestrator renames other machines")
        if record.machine == self._agent.machine.id:
            await self._agent.rename(name)
        if cluster.registrar is not None:
            await asyncio.to_thread(cluster.registrar.rename, record.machine, name)
            cluster.membership_changed()
        return self._machine(cluster, member_of(record.machine, cluster.membership.members))

    async def drain(self, machine: str) -> MachineView:
        """Move its VNodes to others and use it no more."""
        cluster = self._cluster()
        record = member_of(machine, cluster.membership.members)
        await cluster.drain(record.machine)
        return self._machine(cluster, record)

    async def forget(self, machine: str) -> MachineView:
        """Take it out of the cluster at once."""
        cluster = self._cluster()
        record = member_of(machine, cluster.membership.members)
        view = self._machine(cluster, record)
        await cluster.remove(record.machine)
        return view

    async def leave(self) -> StatusView:
        """This machine leaves its cluster."""
        await self._agent.leave("this machine has left the cluster")
        return await self.status()

    async def shut_down(self) -> None:
        """End the agent."""
        self._agent.end()

    # ---- sessions

    async def start_session(self, request: StartSession) -> SessionView:
        """Train on the cluster."""
        fields = msgspec.structs.asdict(request)
        return session_view(await self._sessions().start(SessionRequest(**fields)))

    async def stop_session(self) -> SessionView:
        """Stop at the next step boundary."""
        return session_view(await self._sessions().stop())

    # ---- helpers

    def _silence(self) -> str:
        """Why nobody is heard on the network, where that can be said."""
        silence = self._agent.discovery.silence()
        return f"{silence.why}; {silence.fix}" if silence else ""

    def _cluster(self) -> AgentCluster:
        if self._agent.cluster is None:
            raise RefusedError(
                "this machine is in no cluster", fix="dcnr-app join, or: dcnr-app up --role orchestrator"
            )
        return self._agent.cluster

    def _sessions(self) -> AgentSession:
        session = self._cluster().session
        if session is None:
            raise RefusedError(
                "a worker starts no sessions", why="the orchestrator does", fix="run this on the orchestrator"
            )
        return session

    def _session_state(self, cluster: AgentCluster | None) -> SessionState:
        return cluster.session.state if cluster and cluster.session else SessionState()

    def _presence(
        self, cluster: AgentCluster, record: MemberRecord, now_ms: float
    ) -> Literal["live", "suspect", "offline"]:
        if record.machine == self._agent.machine.id:
            return "live"
        if cluster.registrar is not None:
            return cluster.machines.presence(record.machine, now_ms)
        if record.machine == cluster.own.orchestrator:
            return "offline" if cluster.trouble else "live"
        heard = {n.machine: n.state for n in self._agent.discovery.snapshot()}
        return heard.get(record.machine, "offline")

    def _machine(self, cluster: AgentCluster, record: MemberRecord) -> MachineView:
        now_ms = self._clock.monotonic_ms()
        is_this = record.machine == self._agent.machine.id
        status = cluster.status() if is_this else cluster.machines.status(record.machine)
        return MachineView(
            machine=record.machine,
            name=record.name,
            role=record.role,
            presence=self._presence(cluster, record, now_ms),
            is_this_machine=is_this,
            addresses=status.addresses if status else record.addresses,
            version=status.version if status else "",
            silent_ms=cluster.machines.silent_ms(record.machine, now_ms),
            limits=status.limits if status else "",
        )

    def _pnode(self, cluster: AgentCluster, record: MemberRecord, entry: PNodeRecord) -> PNodeView:
        now_ms = self._clock.monotonic_ms()
        is_this = record.machine == self._agent.machine.id
        status = cluster.status() if is_this else cluster.machines.status(record.machine)
        report = next((r for r in status.pnodes if r.pnode == entry.pnode), None) if status else None
        session = self._session_state(cluster)
        is_training = session.status == "running"
        held = session.assignment.items() if is_training else ()
        vnodes = tuple(name for name, pnode in held if pnode == entry.pnode)
        view = PNodeView(
            pnode=entry.pnode,
            machine=record.machine,
            name=record.name,
            presence=self._presence(cluster, record, now_ms),
            is_this_machine=is_this,
            silent_ms=cluster.machines.silent_ms(record.machine, now_ms),
            vnodes=vnodes,
            limits=status.limits if status else "",
        )
        return with_report(view, report, is_training=bool(vnodes)) if report else view
