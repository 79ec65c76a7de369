"""The orchestrator driver: feeds the coordinator core from transport, batch source and store. IO.

Store and checkpoint writes run on one thread of their own, never on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Assignment, CoordinatorState
from dcnr_app.cluster.effects import (
    AppendCommit,
    CoordinatorEffect,
    Deliver,
    LoadBatch,
    LoadValidation,
    Progress,
    Release,
    Send,
    SessionFailed,
    Trained,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.expectations import Expectations, why_unexpected
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Finished,
    GenerateRequested,
    Handle,
    Handles,
    Input,
    Lost,
    Outcome,
    Received,
    StopRequested,
    TaskFailed,
)
from dcnr_app.cluster.messages import Address, AnyMessage, TensorHeader
from dcnr_app.cluster.orchestrator_seams import Feed, Journal, Observer
from dcnr_app.cluster.outbox import Outbox
from dcnr_app.cluster.transport import HostArray, PeerTransport
from dcnr_app.errors import (
    DcnrError,
    DivergedError,
    InvariantError,
    PeerError,
    RefusedError,
    StoreError,
    UnreachableError,
    first_error,
)
from dcnr_app.ids import PNodeId
from dcnr_app.runtime.tables import HandleTable

_ERRORS: Mapping[str, type[DcnrError]] = {
    "lost": UnreachableError, "failed": PeerError, "refused": RefusedError, "diverged": DivergedError,
    "store": StoreError,
}  # fmt: skip
_FLUSH_S = 2.0


class _Arrival(NamedTuple):
    sender: PNodeId
    message: AnyMessage
    tensors: Mapping[str, HostArray]


class Orchestrator:
    """One session's driver. Implements the transport's Receiver.

    What arrives from outside waits in line for one task of `run`, so that an error in the core ends the run
    with its own words, and not the stream on which a message happened to come.
    """

    def __init__(
        self,
        *,
        job: Assignment,
        handles: HandleTable,
        expected: Expectations,
        feed: Feed,
        journal: Journal | None,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._job = job
        self._handles = handles
        self._expected = expected
        self._feed = feed
        self._journal = journal
        self._observer = observer
        self._clock = clock
        self._state: CoordinatorState | None = None
        self._arrivals: asyncio.Queue[_Arrival | Lost | StopRequested] = asyncio.Queue()
        self._queue: asyncio.Queue[CoordinatorEffect | None] = asyncio.Queue()
        self._checkpoints: asyncio.Queue[CoordinatorEffect | None] = asyncio.Queue()
        self._outbox: Outbox | None = None
        self._trained: asyncio.Future[Trained] | None = None
        self._answers: dict[int, asyncio.Future[np.ndarray[Any, Any]]] = {}
        self._next_request = 0
        self._cause: DcnrError | None = None
        self.failure: DcnrError | None = None
        """Why the session cannot go on, once it cannot."""

    async def run(
        self,
        transport: PeerTransport,
        members: Sequence[Address],
        while_at_rest: Callable[[Trained], Awaitable[None]],
    ) -> Trained:
        """Train to the end, then call `while_at_rest`, in which `logits` may be used; then let the PNodes go.

        Raises the error class that fits what went wrong, naming the PNode or step.
        """
        self._trained = asyncio.get_running_loop().create_future()
        with (
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="store") as store_thread,
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint") as checkpoint_thread,
        ):
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._outbox = Outbox(transport, tasks, self.lost)
                    self._state, effects = coordinator.start(self._job, tuple(members))
                    working = {
                        tasks.create_task(self._work_all(self._queue, store_thread)),
                        tasks.create_task(self._work_all(self._checkpoints, checkpoint_thread)),
                    }
                    taking = tasks.create_task(self._take_all())
                    try:
                        self._carry_out_all(effects)
                        trained = await self._trained
                        await while_at_rest(trained)
                    finally:
                        self._carry_out_all(coordinator.leave(self._state))
                        self._queue.put_nowait(None)
                        self._checkpoints.put_nowait(None)
                        await self._outbox.flush(_FLUSH_S)
                        # What was committed is written down, also when the session fails.
                        await asyncio.wait(working)
                        taking.cancel()
            except* DcnrError as group:
                raise first_error(group) from None
        return trained

    def stop(self) -> None:
        """End at the next step boundary, with a checkpoint."""
        self._arrivals.put_nowait(StopRequested())

    async def logits(self, inputs: Mapping[str, HostArray], row: int) -> np.ndarray[Any, Any]:
        """Logits (V,) after position `row` of sequence 0, for input tensors by reference.

        Raises what `run` would raise if a PNode is lost.
        """
        if self.failure is not None:
            raise self.failure
        self._next_request += 1
        answer = asyncio.get_running_loop().create_future()
        self._answers[self._next_request] = answer
        handles = {name: self._put(tensor) for name, tensor in inputs.items()}
        self._take(GenerateRequested(self._next_request, handles, row))
        return np.asarray(await answer)

    # ---- the transport's Receiver

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Refuse tensors that the session does not have, before they are allocated."""
        if sender not in self._job.plan.pnodes:
            return f"{sender} is not in the session"
        return why_unexpected(self._expected, message, headers)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Take a message."""
        self._arrivals.put_nowait(_Arrival(sender, message, tensors))

    def lost(self, peer: PNodeId, reason: str) -> None:
        """A PNode's streams broke, or its process ended."""
        self._arrivals.put_nowait(Lost(peer, reason))

    # ---- effects

    def _put(self, tensor: HostArray) -> Handle:
        return Handle(self._handles.put(tensor))

    def _get(self, handles: Handles) -> dict[str, HostArray]:
        return {name: self._handles.get(handle) for name, handle in handles.items()}

    async def _take_all(self) -> None:
        while True:
            arrival = await self._arrivals.get()
            if isinstance(arrival, _Arrival):
                handles = {name: self._put(tensor) for name, tensor in arrival.tensors.items()}
                self._take(Received(arrival.sender, arrival.message, handles))
            else:
                self._take(arrival)

    def _take(self, event: Input) -> None:
        if self._state is None:
            raise InvariantError("the session has not begun")
        self._state, effects = coordinator.step(self._state, event, self._clock.monotonic_ms())
        self._carry_out_all(effects)

    def _carry_out_all(self, effects: Sequence[CoordinatorEffect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Send(to, message, handles):
                if self._outbox is not None:
                    self._outbox.post(to, message, self._get(handles))
            case Release(handles):
                for handle in handles:
                    self._handles.release(handle)
            case WorkerReady() | Progress() | Validated():
                self._observe(effect)
                self._queue.put_nowait(effect)
            case Deliver(request, logits):
                row = np.asarray(self._handles.take(logits)).reshape(-1)
                answer = self._answers.pop(request)
                if not answer.done():
                    answer.set_result(row)
            case Trained():
                self._conclude(effect)
            case SessionFailed():
                self._fail(effect)
            case WriteCheckpoint():
                self._checkpoints.put_nowait(effect)  # beside the next steps' commits, not before them
            case _:
                self._queue.put_nowait(effect)

    def _observe(self, effect: WorkerReady | Progress | Validated) -> None:
        match effect:
            case WorkerReady():
                self._observer.worker_ready(effect)
            case Progress():
                self._observer.progress(effect)
            case Validated():
                self._observer.validated(effect)

    def _conclude(self, trained: Trained) -> None:
        if self._trained is not None and not self._trained.done():
            self._trained.set_result(trained)

    def _fail(self, effect: SessionFailed) -> None:
        fix = f"dcnr-app session resume {self._job.session}"
        # What the store or the feed said itself has the reason too.
        error = self._cause or _ERRORS[effect.kind](effect.what, where=effect.where, fix=fix)
        self.failure = self.failure or error
        for future in (self._trained, *self._answers.values()):
            if future is not None and not future.done():
                future.set_exception(error)

    async def _work_all(
        self, queue: asyncio.Queue[CoordinatorEffect | None], thread: ThreadPoolExecutor
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            effect = await queue.get()
            if effect is None:
                return
            if isinstance(effect, LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint):
                outcome = await loop.run_in_executor(thread, self._work, effect)
                self._take(Finished(effect.id, outcome))
            elif isinstance(effect, Progress | Validated | WorkerReady):
                await loop.run_in_executor(thread, self._record, effect)

    def _work(self, effect: LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint) -> Outcome:
        """One blocking effect, on the store's thread or the checkpoints'."""
        try:
            if self._journal is None:
                raise InvariantError("a session without a journal was asked to train")
            match effect:
                case LoadBatch():
                    tensors, counts, samples = self._feed.batch(effect.step)
                    return self._batch(tensors, counts, samples)
                case LoadValidation():
                    tensors, counts = self._feed.validation()
                    return self._batch(tensors, counts, ())
                case AppendCommit():
                    self._journal.commit(effect)
                    return Done()
                case WriteCheckpoint():
                    parts = {name: self._get(slots) for name, slots in effect.parts.items()}
                    return CheckpointWritten(self._journal.checkpoint(effect, parts))
        except DcnrError as error:
            self._cause = error
            return TaskFailed(error.what, error.where)

    def _record(self, effect: Progress | Validated | WorkerReady) -> None:
        if self._journal is not None:
            self._journal.record(effect)

    def _batch(
        self, tensors: Sequence[Mapping[str, HostArray]], counts: Sequence[int], samples: Sequence[int]
    ) -> BatchReady:
        microbatches = tuple({name: self._put(x) for name, x in each.items()} for each in tensors)
        return BatchReady(microbatches, tuple(counts), tuple(samples))
