"""The PNodes of a session on this machine: worker processes over mutual TLS, or one PNode in this process.
IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster.compute import Compute
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.local_worker import LocalWorker, RestartDelays
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.orchestrator_seams import Roster
from dcnr_app.cluster.pnode import PNodeDriver, members_of, role_of
from dcnr_app.cluster.processes import Bootstrap
from dcnr_app.cluster.transport import PeerTransport, Receiver
from dcnr_app.engine.backend import Backend
from dcnr_app.errors import DeadlineError, InvariantError, PeerError, UnreachableError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.registry import Registry

_LOG = logging.getLogger(__name__)
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
    restarts: bool = False
    """Whether a worker process that ended is started again."""


class LocalCluster:
    """Starts the PNodes of one session, starts those that end again, and ends them all. A session's Crew."""

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
        self._workers: dict[PNodeId, LocalWorker] = {}
        self._tending: list[asyncio.Task[None]] = []
        self._given_up: set[PNodeId] = set()
        self._addresses: dict[PNodeId, Address] = {}
        self._local: tuple[PNodeDriver, asyncio.Task[None], PeerTransport, Compute] | None = None
        self._transport: PeerTransport | None = None

    @property
    def transport(self) -> PeerTransport:
        """The orchestrator's streams. Raises InvariantError before `start` has made them."""
        if self._transport is None:
            raise InvariantError("the cluster has no transport before it starts")
        return self._transport

    async def start(self, receiver: Receiver, roster: Roster) -> tuple[Address, ...]:
        """Start the orchestrator's transport and all PNodes; returns where each listens, the orchestrator
        first."""
        pnodes = worker_ids(self._settings.n_workers)
        if self._settings.n_workers == 0:
            return await self._start_in_process(receiver, pnodes[0])
        return await self._start_processes(receiver, roster, pnodes)

    async def _start_in_process(self, receiver: Receiver, pnode: PNodeId) -> tuple[Address, ...]:
        hub = MemoryHub()
        self._transport = MemoryTransport(hub, ORCHESTRATOR)
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
            Address(ORCHESTRATOR, await self._transport.start(receiver)),
            Address(pnode, await worker_transport.start(driver)),
        )
        self._local = (driver, self._tasks.create_task(driver.run()), worker_transport, compute)
        await driver.started()
        members = members_of(addresses)
        self._transport.set_members(members)
        worker_transport.set_members(members)
        return addresses

    async def _start_processes(
        self, receiver: Receiver, roster: Roster, pnodes: Sequence[PNodeId]
    ) -> tuple[Address, ...]:
        authority = ClusterAuthority.create(CLUSTER)
        own = authority.issue(ORCHESTRATOR, CLUSTER, role_of(ORCHESTRATOR))
        self._transport = GrpcTransport(ORCHESTRATOR, own, CLUSTER)
        own_address = await self._transport.start(receiver)
        self._admit(Address(ORCHESTRATOR, own_address, fingerprint(own.cert_pem)))
        for pnode in pnodes:
            bootstrap = Bootstrap(
                pnode=pnode,
                cluster=CLUSTER,
                certificate_pem="",
                key_pem="",
                authority_pem=authority.ca_pem.decode(),
                orchestrator_fingerprint=fingerprint(own.cert_pem),
                threads=self._settings.threads,
            )
            self._workers[pnode] = LocalWorker(bootstrap, authority, self._settings.environment)
        starting = [self._tasks.create_task(worker.start()) for worker in self._workers.values()]
        try:
            for task in starting:
                self._admit(await task)
        finally:
            for task in starting:
                task.cancel()  # those that have started stay
        self._tending = [
            self._tasks.create_task(self._tend(worker, roster)) for worker in self._workers.values()
        ]
        return tuple(self._addresses.values())

    def _admit(self, address: Address) -> None:
        self._addresses[address.pnode] = address
        self.transport.set_members(members_of(self._addresses.values()))

    async def _tend(self, worker: LocalWorker, roster: Roster) -> None:
        """Tell when the process ends; then start it again, more and more slowly if it does not stay.

        Raises UnreachableError when the last worker is given up: nobody would ever come to go on."""
        delays = RestartDelays()
        while True:
            started_ms = self._clock.monotonic_ms()
            roster.lost(worker.pnode, await worker.ended())
            while self._settings.restarts:
                delay_s = delays.after(self._clock.monotonic_ms() - started_ms)
                if delay_s is None:
                    self._give_up(worker)
                    return
                await asyncio.sleep(delay_s)
                try:
                    address = await worker.start()
                except (PeerError, DeadlineError) as error:
                    _LOG.warning("worker_not_started pnode=%s why=%s", worker.pnode, error)
                    continue
                self._admit(address)
                roster.joined(address)
                break
            else:
                return

    def _give_up(self, worker: LocalWorker) -> None:
        _LOG.error("worker_given_up pnode=%s", worker.pnode)
        self._given_up.add(worker.pnode)
        if len(self._given_up) == len(self._workers):
            raise UnreachableError(
                f"lost PNode {worker.pnode}: {worker.how_it_ended()}",
                where=worker.pnode,
                why="it was started again and again and never stayed, and no other PNode is left",
                fix="dcnr-app session resume latest",
            )

    def evict(self, pnode: PNodeId, reason: str) -> None:
        """End the process of a PNode that was given up; `_tend` starts a new one."""
        _LOG.info("evict pnode=%s reason=%s", pnode, reason)
        if pnode in self._workers:
            self._workers[pnode].kill()

    def drained(self, pnode: PNodeId) -> None:
        """Nothing to do: a worker of this machine ends with the session."""

    async def how_lost(self, within_s: float) -> tuple[PNodeId, str] | None:
        """The first process that a signal ended, if there is one by then: its streams may break before."""
        waiting = [asyncio.ensure_future(worker.ended()) for worker in self._workers.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        found = next((worker for worker in self._workers.values() if worker.was_killed), None)
        return None if found is None else (found.pnode, found.how_it_ended())

    async def close(self) -> None:
        """End all PNodes and the transport. Raises what ended the PNode of this process, if something did."""
        for task in self._tending:
            task.cancel()
        await asyncio.gather(*self._tending, return_exceptions=True)
        async with asyncio.TaskGroup() as closing:
            for worker in self._workers.values():
                closing.create_task(worker.close())
        try:
            if self._local is not None:
                await self._close_local(*self._local)
        finally:
            if self._transport is not None:
                await self._transport.close()

    async def _close_local(
        self, driver: PNodeDriver, running: asyncio.Task[None], transport: PeerTransport, compute: Compute
    ) -> None:
        driver.stop()
        try:
            await running
        finally:
            await transport.close()
            compute.close()
