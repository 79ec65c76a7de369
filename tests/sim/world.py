"""A deterministic cluster: real cores and real arithmetic in virtual time, over a network that misbehaves.

Everything is a function of the seed. Messages may be held back, overtake each other and arrive twice; none is
lost, since a stream that loses one is broken and says so (`lose`).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.effects import Drained, Evict, WriteCheckpoint
from dcnr_app.cluster.expectations import expectations_of, why_unexpected
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.inputs import Finished, GenerateRequested, Lost, Outcome, StopRequested
from dcnr_app.cluster.messages import Address, AnyMessage, Refused, TensorHeader
from dcnr_app.data.source import BatchSource
from dcnr_app.engine.backend import Backend
from dcnr_app.engine.optimizers import slot_names
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.tables import HandleTable
from tests.sim.actors import SimWorker
from tests.sim.journal import Checkpoint, Journal
from tests.sim.lead import SimOrchestrator, StoreEffect
from tests.sim.process import Process
from tests.sim.result import ORDERLY, Chaos, Result
from tests.sim.samples import N_CONTEXT, Batches, job_for, plan_for

HostArray = np.ndarray[Any, Any]
MAX_EVENTS = 200_000


class World:
    """One session's cluster. It is also the clock of all its processes."""

    def __init__(
        self,
        network: Network,
        settings: TrainingSettings,
        backend: Backend,
        *,
        chaos: Chaos = ORDERLY,
        journal: Journal | None = None,
        source: BatchSource | None = None,
        checkpoint_ms: float = 3.0,
    ) -> None:
        self.network = network
        self.settings = settings
        self.journal = journal or Journal()
        self.now_ms = 0.0
        self.workers: dict[PNodeId, SimWorker] = {}
        self.orchestrator: SimOrchestrator | None = None
        self.refusals: list[tuple[PNodeId, PNodeId, Refused]] = []
        self.failing: dict[type, Outcome] = {}
        self.tamper: Callable[[PNodeId, PNodeId, AnyMessage], AnyMessage] = lambda _, __, message: message
        self._backend = backend
        self._chaos = chaos
        self._random = random.Random(chaos.seed)  # noqa: S311  # a simulation, not a secret
        self._checkpoint_ms = checkpoint_ms
        self._expected = expectations_of(network, settings, slot_names(settings.optimizer.type))
        self.feed = SessionFeed(network, source or Batches(settings), backend, {})
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._n_events = 0
        self._next_request = 0

    # ---- time

    def monotonic_ms(self) -> float:
        """Virtual time."""
        return self.now_ms

    def wall_ms(self) -> int:
        """Virtual time."""
        return int(self.now_ms)

    def after(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Call `act` in `delay_ms`; what is due at one time keeps its order."""
        self._n_events += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._n_events, act))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until nothing is under way, or `until` holds after an event."""
        while self._events and not until():
            assert self._n_events < MAX_EVENTS, "the cluster does not come to rest"
            self.now_ms, _, act = heapq.heappop(self._events)
            act()

    def compute_ms(self) -> float:
        """How long a compute effect takes."""
        return self._random.uniform(0.1, 3.0) if self._chaos.late_ms else 1.0

    def store_ms(self, effect: object) -> float:
        """How long the store or the batch source takes."""
        share = self._random.uniform(0.1, 2.0) if self._chaos.late_ms else 1.0
        return share * (self._checkpoint_ms if isinstance(effect, WriteCheckpoint) else 1.0)

    def store_failure(self, effect: object) -> Outcome | None:
        """What goes wrong with effects of this kind, if anything."""
        return self.failing.get(type(effect))

    # ---- network

    def post(
        self, sender: Process, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]
    ) -> None:
        """Take a message on its way, with copies of its tensors."""
        message, copies = self.packed(sender, to, message, tensors)
        n_copies = 1 + (self._random.random() < self._chaos.twice)
        for _ in range(n_copies):
            self.after(self._late_ms(), lambda: self._arrive(sender.pnode, to, message, copies))

    def packed(
        self, sender: Process, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]
    ) -> tuple[AnyMessage, dict[str, HostArray]]:
        """What goes on its way: it must be what a session expects."""
        message = self.tamper(sender.pnode, to, message)
        if isinstance(message, Refused):
            self.refusals.append((sender.pnode, to, message))
        copies = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
        assert not why_unexpected(self._expected, message, _headers(copies))
        return message, copies

    def _late_ms(self) -> float:
        late_ms = self._random.uniform(0.0, self._chaos.late_ms)
        return late_ms * (10.0 if self._random.random() < 0.05 else 1.0)

    def _arrive(
        self, sender: PNodeId, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]
    ) -> None:
        fresh = {name: tensor.copy() for name, tensor in tensors.items()}
        if to != ORCHESTRATOR:
            if to in self.workers:
                self.workers[to].receive(sender, message, fresh)
        elif self.orchestrator is not None:
            self.orchestrator.receive(sender, message, fresh)

    def why_unexpected(
        self, process: SimWorker, message: AnyMessage, tensors: Mapping[str, HostArray]
    ) -> str | None:
        """Why a PNode's transport refuses the message, if it does."""
        expected = None if process.state.configure is None else self._expected
        return why_unexpected(expected, message, _headers(tensors)) or None

    # ---- what actors ask for

    def store(self, lead: SimOrchestrator, effect: StoreEffect) -> None:
        """A store effect ends some time later, each on its own."""

        def work() -> None:
            if self.orchestrator is lead:  # else its process is gone
                lead.take(Finished(effect.id, lead.outcome(effect)))

        self.after(self.store_ms(effect), work)

    def record(self, lead: SimOrchestrator, step: int, loss: float) -> None:
        """A validation loss is recorded, once."""
        del lead
        self.journal.validate(step, loss)

    def dismiss(self, lead: SimOrchestrator, effect: Evict | Drained) -> None:
        """A PNode was given up: its process, if it is still there, is ended. A drained one stays."""
        del lead
        if isinstance(effect, Evict) and effect.pnode in self.workers:
            self.workers.pop(effect.pnode).end()

    def device_class(self, lead: SimOrchestrator) -> str:
        """The class on which the recorded decisions were made, as far as it is known."""
        return next(iter(lead.ready.values())).device_class if lead.ready else ""

    def configured(self, process: SimWorker) -> None:
        """A PNode took up a plan."""

    def at_boundary(self, process: SimWorker) -> None:
        """A PNode has loaded its state, or carried out a step."""

    def shrank(self, process: SimWorker) -> None:
        """A PNode's membership has changed."""

    def forget(self, process: Process, peer: PNodeId) -> None:
        """A process takes a peer out of its membership."""

    def answer(self, process: Process, sender: PNodeId, reason: str) -> None:
        """A transport refuses a message."""
        self.post(process, sender, Refused(reason=reason), {})

    # ---- PNodes that go and come

    def lose(self, pnode: PNodeId) -> None:
        """A PNode's process ends: all others hear of it."""
        self.workers.pop(pnode).end()
        for process in self.workers.values():
            process.later(
                self._late_ms(), lambda process=process: process.take(Lost(pnode, "connection reset"))
            )
        if self.orchestrator is not None:
            self.orchestrator.take(Lost(pnode, "connection reset"))

    def revive(self, pnode: PNodeId) -> None:
        """A fresh process of this PNode is there."""
        self.workers[pnode] = SimWorker(self, pnode, self._backend)
        self.lead.offer(Address(pnode, f"sim:{pnode}:{self.now_ms}"))

    # ---- a session

    def start(self, job: Assignment, handles: HandleTable | None = None) -> SimOrchestrator:
        """Begin, or begin a new generation: an orchestrator that was there before is gone."""
        for pnode in job.plan.pnodes:
            if pnode not in self.workers:
                self.workers[pnode] = SimWorker(self, pnode, self._backend)
        self.orchestrator = SimOrchestrator(self, job, handles or HandleTable())
        self.orchestrator.start()
        return self.orchestrator

    @property
    def lead(self) -> SimOrchestrator:
        """The orchestrator."""
        assert self.orchestrator is not None
        return self.orchestrator

    def request_stop(self) -> None:
        """The person presses stop."""
        self.lead.take(StopRequested())

    def ask(self, ids: Sequence[int]) -> HostArray:
        """Logits after the last of `ids`."""
        tensors, row = self.feed.prompt(ids, self.settings.rows, N_CONTEXT)
        self._next_request += 1
        self.lead.take(GenerateRequested(self._next_request, self.lead.put(tensors), row))
        self.run()
        return self.lead.answers[self._next_request]

    def check_rest(self) -> None:
        """At a boundary nothing of a step is left, and all sites of a parameter hold the kept value."""
        kept = self.journal.checkpoints.get(self.lead.state.step)
        for process in self.workers.values():
            assert len(process.compute.handles) == 0, f"{process.pnode} keeps tensors of a step"
            if process.state.configure is None:
                continue  # it takes no part
            assert process.compute.runtime.live_microbatches() == 0
            for name in () if kept is None else _local_parameters(process):
                assert process.compute.runtime.parameter(name).tobytes() == kept.bits()[name, "weight"]
        assert len(self.lead.handles) == 0

    def end(self) -> None:
        """The session ends; then nothing is left anywhere."""
        self.lead.leave()
        self.run()
        for process in self.workers.values():
            assert len(process.compute.handles) == 0
            assert process.state.configure is None
        assert len(self.lead.handles) == 0

    def result(self) -> Result:
        """What came out."""
        kept: Checkpoint = self.journal.checkpoints[self.journal.durable_step]
        rows = self.journal.rows
        return Result(
            tuple(rows[step] for step in sorted(rows)),
            dict(sorted(self.journal.validations.items())),
            tuple(self.journal.ledger),
            kept.bits(),
        )


def _headers(tensors: Mapping[str, HostArray]) -> list[TensorHeader]:
    return [TensorHeader(name, str(x.dtype), x.shape) for name, x in tensors.items()]


def _local_parameters(process: SimWorker) -> set[str]:
    prepared = process.state.runtime
    return {*prepared.owned, *prepared.copies_from}


def train(world: World, job: Assignment | None = None, *, n_pnodes: int = 1) -> Result:
    """A whole session, with all checks at its end."""
    job = job or job_for(world.network, world.settings, plan_for(world.network, world.settings, n_pnodes))
    world.start(job)
    world.run()
    assert not world.lead.failures, world.lead.failures
    assert [done.step for done in world.lead.trained] == [world.settings.steps], world.lead.state.stage
    for process in world.workers.values():
        process.watch.finish(job.plan.generation, job.resume_step + 1, world.settings.steps)
    world.check_rest()
    assert not world.refusals, world.refusals
    world.end()
    return world.result()
