"""A session in one process: the real drivers of an orchestrator and several PNodes over an in-memory hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.compute import Compute
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    Progress,
    Recovering,
    Replanned,
    Trained,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.expectations import expectations_of
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.job import SessionJob, assignment_for
from dcnr_app.cluster.memory_transport import Delay, MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.orchestrator import Orchestrator
from dcnr_app.cluster.orchestrator_seams import Roster
from dcnr_app.cluster.placement import assign
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.pnode import PNodeDriver, role_of
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.cluster.start_point import Parts, StartPoint
from dcnr_app.cluster.transport import Member, Receiver
from dcnr_app.data.source import Microbatch
from dcnr_app.engine.optimizers import slot_names
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import DcnrError, first_error
from dcnr_app.ids import ORCHESTRATOR, PNodeId, SessionId
from dcnr_app.nodes.graph.load import load_network
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.registry import Registry, load_registry
from dcnr_app.runtime.tables import HandleTable
from tests.e2e.place import network_text

CONTEXT, VOCABULARY = 16, 300
SETTINGS = TrainingSettings(steps=3, batch=8, microbatches=8, validation_sequences=4, validate_every=2)
LIMIT_S = 30.0


def tiny_network(registry: Registry) -> Network:
    """Two blocks of width 16."""
    return load_network(network_text(), file="tiny.yaml", registry=registry).network


def spread(network: Network, settings: TrainingSettings, n_pnodes: int) -> Plan:
    """A plan over so many PNodes."""
    pnodes = tuple(PNodeId(f"p{number}") for number in range(1, n_pnodes + 1))
    return build_plan(network, assign(network, settings.rows, pnodes), pnodes, settings, generation=1)


class RandomText:
    """A BatchSource of random tokens."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        ids = np.random.default_rng(step).integers(
            0, VOCABULARY, (self._settings.batch, CONTEXT + 1), np.int32
        )
        parts = np.split(ids, self._settings.microbatches)
        rows = self._settings.rows
        return tuple(
            Microbatch(
                np.ascontiguousarray(part[:, :-1]),
                np.ascontiguousarray(part[:, 1:]),
                tuple((step - 1) * self._settings.batch + i * rows + row for row in range(rows)),
                rows * CONTEXT,
            )
            for i, part in enumerate(parts)
        )

    def validation(self) -> tuple[Microbatch, ...]:
        return self.batch(1_000)[:2]


class MemoryJournal:
    """What would be durable."""

    def __init__(self) -> None:
        self.decisions: dict[int, Decision] = {}
        self.checkpoints: dict[int, Parts] = {}

    def commit(self, effect: AppendCommit) -> None:
        self.decisions[effect.decision.step] = effect.decision

    def checkpoint(self, effect: WriteCheckpoint, parts: Parts) -> str:
        self.checkpoints[effect.step] = {
            name: {slot: np.array(x) for slot, x in part.items()} for name, part in parts.items()
        }
        return ""

    def record(self, effect: Progress | Validated | WorkerReady) -> None:
        del effect

    def begin_generation(self, effect: BeginGeneration) -> None:
        del effect

    def restore(self) -> StartPoint:
        step = max(self.checkpoints, default=0)
        return StartPoint(step=step, t=step, parts=self.checkpoints.get(step, {}), recorded=self.decisions)


