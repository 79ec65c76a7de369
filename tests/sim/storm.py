"""A simulated cluster whose machines, network and disk fail: agents start again what ended, sessions go on.

Everything is drawn from the scenario's seed. After every event the invariants of the whole cluster hold; what
becomes durable is compared with the undisturbed run at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dcnr_app.cluster.coordinator_bench import MAX_DEATHS
from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.effects import Drained, Evict, SessionFailed
from dcnr_app.cluster.inputs import LeaveRequested, Outcome, Tick
from dcnr_app.cluster.messages import Address, AnyMessage, Refused
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.tables import HandleTable
from tests.sim.actors import SimWorker
from tests.sim.disk import Disk
from tests.sim.journal import resumed
from tests.sim.lead import SimOrchestrator, StoreEffect
from tests.sim.machines import Machines
from tests.sim.network import Parcel, Weather, Wires
from tests.sim.oracle import Cluster, Reference
from tests.sim.process import Process
from tests.sim.samples import job_for, plan_of_pnodes
from tests.sim.world import Chaos, World

HostArray = np.ndarray[Any, Any]
TICK_MS = 500.0
STATUS_MS = 1_000.0
MAX_EVENTS = 100_000
_CLOSE_MS = 20.0


class Climate(NamedTuple):
    """What a whole run has in common. `slow` stretches computing, so that a session lasts milliseconds or
    minutes beside limits that are seconds."""

    seed: int = 0
    weather: Weather = Weather()
    slow: float = 1.0
    disk_ms: float = 1.0
    restart_ms: float = 100.0
    grace_ms: float = 0.0
    stall_ms: float = 30_000.0


class Storm(World):
    """One session that must get to its end whatever happens."""

    def __init__(
        self, network: Network, settings: TrainingSettings, backend: Backend, climate: Climate,
        reference: Reference,
    ) -> None:  # fmt: skip
        super().__init__(network, settings, backend, chaos=Chaos(climate.seed, 1.0))
        self.chance = random.Random(climate.seed)  # noqa: S311  # a simulation, not a secret
        self.climate = climate
        self.backend = backend
        self.wires = Wires(self, climate.weather, self.chance)
        self.disk = Disk(self, climate.disk_ms, self.chance)
        self.cluster = Cluster(self, reference)
        self.machines = Machines(self, climate.restart_ms)
        self.write: Callable[[SimOrchestrator, StoreEffect], Outcome | None] = SimOrchestrator.outcome
        """Carries a store effect out; a test may end the process in it."""
        self.n_starts = self.n_rivals = 0
        self.retired: list[SimOrchestrator] = []
        """Orchestrators beside which another one was started."""
        self.ended: list[SimOrchestrator] = []
        """Orchestrators whose processes are gone."""
        self.deadline_ms = math.inf
        self.is_done = False
        self.is_closing = False
        self._resume_ms = math.inf
        """When the session is started again, by whoever keeps it."""
        self.n_deaths = 0
        """PNodes that had a part and were given up since the last new step."""

    # ---- time

    def compute_ms(self) -> float:
        """How long a compute effect takes."""
        return self.chance.uniform(0.1, 3.0) * self.climate.slow

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass as long as the session is not over, checking after every event."""
        n_events = 0

        def is_enough() -> bool:
            nonlocal n_events
            n_events += 1
            self.cluster.check()
            self._look_after()
            assert n_events < MAX_EVENTS, "too many events"
            assert self.now_ms < self.deadline_ms, f"no progress: {self._where()}"
            return until()

        super().run(is_enough)

    # ---- the session

    def begin(self, n_pnodes: int) -> None:
        """Start machines and the session."""
        for number in range(1, n_pnodes + 1):
            self.machines.add(PNodeId(f"p{number}"))
        self.start_session()
        self.after(TICK_MS, self._tick)

    def start_session(self, machine: str = ORCHESTRATOR) -> SimOrchestrator | None:
        """An orchestrator for what is durable, on the PNodes that it can reach; None if there are none."""
        members = self.machines.reachable_from(machine)
        if not members:
            return None
        self.n_starts += 1
        generation = self.journal.newest_generation + (self.n_starts > 1)
        plan = plan_of_pnodes(self.network, self.settings, [m.pnode for m in members], generation)
        recovery = Recovery(
            graph=self.network, grace_ms=self.climate.grace_ms, stall_ms=self.climate.stall_ms
        )
        table = HandleTable()
        job = resumed(
            msgspec.structs.replace(job_for(self.network, self.settings, plan), recovery=recovery),
            self.network,
            self.journal,
            table,
            device_class=self.cluster.reference.device_class,
        )
        if self.n_starts > 1:
            assert self.journal.begin(generation)
        own = Address(ORCHESTRATOR, f"sim:orchestrator:{self.n_starts}")
        ahead_ms = self.chance.choice([0.0, 1e9, -1e9])
        lead = SimOrchestrator(self, job, table, (own, *members), machine=machine, ahead_ms=ahead_ms)
        self.orchestrator = lead
        self.wires.open[lead.address] = lead
        self.machines.offered(lead, members)
        lead.run(lead.start)
        return lead

    def crash_orchestrator(self, down_ms: float) -> None:
        """The orchestrator's process ends at once; it is started again after a while."""
        lead = self.orchestrator
        if lead is not None:
            self._end(lead)
            self.disk.crash(lead)
            self._resume_ms = self.now_ms + down_ms

    def start_rival(self) -> None:
        """Somebody starts the session a second time while it runs."""
        if self.orchestrator is not None and self.machines.reachable_from(ORCHESTRATOR):
            self.retired.append(self.orchestrator)
            self.n_rivals += 1
            self.start_session()

    def _end(self, lead: SimOrchestrator) -> None:
        lead.end()
        self.ended.append(lead)
        self.wires.close(lead)
        if lead is self.orchestrator:
            self.orchestrator = None

    def _look_after(self) -> None:
        """What whoever keeps the session does: it ends a process that is done and starts the next one."""
        for lead in [self.orchestrator, *self.retired]:
            if lead is None or not lead.is_running or lead.is_frozen or not lead.is_over:
                continue
            if lead is self.orchestrator and lead.trained and not lead.trained[0].stopped:
                self.is_done = True
                continue
            for failure in lead.failures:
                assert self._is_excusable(lead, failure), f"{failure}: {self._where()}"
            if lead.state.stage != "left":
                lead.leave()
                self._close_when_idle(lead)

    def _close_when_idle(self, lead: SimOrchestrator) -> None:
        if not self.disk.is_idle(lead):
            self.after(_CLOSE_MS, lambda: self._close_when_idle(lead))
            return
        was_current = lead is self.orchestrator
        self._end(lead)
        if was_current:
            self._resume_ms = self.now_ms + _CLOSE_MS

    def _is_excusable(self, lead: SimOrchestrator, failure: SessionFailed) -> bool:
        """Whether a session may fail with these words at this moment. A replaced orchestrator loses its
        PNodes to its successor."""
        if lead is not self.orchestrator and failure.kind == "lost":
            return True
        if failure.kind in ("store", "refused") and self.n_rivals:
            return "another orchestrator" in failure.what or "is older than" in failure.what
        return failure.kind == "lost" and self.n_deaths >= MAX_DEATHS

    def _where(self) -> str:
        lead = self.orchestrator
        told = "no orchestrator" if lead is None else f"{lead.state.stage} at step {lead.state.step}"
        stages = {pnode: process.state.stage for pnode, process in self.workers.items()}
        return f"{told} at {self.now_ms:.0f} ms, PNodes {stages}"

    def _tick(self) -> None:
        if self.is_closing:
            return
        for lead in [self.orchestrator, *self.retired]:
            if lead is not None:
                lead.run(lambda lead=lead: lead.take(Tick()))  # type: ignore[misc]
        if self.orchestrator is None and self.now_ms >= self._resume_ms:
            self.start_session()
        self.machines.tend()
        self.after(TICK_MS, self._tick)

    def finish(self) -> None:
        """Run to the end, also that of replaced orchestrators, come to rest, and check what is left."""
        self.run(until=lambda: self.is_done and all(each.is_over for each in self.retired if each.is_running))
        assert self.is_done, self._where()
        self.is_closing = True
        self.run()
        self.check_rest()
        self.end()
        self.cluster.check_end()

    def report_regularly(self, process: SimWorker) -> None:
        """A PNode's driver says every second how far it is."""

        def report() -> None:
            if process.is_running and not self.is_closing:
                process.run(process.report)
                self.after(STATUS_MS, report)

        self.after(STATUS_MS, report)

    # ---- what actors ask for

    def post(
        self, sender: Process, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]
    ) -> None:
        """Send over a link."""
        if sender.is_running:
            self.wires.send(sender, to, Parcel(*self.packed(sender, to, message, tensors)))

    def answer(self, process: Process, sender: PNodeId, reason: str) -> None:
        """A transport refuses a message, over the stream on which it came."""
        if sender in process.links:
            self.post(process, sender, Refused(reason=reason), {})

    def store(self, lead: SimOrchestrator, effect: StoreEffect) -> None:
        """Store effects wait in line, checkpoints in a line of their own."""
        self.disk.work(lead, effect)

    def record(self, lead: SimOrchestrator, step: int, loss: float) -> None:
        """Metrics wait in the store's line too."""
        self.disk.record(lead, step, loss)

    def dismiss(self, lead: SimOrchestrator, effect: Evict | Drained) -> None:
        """The crew takes a PNode out; its agent hears of it."""
        self.wires.forget(lead, effect.pnode)
        self.machines.dismissed(lead, effect)
        if isinstance(effect, Evict) and effect.pnode in lead.state.job.plan.pnodes:
            self.n_deaths += 1

    def device_class(self, lead: SimOrchestrator) -> str:
        """As the session's record has it."""
        del lead
        return self.cluster.reference.device_class

    def configured(self, process: SimWorker) -> None:
        """A PNode took up a plan: members with another address are other processes now."""
        self.shrank(process)
        self.cluster.configured(process)

    def at_boundary(self, process: SimWorker) -> None:
        """A PNode has loaded its state, or carried out a step."""
        self.cluster.check_state(process)

    def shrank(self, process: SimWorker) -> None:
        """Streams with those who are no members any more end."""
        for peer, link in list(process.links.items()):
            known = process.members.get(peer)
            if known != link.other(process).address and not link.is_dead:
                self.wires.forget(process, peer)

    def forget(self, process: Process, peer: PNodeId) -> None:
        """A process takes a peer out of its membership."""
        self.wires.forget(process, peer)

    # ---- faults that a person or a machine causes

    def request_leave(self, pnode: PNodeId) -> None:
        """A person takes a machine out of the cluster."""
        lead = self.orchestrator
        self.machines.unwanted(pnode)
        if lead is not None:
            lead.run(lambda: lead.take(LeaveRequested(pnode)))
