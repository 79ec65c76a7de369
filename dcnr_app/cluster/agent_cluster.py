"""A machine's part in its cluster, run by its agent: streams with the others, PNodes, and on the orchestrator
the membership and the session. IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

import dcnr_app
from dcnr_app.clock import Clock
from dcnr_app.cluster.addresses import host_port
from dcnr_app.cluster.agent_facts import checked_report
from dcnr_app.cluster.agent_link import AgentLink, OfAgents
from dcnr_app.cluster.agent_messages import (
    AgentLeaves,
    AgentStatus,
    MembershipUpdate,
    PNodeReport,
    RestartPNode,
)
from dcnr_app.cluster.agent_pnodes import AgentPNodes, PNodeSettings
from dcnr_app.cluster.agent_session import AgentSession
from dcnr_app.cluster.agent_state import Machines
from dcnr_app.cluster.cluster_files import ClusterFiles, OwnCluster
from dcnr_app.cluster.membership import MemberRecord, Membership, merged
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import DcnrError, RefusedError, StoreError
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
_STATUS_S = 1.0
_DRAIN_S = 120.0
_GOODBYE_S = 0.7  # streams of a removed machine are to end within a second
_LAST_WORD_S = 1.0


class ClusterHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What this part needs of the agent: this machine's name and addresses, where a machine was heard on the
    network (`host:port` of its agent), whom to tell that this machine was removed, and of a confirmed
    machine."""

    name: Callable[[], str]
    hosts: Callable[[], tuple[str, ...]]
    heard_at: Callable[[str], tuple[str, ...]]
    removed: Callable[[str], None]
    confirmed: Callable[[str], None]


