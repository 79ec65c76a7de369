"""The orchestrator driver: feeds the coordinator core from transport, batch source and store. IO.

Store and checkpoint writes run on one thread of their own, never on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster import coordinator
from dcnr_app.cluster.coordinator_state import Assignment, CoordinatorState
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.effects import (
    CoordinatorEffect,
    Deliver,
    Drained,
    Evict,
    Progress,
    Recovering,
    Release,
    Replanned,
    Send,
    SessionFailed,
    Trained,
    Undeliverable,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.expectations import Expectations, why_unexpected
from dcnr_app.cluster.inputs import (
    Finished,
    GenerateRequested,
    Input,
    Joined,
    LeaveRequested,
    Lost,
    Received,
    StopRequested,
    Tick,
)
from dcnr_app.cluster.messages import Address, AnyMessage, TensorHeader
from dcnr_app.cluster.orchestrator_desk import Desk, DeskEffect
from dcnr_app.cluster.orchestrator_seams import Crew, Feed, Journal, Observer
from dcnr_app.cluster.outbox import Outbox
from dcnr_app.cluster.transport import HostArray
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

_LOG = logging.getLogger(__name__)
_ERRORS: Mapping[str, type[DcnrError]] = {
    "lost": UnreachableError, "failed": PeerError, "refused": RefusedError, "diverged": DivergedError,
    "store": StoreError,
}  # fmt: skip
_FLUSH_S = 2.0
_TICK_S = 0.5


class _Arrival(NamedTuple):
    sender: PNodeId
    message: AnyMessage
    tensors: Mapping[str, HostArray]


_Event = _Arrival | Lost | Joined | LeaveRequested | StopRequested | Tick


class Orchestrator:
    """One session's driver. Implements the transport's Receiver and the crew's Roster.

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
        self._desk = Desk(feed, journal, handles)
        self._observer = observer
        self._clock = clock
        self._state: CoordinatorState | None = None
        self._arrivals: asyncio.Queue[_Event] = asyncio.Queue()
        self._queue: asyncio.Queue[CoordinatorEffect | None] = asyncio.Queue()
        self._checkpoints: asyncio.Queue[CoordinatorEffect | None] = asyncio.Queue()
        self._outbox: Outbox | None = None
        self._crew: Crew | None = None
        self._trained: asyncio.Future[Trained] | None = None
        self._answers: dict[int, asyncio.Future[np.ndarray[Any, Any]]] = {}
        self._next_request = 0
        self.failure: DcnrError | None = None
        """Why the session cannot go on, once it cannot."""

    async def run(
        self,
        crew: Crew,
        members: Sequence[Address],
        while_at_rest: Callable[[Trained], Awaitable[None]],
    ) -> Trained:
        """Train to the end, then call `while_at_rest`, in which `logits` may be used; then let the PNodes go.

        Raises the error class that fits what went wrong, naming the PNode or step.
        """
        self._trained = asyncio.get_running_loop().create_future()
        self._crew = crew
        with (
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="store") as store_thread,
            ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint") as checkpoint_thread,
        ):
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._outbox = Outbox(crew.transport, tasks, self.lost)
                    self._state, effects = coordinator.start(
                        self._job, tuple(members), self._clock.monotonic_ms()
                    )
                    working = {
                        tasks.create_task(self._work_all(self._queue, store_thread)),
                        tasks.create_task(self._work_all(self._checkpoints, checkpoint_thread)),
                    }
                    serving = [tasks.create_task(self._take_all()), tasks.create_task(self._tick_all())]
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
                        for task in serving:
                            task.cancel()
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
        self._take(GenerateRequested(self._next_request, self._desk.put(inputs), row))
        return np.asarray(await answer)

    # ---- the transport's Receiver

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Refuse tensors that the session does not have, before they are allocated."""
        if self._state is None or sender not in self._state.job.plan.pnodes:
            return f"{sender} is not in the session"
        return why_unexpected(self._expected, message, headers)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Take a message."""
        self._arrivals.put_nowait(_Arrival(sender, message, tensors))

    def lost(self, peer: PNodeId, reason: str) -> None:
        """A PNode's streams broke, or its process ended."""
        self._arrivals.put_nowait(Lost(peer, reason))

    # ---- the crew's Roster

    def joined(self, member: Address, device: DeviceFacts | None = None) -> None:
        """A PNode can be used."""
        self._arrivals.put_nowait(Joined(member, device))

    def drain(self, pnode: PNodeId) -> None:
        """A PNode is to leave: its VNodes move first, then the crew hears of it."""
        self._arrivals.put_nowait(LeaveRequested(pnode))

    # ---- effects

    async def _tick_all(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._arrivals.put_nowait(Tick())

    async def _take_all(self) -> None:
        while True:
            arrival = await self._arrivals.get()
            if isinstance(arrival, _Arrival):
                self._take(Received(arrival.sender, arrival.message, self._desk.put(arrival.tensors)))
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
                    self._outbox.post(to, message, self._desk.get(handles))
            case Release(handles):
                for handle in handles:
                    self._handles.release(handle)
            case Deliver(request, logits):
                row = np.asarray(self._handles.take(logits)).reshape(-1)
                self._answer(request, row)
            case Undeliverable(request, reason):
                self._answer(request, UnreachableError("no answer to a prompt", why=reason))
            case Trained():
                self._conclude(effect)
            case SessionFailed():
                self._fail(effect)
            case WriteCheckpoint():
                self._checkpoints.put_nowait(effect)  # beside the next steps' commits, not before them
            case Evict() | Drained() | Recovering() | Replanned():
                self._move(effect)
            case _:
                self._observe(effect)
                self._queue.put_nowait(effect)

    def _observe(self, effect: CoordinatorEffect) -> None:
        match effect:
            case WorkerReady():
                self._observer.worker_ready(effect)
            case Progress():
                self._observer.progress(effect)
            case Validated():
                self._observer.validated(effect)
            case _:
                pass

    def _move(self, effect: Evict | Drained | Recovering | Replanned) -> None:
        """PNodes go or come."""
        if self._crew is None:
            raise InvariantError("the session has not begun")
        match effect:
            case Evict(pnode, reason):
                self._crew.evict(pnode, reason)
            case Drained(pnode):
                self._crew.drained(pnode)
            case Recovering():
                _LOG.info("recovering step=%s reason=%s", effect.step, effect.reason)
                self._observer.recovering(effect)
            case Replanned():
                self._observer.replanned(effect)

    def _answer(self, request: int, answer: np.ndarray[Any, Any] | DcnrError) -> None:
        waiting = self._answers.pop(request)
        if waiting.done():
            return
        if isinstance(answer, DcnrError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _conclude(self, trained: Trained) -> None:
        if self._trained is not None and not self._trained.done():
            self._trained.set_result(trained)

    def _fail(self, effect: SessionFailed) -> None:
        fix = f"dcnr-app session resume {self._job.session}"
        # What the store or the feed said itself has the reason too.
        error = self._desk.cause or _ERRORS[effect.kind](effect.what, where=effect.where, fix=fix)
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
            if isinstance(effect, DeskEffect):
                outcome = await loop.run_in_executor(thread, self._desk.work, effect)
                self._take(Finished(effect.id, outcome))
            elif isinstance(effect, Progress | Validated | WorkerReady):
                await loop.run_in_executor(thread, self._desk.record, effect)
