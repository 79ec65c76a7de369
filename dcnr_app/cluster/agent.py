"""A machine's control process: identity, discovery, front door, its part in a cluster once it has one. IO.

Holds no tensors. What people ask of it comes through app.py's LocalApi.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import msgspec

import dcnr_app
from dcnr_app.clock import Clock
from dcnr_app.cluster.addresses import host_port
from dcnr_app.cluster.admission import Admission
from dcnr_app.cluster.agent_cluster import AgentCluster, ClusterHooks
from dcnr_app.cluster.agent_door import LOOPBACK, open_front_door
from dcnr_app.cluster.agent_joining import AgentJoining
from dcnr_app.cluster.agent_pnodes import PNodeSettings
from dcnr_app.cluster.announcement import Announcement
from dcnr_app.cluster.builds import Build
from dcnr_app.cluster.cluster_files import ClusterFiles, OwnCluster
from dcnr_app.cluster.discovery import Discovery, DiscoverySettings
from dcnr_app.cluster.front_door import FrontDoor, FrontDoorSettings
from dcnr_app.cluster.joining import Joiner, save_admission
from dcnr_app.cluster.machine import Machine, load_machine, rename_machine
from dcnr_app.cluster.membership import Membership
from dcnr_app.cluster.messages import PROTOCOL_VERSION
from dcnr_app.cluster.pairing_messages import Info
from dcnr_app.cluster.registrar import Registrar, create_cluster, refuse_second_cluster
from dcnr_app.errors import DcnrError, RefusedError
from dcnr_app.settings import Home

_LOG = logging.getLogger(__name__)
Role = Literal["none", "orchestrator", "worker"]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is started with. `is_loopback` keeps it on this machine, with ports of the system's
    choice; `service_type` separates worlds that must not meet."""

    home: Home
    build: Build
    pnode: PNodeSettings
    n_pnodes: int = 1
    cluster_name: str = ""
    starts_cluster: bool = False
    is_loopback: bool = False
    discovery: DiscoverySettings = DiscoverySettings()


