"""The processes of a simulated cluster: a core, its arrays, and effects that take their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dcnr_app.cluster import coordinator, worker
from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.decision import LossScale
from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    CoordinatorEffect,
    Deliver,
    Drained,
    Evict,
    Leave,
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
    WorkerEffect,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Finished,
    Handle,
    Input,
    Outcome,
    Received,
    Restored,
)
from dcnr_app.cluster.messages import Address, AnyMessage
from dcnr_app.cluster.worker_state import WorkerState
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.runtime.tables import HandleTable
from tests.sim.invariants import WorkerWatch, assert_refused
from tests.sim.samples import registry

if TYPE_CHECKING:
    from tests.sim.world import World

HostArray = np.ndarray[Any, Any]
StoreEffect = LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint | BeginGeneration | Restore


class SimWorker:
    """A PNode process: compute effects run one after the other, each ends some time later."""

    def __init__(self, world: World, pnode: PNodeId, backend: Backend) -> None:
        self._world = world
        self.pnode = pnode
        self.state = WorkerState(pnode)
        self.compute = Compute(pnode, registry(), lambda: backend, world)
        self.watch = WorkerWatch(world.journal)
        self.applied: list[int] = []
        self._queue: deque[ComputeEffect | Leave] = deque()
        self._is_busy = False

    def receive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Take a message, as its driver would."""
        put = self.compute.handles.put
        handles = {name: Handle(put(self.compute.backend.from_host(x))) for name, x in tensors.items()}
        self.take(Received(sender, message, handles))

    def take(self, event: Input) -> None:
        """One input, its effects, and what must hold afterwards."""
        current = self.state.configure
        is_old = (
            isinstance(event, Received)
            and current is not None
            and 0 < getattr(event.message, "generation", 0) < current.generation
        )
        before = repr(self.state) if is_old else ""
        self.state, effects = worker.step(self.state, event, self._world.now_ms)
        if is_old and isinstance(event, Received) and current is not None:
            assert_refused(before, repr(self.state), event.message, effects, current.generation)
        for effect in effects:
            self.watch.effect(self.state, effect)
            self._carry_out(effect)
        self.watch.after(self.state, len(self.compute.handles))

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case Send(to, message, handles):
                backend = self.compute.backend
                tensors = {name: backend.to_host(self.compute.handles.get(h)) for name, h in handles.items()}
                self._world.post(self.pnode, to, message, tensors)
            case Release(handles):
                for handle in handles:
                    self.compute.handles.release(handle)
            case _:
                self._queue.append(effect)
                self._start()

    def _start(self) -> None:
        if self._queue and not self._is_busy:
            self._is_busy = True
            effect = self._queue.popleft()
            self._world.after(self._world.compute_ms(), lambda: self._finish(effect))

    def _finish(self, effect: ComputeEffect | Leave) -> None:
        self._is_busy = False
        if isinstance(effect, Leave):
            self.compute.leave()
        else:
            self.take(Finished(effect.id, self.compute.execute(effect)))
        self._start()


class SimOrchestrator:
    """The orchestrator: store and batch effects end some time later, each on its own."""

    def __init__(self, world: World, job: Assignment, handles: HandleTable, feed: SessionFeed) -> None:
        self._world = world
        self._feed = feed
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
        members = tuple(Address(pnode, f"sim:{pnode}") for pnode in job.plan.pnodes)
        self.state, effects = coordinator.start(job, members, world.now_ms)
        self._first = effects

    def start(self) -> None:
        """Configure the PNodes."""
        self._carry_out_all(self._first)

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
        self.state.now_ms = self._world.now_ms
        before = repr(self.state) if is_old else ""
        self.state, effects = coordinator.step(self.state, event, self._world.now_ms)
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
                self._world.post(ORCHESTRATOR, to, message, tensors)
            case Release(handles):
                for handle in handles:
                    self.handles.release(handle)
            case Evict(pnode):
                self.evicted.append(pnode)
                self._world.evict(pnode)
            case (
                LoadBatch()
                | LoadValidation()
                | AppendCommit()
                | WriteCheckpoint()
                | BeginGeneration()
                | Restore()
            ):
                self._world.after(self._world.store_ms(effect), lambda: self._work(effect))
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
                assert step not in self._world.journal.validations
                self._world.journal.validations[step] = loss
            case Deliver(request, logits):
                self.answers[request] = self.handles.take(logits)
            case Trained():
                assert self._world.journal.durable_step == effect.step
                self.trained.append(effect)
            case SessionFailed():
                self.failures.append(effect)
            case Drained(pnode):
                self.drained.append(pnode)
            case Recovering():
                self.recoveries.append(effect)
            case Replanned():
                self.plans.append(effect)
            case Undeliverable():
                self.undeliverable.append(effect)

    def _work(self, effect: StoreEffect) -> None:
        if self._world.orchestrator is self:  # else its process is gone
            self.take(Finished(effect.id, self._outcome(effect)))

    def _outcome(self, effect: StoreEffect) -> Outcome:
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
                journal.begin(generation)
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
            device_class=next(iter(self.ready.values())).device_class if self.ready else "",
        )
