"""The PNodes of a session on this machine: worker processes over mutual TLS, or one PNode in this process.
IO."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster.compute import Compute
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, Credentials, fingerprint
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.pnode import PNodeDriver, role_of
from dcnr_app.cluster.processes import Bootstrap, WorkerProcess, start_worker
from dcnr_app.cluster.transport import Member, PeerTransport, Receiver
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.registry import Registry

CLUSTER = "local"
LOCAL = PNodeId("local")


def worker_ids(n_workers: int) -> tuple[PNodeId, ...]:
    """Ids of the PNodes: worker-1, worker-2, …; with 0 workers the one PNode in this process, `local`."""
    if n_workers == 0:
        return (LOCAL,)
    return tuple(PNodeId(f"worker-{number}") for number in range(1, n_workers + 1))


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to build the PNodes. `environment` is the whole environment of worker processes."""

    n_workers: int
    threads: int
    environment: Mapping[str, str]


class LocalCluster:
    """Starts the PNodes of one session and ends them."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        registry: Registry,
        make_backend: Callable[[int], Backend],
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._make_backend = make_backend
        self._clock = clock
        self._tasks = tasks
        self._processes: list[WorkerProcess] = []
        self._watching: list[asyncio.Task[None]] = []
        self._local: tuple[PNodeDriver, asyncio.Task[None], PeerTransport, Compute] | None = None
        self.transport: PeerTransport | None = None

    async def start(self, receiver: Receiver, on_exit: Callable[[PNodeId, str], None]) -> tuple[Address, ...]:
        """Start the orchestrator's transport and all PNodes; returns where each listens, the orchestrator
        first."""
        pnodes = worker_ids(self._settings.n_workers)
        if self._settings.n_workers == 0:
            return await self._start_in_process(receiver, pnodes[0])
        return await self._start_processes(receiver, on_exit, pnodes)

    async def _start_in_process(self, receiver: Receiver, pnode: PNodeId) -> tuple[Address, ...]:
        hub = MemoryHub()
        self.transport = MemoryTransport(hub, ORCHESTRATOR)
        worker_transport = MemoryTransport(hub, pnode)
        compute = Compute(
            pnode, self._registry, lambda: self._make_backend(self._settings.threads), self._clock
        )
        driver = PNodeDriver(
            pnode=pnode,
            transport=worker_transport,
            compute=compute,
            registry=self._registry,
            clock=self._clock,
        )
        addresses = (
            Address(ORCHESTRATOR, await self.transport.start(receiver)),
            Address(pnode, await worker_transport.start(driver)),
        )
        self._local = (driver, self._tasks.create_task(driver.run()), worker_transport, compute)
        await driver.started()
        members = _members(addresses)
        self.transport.set_members(members)
        worker_transport.set_members(members)
        return addresses

    async def _start_processes(
        self, receiver: Receiver, on_exit: Callable[[PNodeId, str], None], pnodes: Sequence[PNodeId]
    ) -> tuple[Address, ...]:
        authority = ClusterAuthority.create(CLUSTER)
        own = authority.issue(ORCHESTRATOR, CLUSTER, role_of(ORCHESTRATOR))
        self.transport = GrpcTransport(ORCHESTRATOR, own, CLUSTER)
        own_address = await self.transport.start(receiver)
        addresses = [Address(ORCHESTRATOR, own_address, fingerprint(own.cert_pem))]
        credentials = [authority.issue(pnode, CLUSTER, role_of(pnode)) for pnode in pnodes]
        starting = [
            self._tasks.create_task(self._start_process(pnode, each, addresses[0].fingerprint))
            for pnode, each in zip(pnodes, credentials, strict=True)
        ]
        try:
            for task, each in zip(starting, credentials, strict=True):
                process = await task
                self._watching.append(self._tasks.create_task(process.watch(on_exit)))
                addresses.append(Address(process.pnode, process.address, fingerprint(each.cert_pem)))
        finally:
            for task in starting:
                task.cancel()  # those that have started stay
        self.transport.set_members(_members(addresses))
        return tuple(addresses)

    async def _start_process(
        self, pnode: PNodeId, credentials: Credentials, orchestrator_fingerprint: str
    ) -> WorkerProcess:
        bootstrap = Bootstrap(
            pnode=pnode,
            cluster=CLUSTER,
            certificate_pem=credentials.cert_pem.decode(),
            key_pem=credentials.key_pem.decode(),
            authority_pem=credentials.ca_pem.decode(),
            orchestrator_fingerprint=orchestrator_fingerprint,
            threads=self._settings.threads,
        )
        process = await start_worker(bootstrap, self._settings.environment)
        self._processes.append(process)
        return process

    async def killed(self, within_s: float) -> WorkerProcess | None:
        """The first process that a signal ended, if there is one by then: its streams may break before."""
        waiting = [asyncio.ensure_future(process.ended()) for process in self._processes]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return next((process for process in self._processes if process.was_killed), None)

    async def close(self) -> None:
        """End all PNodes and the transport. Raises what ended the PNode of this process, if something did."""
        for task in self._watching:
            task.cancel()
        async with asyncio.TaskGroup() as closing:
            for process in self._processes:
                closing.create_task(process.close())
        try:
            if self._local is not None:
                await self._close_local(*self._local)
        finally:
            if self.transport is not None:
                await self.transport.close()

    async def _close_local(
        self, driver: PNodeDriver, running: asyncio.Task[None], transport: PeerTransport, compute: Compute
    ) -> None:
        driver.stop()
        try:
            await running
        finally:
            await transport.close()
            compute.close()


def _members(addresses: Sequence[Address]) -> list[Member]:
    return [
        Member(
            pnode=entry.pnode, address=entry.address, fingerprint=entry.fingerprint, role=role_of(entry.pnode)
        )
        for entry in addresses
    ]