class Agent:
    """`run` is its life. Implements the front door's handlers."""

    def __init__(self, settings: AgentSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self.files = ClusterFiles(settings.home)
        self.machine: Machine = load_machine(settings.home)
        self.started_ms = clock.wall_ms()
        self.notices: list[str] = list(self.machine.notices)
        self.cluster: AgentCluster | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._discovery: Discovery | None = None
        self._joining: AgentJoining | None = None
        self._ending = asyncio.Event()
        self._changing = asyncio.Lock()
        self.front_door_port = 0
        self.front_door = FrontDoor(FrontDoorSettings(), self, clock)

    @property
    def discovery(self) -> Discovery:
        """Who is on the network. Raises RefusedError while the agent starts."""
        if self._discovery is None:
            raise RefusedError("the agent is starting", fix="ask again in a second")
        return self._discovery

    @property
    def joining(self) -> AgentJoining:
        """This machine's own joining. Raises RefusedError while the agent starts."""
        if self._joining is None:
            raise RefusedError("the agent is starting", fix="ask again in a second")
        return self._joining

    @property
    def role(self) -> Role:
        """What it is in its cluster."""
        return "none" if self.cluster is None else self.cluster.own.role

    async def run(self, serve: Callable[[], Awaitable[Callable[[], Awaitable[None]]]]) -> None:
        """Live until `end` is called or a signal comes. `serve` opens what people use, and returns what
        closes it. Raises what keeps it from starting."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: Ctrl-C then ends asyncio.run by itself
                loop.add_signal_handler(number, self.end)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            close = None
            try:
                await self._start(tasks)
                close = await serve()
                await self._ending.wait()
            finally:
                if close is not None:
                    await close()
                await self._close()

    def end(self) -> None:
        """End `run`."""
        self._ending.set()

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._joining = AgentJoining(tasks, self._admitted_here)
        found = await open_front_door(self, self._clock, is_loopback=self.settings.is_loopback)
        self.front_door, self.front_door_port = found.door, found.port
        self.notices += [found.notice] if found.notice else []
        discovery = msgspec.structs.replace(self.settings.discovery, is_loopback=self.settings.is_loopback)
        self._discovery = Discovery(discovery, tasks, self._clock, lambda: None, self._is_connected)
        await self._discovery.start(self._announcement())
        own = await asyncio.to_thread(self.files.load_cluster)
        if own is None and self.settings.starts_cluster:
            await self.start_cluster(self.settings.cluster_name or f"{self.machine.name}'s cluster")
        elif own is not None:
            await self._enter(own)

    async def _close(self) -> None:
        if self._joining is not None:
            await self._joining.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.front_door.close()
        if self._discovery is not None:
            await self._discovery.close()

    # ---- clusters

    async def start_cluster(self, name: str) -> None:
        """Make this machine the orchestrator of a new cluster. Raises RefusedError if it is in one."""
        async with self._changing:
            own = await asyncio.to_thread(
                create_cluster,
                self.settings.home,
                self.machine,
                name,
                n_pnodes=self.settings.n_pnodes,
                now_ms=self._clock.wall_ms(),
            )
            await self._enter(own)

    def joiner(self) -> Joiner:
        """What this machine says of itself when it joins. Raises RefusedError if it is in a cluster."""
        refuse_second_cluster(self.files)
        return Joiner(
            machine=self.machine,
            build=self.settings.build,
            n_pnodes=self.settings.n_pnodes,
            device=self.settings.pnode.device,
        )

    async def leave(self, reason: str, *, is_removed: bool = False) -> None:
        """Leave the cluster: streams end, PNodes stop, the files are kept aside. Without its orchestrator the
        cluster is none: then the other machines are told. `reason` is for people. Raises RefusedError outside
        a cluster, StoreError."""
        async with self._changing:
            cluster = self.cluster
            if cluster is None:
                raise RefusedError("this machine is in no cluster")
            if cluster.registrar is not None:
                await cluster.disband()
            self.notices.append(reason)
            self.cluster = None
            self.front_door.open_cluster(None)
            await cluster.close(for_good=True)
            await asyncio.to_thread(self.files.drop_cluster, "removed" if is_removed else "left")
            await self.discovery.update(self._announcement())

    async def rename(self, name: str) -> None:
        """Another name for this machine. Raises UserError, StoreError."""
        self.machine = await asyncio.to_thread(rename_machine, self.settings.home, self.machine, name)
        await self.discovery.update(self._announcement())

    async def _enter(self, own: OwnCluster) -> None:
        if self._tasks is None:
            raise RefusedError("the agent is starting")
        registrar = None
        if own.role == "orchestrator":
            registrar = await asyncio.to_thread(
                Registrar, self.files, self.machine, self.settings.build, self._clock
            )
        hooks = ClusterHooks(
            name=lambda: self.machine.name,
            hosts=self.hosts,
            heard_at=self._heard_at,
            removed=self._removed,
            confirmed=self.discovery.confirm,
        )
        cluster = AgentCluster(own, self.files, registrar, self.settings.pnode, self._clock, hooks)
        await cluster.start(self._tasks)
        self.cluster = cluster
        if registrar is None and (orchestrator := cluster.membership.orchestrator) is not None:
            # Where multicast is dead, a member still finds its orchestrator by asking it.
            self.discovery.ask_directly(
                [address.rpartition(":")[0].strip("[]") for address in orchestrator.addresses]
            )
        self.front_door.open_cluster(registrar)
        await self.discovery.update(self._announcement())

    async def _admitted_here(self, admission: Admission) -> None:
        async with self._changing:
            own = await asyncio.to_thread(save_admission, self.settings.home, admission)
            await self._enter(own)

    def _removed(self, reason: str) -> None:
        if self._tasks is not None and self.cluster is not None and not self._changing.locked():
            self._tasks.create_task(self._leave_removed(reason))

    async def _leave_removed(self, reason: str) -> None:
        try:
            await self.leave(reason, is_removed=True)
        except DcnrError as error:  # the agent goes on: its streams have ended all the same
            self.notices.append(str(error))
            _LOG.warning("leaving_failed why=%s", error)

    # ---- what its parts ask

    def hosts(self) -> tuple[str, ...]:
        """This machine's addresses, best first."""
        if self.settings.is_loopback:
            return (LOOPBACK,)
        return self.discovery.announced_addresses or (LOOPBACK,)

    def _heard_at(self, machine: str) -> tuple[str, ...]:
        for neighbour in self.discovery.snapshot():
            port = neighbour.announcement.agent_port
            if neighbour.machine == machine and port is not None:
                return tuple(host_port(host, port) for host in neighbour.addresses)
        return ()

    def _is_connected(self, machine: str) -> bool:
        return self.cluster is not None and self.cluster.link.is_connected(machine)

    def _announcement(self) -> Announcement:
        cluster = self.cluster
        return Announcement(
            machine=self.machine.id,
            name=self.machine.name,
            fingerprint=self.machine.fingerprint,
            front_door_port=self.front_door_port,
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            app_version=dcnr_app.__version__,
            cluster=cluster.own.cluster if cluster else "",
            cluster_name=cluster.own.name if cluster else "",
            role=cluster.own.role if cluster else "",
            device_summary=self.settings.pnode.device,
            agent_port=cluster.link.port if cluster else None,
        )

    # ---- the front door's handlers

    def info(self) -> Info:
        """Who this machine says it is."""
        cluster = self.cluster
        return Info(
            machine=self.machine.id,
            name=self.machine.name,
            role=self.role,
            cluster=cluster.own.cluster if cluster else "",
            cluster_name=cluster.own.name if cluster else "",
            key_fingerprint=self.machine.fingerprint,
            build=self.settings.build,
        )

    def pending_changed(self) -> None:
        """Somebody wants to join, or it is over."""
        for pending in self.front_door.pending():
            _LOG.info("pending machine=%s name=%r step=%s", pending.machine, pending.name, pending.step)

    def admitted(self, membership: Membership) -> None:
        """A machine was admitted."""
        del membership
        if self.cluster is not None:
            self.cluster.membership_changed()