class AgentCluster:
    """`registrar` on the orchestrator only."""

    def __init__(
        self,
        own: OwnCluster,
        files: ClusterFiles,
        registrar: Registrar | None,
        settings: PNodeSettings,
        clock: Clock,
        hooks: ClusterHooks,
    ) -> None:
        self.own = own
        self._files = files
        self.registrar = registrar
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self.link = AgentLink(own, settings.host, settings.agent_port, self._heard)
        self.machines = Machines()
        self.session: AgentSession | None = None
        self.trouble = ""
        """Why the orchestrator is not reached; empty while it is."""
        self._membership: Membership | None = None
        self._pnodes: AgentPNodes | None = None
        self._tending: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._goodbyes: dict[str, asyncio.Event] = {}
        self._left: set[str] = set()
        self._is_unsaved = False

    @property
    def membership(self) -> Membership:
        """Who is a member, as far as this machine knows. Raises StoreError if nothing is known."""
        found = self.registrar.membership if self.registrar is not None else self._membership
        if found is None:
            raise StoreError("the membership of this cluster is not known", where=str(self._files.folder))
        return found

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen, start the PNodes and tell the others. Raises StoreError, UserError."""
        if self.registrar is None:
            self._membership = await asyncio.to_thread(self._files.load_members)
        self.link.set_membership(self.membership)
        await self.link.start()
        if self.registrar is not None:  # where those find it who join by another way than multicast
            own_addresses = [host_port(host, self.link.port) for host in self._hooks.hosts()]
            await asyncio.to_thread(self.registrar.relocate, self.own.machine, own_addresses)
            self.link.set_membership(self.membership)
        self._pnodes = AgentPNodes(self.own, self._settings, self._clock, tasks, self._stirred.set)
        if self.registrar is not None:
            self.session = AgentSession(
                self.own,
                self._files.folder / "session.json",
                self._settings.environment,
                tasks,
                self.listening,
                self._hooks.hosts,
            )
        self._tending = tasks.create_task(self._tend())

    async def close(self, *, for_good: bool = False) -> None:
        """End all that belongs to the cluster; the others are told."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait({self._tending})
        if self.registrar is None and not self.trouble:
            goodbye = AgentLeaves(machine=self.own.machine, for_good=for_good)
            await self.link.tell(self.own.orchestrator, goodbye, _LAST_WORD_S)
        ending = [part.close() for part in (self.session, self._pnodes) if part is not None]
        await asyncio.gather(*ending)
        await self.link.close()

    async def disband(self) -> None:
        """Take all other machines out, since this one, which is the cluster, leaves. Raises RefusedError,
        StoreError."""
        others = [record.machine for record in self.membership.members if record.role != "orchestrator"]
        await asyncio.gather(*(self.remove(machine) for machine in others))

    def listening(self) -> Mapping[PNodeId, PNodeReport]:
        """PNodes of the cluster that can be dialled now; complete on the orchestrator only."""
        return self.machines.listening(self._clock.monotonic_ms())

    def status(self) -> AgentStatus:
        """This machine, as it tells the orchestrator."""
        hosts = self._hooks.hosts()
        return AgentStatus(
            machine=self.own.machine,
            name=self._hooks.name(),
            version=dcnr_app.__version__,
            addresses=tuple(host_port(host, self.link.port) for host in hosts),
            epoch=self.membership.epoch,
            pnodes=self._pnodes.reports(hosts) if self._pnodes is not None else (),
            limits=self._pnodes.limits if self._pnodes is not None else "",
        )

    def membership_changed(self) -> None:
        """The registrar has a new membership: take it up and tell the others."""
        self.link.set_membership(self.membership)
        self._stirred.set()

    async def remove(self, machine: str) -> None:
        """Take a machine out of the cluster: it is told, its streams end. Raises RefusedError, StoreError."""
        if self.registrar is None:
            raise RefusedError(
                "only the cluster's orchestrator removes machines", fix="use it, or: dcnr-app pnode leave"
            )
        record = self.membership.find(machine)
        fresh = await asyncio.to_thread(self.registrar.remove, machine)
        await self._tell_removed(machine, MembershipUpdate(membership=msgspec.json.encode(fresh)))
        await self._cut_off(machine, record)

    async def _cut_off(self, machine: str, record: MemberRecord | None) -> None:
        """End the streams of a machine that is no member any more; `record` is what it was."""
        self.machines.left(machine)
        self.membership_changed()
        if self.session is not None and record is not None:
            for entry in record.pnodes:
                await self.session.withdraw(entry.pnode, "its machine is not in the cluster any more")

    async def _tell_removed(self, machine: str, update: MembershipUpdate) -> None:
        """Let a removed machine hear of it and say goodbye before its streams are cut: what is on its way
        then is lost."""
        goodbye = self._goodbyes.setdefault(machine, asyncio.Event())
        try:
            async with asyncio.timeout(_GOODBYE_S):
                if not await self.link.tell(machine, update):
                    await goodbye.wait()
        except TimeoutError:
            _LOG.info("removed_without_goodbye machine=%s", machine)
        finally:
            self._goodbyes.pop(machine, None)

    async def drain(self, machine: str) -> None:
        """Use a machine no more after its VNodes have moved. Raises RefusedError, UnreachableError."""
        record = self.membership.find(machine)
        if self.session is None or record is None:
            raise RefusedError("only the cluster's orchestrator drains its machines")
        await self.session.drain(tuple(entry.pnode for entry in record.pnodes), _DRAIN_S)

    # ---- what goes on by itself

    async def _tend(self) -> None:
        while True:
            try:
                await (self._tend_orchestrator() if self.registrar is not None else self._tend_worker())
            except DcnrError as error:
                _LOG.warning("agent_trouble why=%s", error)
            self._stirred.clear()
            try:
                async with asyncio.timeout(_STATUS_S):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    async def _tend_worker(self) -> None:
        if self._is_unsaved and self._membership is not None:
            self._is_unsaved = False
            await asyncio.to_thread(self._files.save_members, self._membership)
        orchestrator = self.own.orchestrator
        self.link.set_addresses(orchestrator, self._hooks.heard_at(orchestrator))
        self.trouble = await self.link.tell(orchestrator, self.status())
        if not self.trouble:
            self._hooks.confirmed(orchestrator)

    async def _tend_orchestrator(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.machines.heard(self.status(), now_ms)
        await self._strike_off()
        epoch = self.membership.epoch
        for record in self.membership.members:
            status = self.machines.status(record.machine)
            is_there = self.machines.presence(record.machine, now_ms) == "live"
            if record.machine != self.own.machine and is_there and status and status.epoch < epoch:
                update = MembershipUpdate(membership=msgspec.json.encode(self.membership))
                await self.link.tell(record.machine, update)
        if self.session is None:
            return
        self.session.resume_wanted()
        for pnode, pid in (await self.session.tell_news()).items():
            await self._restart(pnode, pid)

    async def _strike_off(self) -> None:
        """Machines that have left for good are no members any more."""
        for machine in tuple(self._left):
            record = self.membership.find(machine)
            if self.registrar is not None and record is not None:
                await asyncio.to_thread(self.registrar.remove, machine)
                await self._cut_off(machine, record)
            self._left.discard(machine)

    async def _restart(self, pnode: PNodeId, pid: int) -> None:
        machine = pnode.rpartition("-")[0]
        if machine == self.own.machine and self._pnodes is not None:
            self._pnodes.restart(pnode, pid)
        elif self.machines.presence(machine, self._clock.monotonic_ms()) == "live":
            await self.link.tell(machine, RestartPNode(pnode=pnode, pid=pid))

    def _heard(self, machine: str, message: OfAgents) -> None:
        match message:
            case AgentStatus():
                self._heard_status(machine, message)
            case AgentLeaves():
                if self.registrar is not None:
                    self.machines.left(machine)
                    self._left |= {machine} if message.for_good and machine != self.own.machine else set()
                    self._stirred.set()
                if machine in self._goodbyes:
                    self._goodbyes[machine].set()
            case MembershipUpdate():
                self._heard_membership(machine, message)
            case RestartPNode():
                if machine == self.own.orchestrator and self._pnodes is not None:
                    self._pnodes.restart(message.pnode, message.pid)

    def _heard_status(self, machine: str, status: AgentStatus) -> None:
        record = self.membership.find(machine)
        certified = set() if record is None else {entry.pnode for entry in record.pnodes}
        if self.registrar is None or status.machine != machine or record is None:
            _LOG.warning("agent_status_refused machine=%s", machine)
            return
        known = tuple(checked_report(report) for report in status.pnodes if report.pnode in certified)
        self.machines.heard(msgspec.structs.replace(status, pnodes=known), self._clock.monotonic_ms())
        self.link.set_addresses(machine, status.addresses)
        self._hooks.confirmed(machine)

    def _heard_membership(self, machine: str, update: MembershipUpdate) -> None:
        if machine != self.own.orchestrator or self.registrar is not None:
            _LOG.warning("membership_refused machine=%s", machine)
            return
        try:
            fresh = msgspec.json.decode(update.membership, type=Membership)
            fresh = fresh if self._membership is None else merged(self._membership, fresh)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DcnrError) as error:
            _LOG.warning("membership_unreadable why=%s", error)
            return
        if fresh.was_removed(self.own.machine):
            self._hooks.removed(f"this machine was removed from the cluster {self.own.name!r}")
            return
        self._membership, self._is_unsaved = fresh, True
        self.link.set_membership(fresh)
        self._stirred.set()
