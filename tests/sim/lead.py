"""The orchestrator process of a simulated cluster: store and batch effects take their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.decision import LossScale
from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    CoordinatorEffect,
    Deliver,
    Drained,
    Evict,
    LoadBatch,
    LoadValidation,
    Progress,
    Recovering,
    Release,
    Replanned,
    Restore,
    Send,
    SessionFailed,
    Trained,
    Undeliverable,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Handle,
    Input,
    Joined,
    Lost,
    Outcome,
    Received,
    Restored,
    TaskFailed,
)
from dcnr_app.cluster.messages import Address, AnyMessage
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.runtime.tables import HandleTable
from tests.sim.invariants import assert_refused
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

HostArray = np.ndarray[Any, Any]
StoreEffect = LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint | BeginGeneration | Restore


class SimOrchestrator(Process):
    """The orchestrator's driver, and what it told those who watch."""

    def __init__(
        self,
        world: World,
        job: Assignment,
        handles: HandleTable,
        members: Sequence[Address] = (),
        *,
        machine: str = ORCHESTRATOR,
        ahead_ms: float = 0.0,
    ) -> None:
        address = next((m.address for m in members if m.pnode == ORCHESTRATOR), "sim:orchestrator")
        super().__init__(world, ORCHESTRATOR, machine, address)
        self.set_clock(ahead_ms)
        self._world = world
        self._feed: SessionFeed = world.feed
        self.handles = handles
        self.progress: list[Progress] = []
        self.trained: list[Trained] = []
        self.failures: list[SessionFailed] = []
        self.ready: dict[PNodeId, WorkerReady] = {}
        self.answers: dict[int, HostArray] = {}
        self.commit_ms: dict[int, float] = {}
        self.checkpoint_ms: dict[int, float] = {}
        self.evicted: list[PNodeId] = []
        self.drained: list[PNodeId] = []
        self.recoveries: list[Recovering] = []
        self.plans: list[Replanned] = []
        self.undeliverable: list[Undeliverable] = []
        self.held_generation = job.plan.generation
        """The newest generation that this process has made durable: it may write in its name."""
        known = members or tuple(Address(pnode, f"sim:{pnode}") for pnode in job.plan.pnodes)
        self.members = {m.pnode: m.address for m in known if m.pnode != ORCHESTRATOR}
        self.state, effects = coordinator.start(job, tuple(known), self.clock_ms())
        self._first = effects

    @property
    def is_over(self) -> bool:
        """Whether the session ended here, one way or another."""
        return bool(self.trained or self.failures)

    def start(self) -> None:
        """Configure the PNodes."""
        self._carry_out_all(self._first)

    # ---- the network's end

    def address_of(self, pnode: PNodeId) -> str:
        """As the crew knows it."""
        return self.members.get(pnode, "")

    def admits(self, sender: Process) -> bool:
        """Who was not given up, in its present form."""
        return self.members.get(sender.pnode) == sender.address

    def arrive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """A message came over a link; the transport refuses PNodes without a part in the plan."""
        if sender not in self.state.job.plan.pnodes:
            self._world.answer(self, sender, f"{sender} is not in the session")
        else:
            self.receive(sender, message, tensors)

    def hear_lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with a PNode broke."""
        self.take(Lost(peer, reason))

    def offer(self, member: Address) -> None:
        """A PNode can be used: the crew admits it, then the core hears of it."""
        if self.members.get(member.pnode) not in (None, member.address):
            self._world.forget(self, member.pnode)
        self.members[member.pnode] = member.address
        self.take(Joined(member))

    # ---- the driver

    def receive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Take a message."""
        self.take(Received(sender, message, self.put(tensors)))

    def put(self, tensors: Mapping[str, HostArray]) -> dict[str, Handle]:
        """Handles for host arrays."""
        return {name: Handle(self.handles.put(tensor)) for name, tensor in tensors.items()}

    def take(self, event: Input) -> None:
        """One input and its effects."""
        generation = self.state.job.plan.generation
        is_old = isinstance(event, Received) and 0 < getattr(event.message, "generation", 0) < generation
        self.state.now_ms = self.clock_ms()
        before = repr(self.state) if is_old else ""
        self.state, effects = coordinator.step(self.state, event, self.clock_ms())
        if is_old and isinstance(event, Received):
            assert_refused(before, repr(self.state), event.message, effects, generation)
        self._carry_out_all(effects)

    def leave(self) -> None:
        """Let the PNodes go."""
        self._carry_out_all(coordinator.leave(self.state))

    def _carry_out_all(self, effects: Sequence[CoordinatorEffect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Send(to, message, handles):
                tensors = {name: self.handles.get(handle) for name, handle in handles.items()}
                self._world.post(self, to, message, tensors)
            case Release(handles):
                for handle in handles:
                    self.handles.release(handle)
            case (
                LoadBatch()
                | LoadValidation()
                | AppendCommit()
                | WriteCheckpoint()
                | BeginGeneration()
                | Restore()
            ):
                self._world.store(self, effect)
            case Evict(pnode) | Drained(pnode):
                (self.evicted if isinstance(effect, Evict) else self.drained).append(pnode)
                self.members.pop(pnode, None)
                self._world.dismiss(self, effect)
            case _:
                self._note(effect)

    def _note(self, effect: CoordinatorEffect) -> None:
        """Keep what the coordinator tells those who watch."""
        match effect:
            case WorkerReady(pnode):
                self.ready[pnode] = effect
            case Progress(decision):
                assert decision == self._world.journal.rows[decision.step]
                self.progress.append(effect)
            case Validated(step, loss):
                self._world.record(self, step, loss)
            case Deliver(request, logits):
                self.answers[request] = self.handles.take(logits)
            case Trained():
                assert effect.step == 0 or effect.step in self._world.journal.checkpoints
                self.trained.append(effect)
            case SessionFailed():
                self.failures.append(effect)
            case Recovering():
                self.recoveries.append(effect)
            case Replanned():
                self.plans.append(effect)
            case Undeliverable():
                self.undeliverable.append(effect)

    def outcome(self, effect: StoreEffect) -> Outcome:
        """Carry a store effect out; what it wrote is durable when this returns."""
        journal, failure = self._world.journal, self._world.store_failure(effect)
        if failure is not None:
            return failure
        match effect:
            case LoadBatch(_, step):
                tensors, counts, samples = self._feed.batch(step)
                microbatches = tuple(self.put(each) for each in tensors)
                return BatchReady(microbatches, tuple(counts), tuple(samples))
            case LoadValidation():
                tensors, counts = self._feed.validation()
                return BatchReady(tuple(self.put(each) for each in tensors), tuple(counts), ())
            case AppendCommit(_, decision):
                if journal.newest_generation > self.held_generation:
                    return TaskFailed("another orchestrator runs this session", "journal")
                limit = journal.durable_step + self.state.job.settings.checkpoint_every
                assert decision.step <= limit, f"step {decision.step} is committed, {limit} is the limit"
                journal.commit(effect)
                self.commit_ms[decision.step] = self._world.now_ms
                return Done()
            case WriteCheckpoint(_, step):
                journal.checkpoint(effect, self.handles)
                self.checkpoint_ms[step] = self._world.now_ms
                return CheckpointWritten(f"step-{step}")
            case BeginGeneration(_, generation):
                if not journal.begin(generation):
                    return TaskFailed(f"generation {generation} is taken by another orchestrator", "journal")
                self.held_generation = generation
                return Done()
            case Restore():
                return self._restored()

    def _restored(self) -> Restored:
        journal = self._world.journal
        step = journal.durable_step
        kept = journal.checkpoints.get(step)
        return Restored(
            step=step,
            t=kept.t if kept else 0,
            scale=kept.scale if kept else LossScale(),
            parts={name: self.put(part) for name, part in kept.state.items()} if kept else {},
            recorded=dict(journal.rows),
            validated=frozenset(journal.validations),
            device_class=self._world.device_class(self),
        )