class LocalRun:
    """One session, its PNodes and what they leave behind.

    `delay_ms` holds messages back, see MemoryHub; `compute` replaces the Compute of PNodes p1, p2, ….
    """

    def __init__(
        self,
        *,
        n_pnodes: int = 2,
        settings: TrainingSettings = SETTINGS,
        delay_ms: Delay | None = None,
        journal: MemoryJournal | None = None,
        compute: Mapping[str, type[Compute]] | None = None,
    ) -> None:
        self.registry = load_registry()
        self.network = tiny_network(self.registry)
        self.settings = settings
        self.plan = spread(self.network, settings, n_pnodes)
        self.journal = journal or MemoryJournal()
        self.steps: list[tuple[float, Progress]] = []
        """Every committed step, with the time in s at which it was."""
        self.handles = HandleTable()
        self.hub = MemoryHub(delay_ms)
        self.backend = ReferenceBackend(1)
        job = SessionJob(
            session=SessionId("s"), generation=1, network=self.network, settings=settings, start=StartPoint()
        )
        self.orchestrator = Orchestrator(
            job=assignment_for(job, self.plan, self.handles),
            handles=self.handles,
            expected=expectations_of(self.network, settings, slot_names(settings.optimizer.type)),
            feed=SessionFeed(self.network, RandomText(settings), self.backend, {}),
            journal=self.journal,
            observer=self,
            clock=SystemClock(),
        )
        self._make_pnodes(compute or {})
        self.receivers: dict[PNodeId, Receiver] = dict(self.drivers)
        """Who takes what arrives for a PNode: a test may put itself before the driver."""

    def _make_pnodes(self, compute: Mapping[str, type[Compute]]) -> None:
        self.computes = {
            pnode: compute.get(pnode, Compute)(
                pnode, self.registry, lambda: ReferenceBackend(1), SystemClock()
            )
            for pnode in self.plan.pnodes
        }
        self.transports = {
            pnode: MemoryTransport(self.hub, pnode) for pnode in (ORCHESTRATOR, *self.plan.pnodes)
        }
        self.recoveries: list[Recovering] = []
        self.drivers = {
            pnode: PNodeDriver(
                pnode=pnode,
                transport=self.transports[pnode],
                compute=self.computes[pnode],
                registry=self.registry,
                clock=SystemClock(),
            )
            for pnode in self.plan.pnodes
        }

    # ---- the orchestrator's Observer

    def worker_ready(self, event: WorkerReady) -> None:
        del event

    def progress(self, event: Progress) -> None:
        self.steps.append((time.monotonic(), event))

    def validated(self, event: Validated) -> None:
        del event

    def recovering(self, event: Recovering) -> None:
        self.recoveries.append(event)

    def replanned(self, event: Replanned) -> None:
        del event

    # ---- the orchestrator's Crew

    @property
    def transport(self) -> MemoryTransport:
        return self.transports[ORCHESTRATOR]

    async def start(self, receiver: Receiver, roster: Roster) -> tuple[Address, ...]:
        raise NotImplementedError("the run starts its PNodes itself")

    def evict(self, pnode: PNodeId, reason: str) -> None:
        del reason
        self.drivers[pnode].stop()

    def drained(self, pnode: PNodeId) -> None:
        del pnode

    async def how_lost(self, within_s: float) -> tuple[PNodeId, str] | None:
        del within_s
        return None

    async def close(self) -> None: ...

    # ---- running

    async def run(self, at_rest: Callable[[Trained], Awaitable[None]] | None = None) -> Trained:
        """Train to the end; what goes wrong anywhere is raised."""

        async def nothing(trained: Trained) -> None:
            del trained

        addresses = []
        for pnode, transport in self.transports.items():
            receiver = self.orchestrator if pnode == ORCHESTRATOR else self.receivers[pnode]
            addresses.append(Address(pnode, await transport.start(receiver)))
        members = [
            Member(pnode=a.pnode, address=a.address, fingerprint="", role=role_of(a.pnode)) for a in addresses
        ]
        for transport in self.transports.values():
            transport.set_members(members)
        try:
            return await self._serve(addresses, at_rest or nothing)
        except* DcnrError as group:
            raise first_error(group) from None

    async def _serve(
        self, addresses: list[Address], at_rest: Callable[[Trained], Awaitable[None]]
    ) -> Trained:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(driver.run()) for driver in self.drivers.values()]
            for driver in self.drivers.values():
                await driver.started()
            try:
                return await self.orchestrator.run(self, addresses, at_rest)
            finally:
                await asyncio.wait(running, timeout=2)
                for driver in self.drivers.values():
                    driver.stop()
                await asyncio.wait(running)
                for transport in self.transports.values():
                    await transport.close()
