"""The PNode driver: feeds a worker core from a transport and a compute thread, and carries out its effects.
IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster import worker
from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.effects import (
    Leave,
    Release,
    Send,
    WorkerEffect,
)
from dcnr_app.cluster.expectations import Expectations, expectations_of, why_unexpected
from dcnr_app.cluster.inputs import (
    Finished,
    Handle,
    Input,
    Lost,
    Measured,
    Outcome,
    Received,
    Slept,
    TaskFailed,
)
from dcnr_app.cluster.messages import Address, AnyMessage, Configure, Failed, Refused, TensorHeader
from dcnr_app.cluster.outbox import Outbox
from dcnr_app.cluster.sleeping import LEASE_MS, SleepWatch
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.cluster.worker_state import WorkerState
from dcnr_app.engine.optimizers import slot_names
from dcnr_app.errors import DcnrError, PeerError, first_error
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.network import decode_network
from dcnr_app.nodes.registry import Registry

logger = logging.getLogger(__name__)
_FLUSH_S = 1.0
_STATUS_S = 1.0
_WAKE_S = 1.0


def role_of(pnode: PNodeId) -> str:
    """The role that a member's certificate must carry."""
    return "orchestrator" if pnode == ORCHESTRATOR else "worker"


def members_of(addresses: Iterable[Address]) -> list[Member]:
    """PNodes by where they listen, as a transport takes them."""
    return [
        Member(
            pnode=entry.pnode, address=entry.address, fingerprint=entry.fingerprint, role=role_of(entry.pnode)
        )
        for entry in addresses
    ]


class _Arrival(NamedTuple):
    sender: PNodeId
    message: AnyMessage
    tensors: Mapping[str, HostArray]


class PNodeDriver:
    """One worker: implements the transport's Receiver; `run` lasts until `stop`, or until the orchestrator is
    gone unless the PNode `stays` for the next one.

    What arrives waits in line for one task of `run`, so that an error in the core is told to the
    orchestrator, and does not break the stream on which a message happened to come.
    """

    def __init__(
        self,
        *,
        pnode: PNodeId,
        transport: PeerTransport,
        compute: Compute,
        registry: Registry,
        clock: Clock,
        stays: bool = False,
    ) -> None:
        self._pnode = pnode
        self._stays = stays
        self._transport = transport
        self._compute = compute
        self._registry = registry
        self._clock = clock
        self._state = WorkerState(pnode)
        self._expected: Expectations | None = None
        self._arrivals: asyncio.Queue[_Arrival | Lost | Slept] = asyncio.Queue()
        self._queue: asyncio.Queue[ComputeEffect | Leave | None] = asyncio.Queue()
        self._outbox: Outbox | None = None
        self._orchestrator: tuple[Member, ...] = ()
        """Where the last plan came from; outside a session nobody else may speak."""
        self._ended = asyncio.Event()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Serve until the orchestrator is lost or `stop` is called. What goes wrong here is told to the
        orchestrator, then raised."""
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute") as thread:
                try:
                    await self._serve(thread)
                except BaseExceptionGroup as group:
                    await self._confess(group)
                    raise
        finally:
            self._compute.leave()  # the thread has ended: nobody uses the runtime any more

    async def _serve(self, thread: ThreadPoolExecutor) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._outbox = Outbox(self._transport, tasks, self.lost)
            computing = tasks.create_task(self._compute_all(thread))
            serving = [tasks.create_task(self._take_all()), tasks.create_task(self._report_all())]
            self._started.set()
            await self._ended.wait()
            self._queue.put_nowait(None)
            await self._outbox.flush(_FLUSH_S)
            await computing
            for task in serving:
                task.cancel()

    async def started(self) -> None:
        """Wait until messages can be taken."""
        await self._started.wait()

    def stop(self) -> None:
        """End `run`."""
        self._ended.set()

    # ---- the transport's Receiver

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Refuse tensors that the plan does not have, before they are allocated."""
        del sender  # the core checks who may say what
        return why_unexpected(self._expected, message, headers)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Take a message."""
        self._arrivals.put_nowait(_Arrival(sender, message, tensors))

    def lost(self, peer: PNodeId, reason: str) -> None:
        """A peer's streams broke."""
        self._arrivals.put_nowait(Lost(peer, reason))

    async def _report_all(self) -> None:
        """Say every second how far this PNode is. After a gap in time it does nothing more in its generation:
        the others have gone on without it."""
        watch = SleepWatch(self._clock)
        while True:
            await asyncio.sleep(_STATUS_S)
            slept_ms = watch.gap_ms()
            if slept_ms > LEASE_MS:
                # Streams that ended meanwhile say so first: then this PNode leaves and tells nobody.
                await asyncio.sleep(_WAKE_S)
                self._arrivals.put_nowait(Slept(slept_ms))
                continue
            received_bytes = self._transport.totals().bytes_received
            report = worker.status(self._state, self._clock.monotonic_ms(), received_bytes)
            if report is not None:
                self._carry_out(Send(ORCHESTRATOR, report))

    async def _take_all(self) -> None:
        while True:
            arrival = await self._arrivals.get()
            if isinstance(arrival, Lost | Slept):
                self._take(arrival)
            elif isinstance(arrival.message, Configure) and arrival.sender == ORCHESTRATOR:
                self._configure(arrival.message)
            else:
                self._receive(*arrival)

    def _receive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        backend = self._compute.backend
        handles = {
            name: Handle(self._compute.handles.put(backend.from_host(tensor)))
            for name, tensor in tensors.items()
        }
        self._take(Received(sender, message, handles))

    def _configure(self, message: Configure) -> None:
        """Let the core take the plan; only if it did, expect its tensors and admit its members."""
        try:
            network = decode_network(message.network, self._registry)
            expected = expectations_of(network, message.settings, slot_names(message.settings.optimizer.type))
        except (msgspec.MsgspecError, DcnrError, LookupError, TypeError, ValueError) as error:
            reason = f"its network cannot be read: {type(error).__name__}: {error}"
            refused = Refused(reason=reason, tag="configure.v1", generation=message.generation)
            self._carry_out(Send(ORCHESTRATOR, refused))
            return
        self._take(Received(ORCHESTRATOR, message))
        if self._state.configure is message:
            self._expected = expected
            peers = members_of(entry for entry in message.members if entry.pnode != self._pnode)
            self._orchestrator = tuple(peer for peer in peers if peer.pnode == ORCHESTRATOR)
            self._transport.set_members(peers)

    # ---- effects

    def _take(self, event: Input) -> None:
        self._state, effects = worker.step(self._state, event, self._clock.monotonic_ms())
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case Send(to, message, handles):
                if self._outbox is not None:
                    self._outbox.post(to, message, self._to_host(handles))
            case Release(handles):
                for handle in handles:
                    self._compute.handles.release(handle)
            case Leave(reason):
                logger.info("leave pnode=%s reason=%s", self._pnode, reason)
                self._expected = None
                if self._orchestrator:
                    # Its peers see their streams end, and not a refusal that would end their session.
                    self._transport.set_members(self._orchestrator)
                self._queue.put_nowait(effect)
                if not self._stays:
                    self._ended.set()
            case _:
                self._queue.put_nowait(effect)

    def _to_host(self, handles: Mapping[str, Handle]) -> dict[str, np.ndarray[Any, Any]]:
        return {
            name: self._compute.backend.to_host(self._compute.handles.get(handle))
            for name, handle in handles.items()
        }

    async def _compute_all(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            effect = await self._queue.get()
            if effect is None:
                return
            if self._outbox is not None:
                await self._outbox.room()  # a slow taker stops what makes more tensors
            if isinstance(effect, Leave):
                await loop.run_in_executor(thread, self._compute.leave)
                continue
            outcome = await loop.run_in_executor(thread, self._execute, effect)
            if isinstance(outcome, Measured):
                outcome = msgspec.structs.replace(outcome, **self._transport.totals()._asdict())
            effect_id: int = effect.id
            self._take(Finished(effect_id, outcome))

    def _execute(self, effect: ComputeEffect) -> Outcome:
        """One compute effect, on the compute thread. Whatever goes wrong is an outcome, so that it reaches
        the person in its own words."""
        try:
            return self._compute.execute(effect)
        except Exception as error:
            logger.exception("compute_failed pnode=%s effect=%s", self._pnode, type(effect).__name__)
            where = f"PNode {self._pnode}, {type(effect).__name__}"
            return TaskFailed(f"{type(error).__name__}: {error}", where)

    async def _confess(self, group: BaseExceptionGroup[BaseException]) -> None:
        """Tell the orchestrator why this PNode ends."""
        configure, error = self._state.configure, first_error(group)
        if configure is None:
            return
        what = error.what if isinstance(error, DcnrError) else f"{type(error).__name__}: {error}"
        message = Failed(
            session=configure.session,
            generation=configure.generation,
            what=what,
            where=f"PNode {self._pnode}",
        )
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self._transport.send(ORCHESTRATOR, message, {})
        except (PeerError, TimeoutError) as unsent:
            logger.warning("not_told pnode=%s why=%s", self._pnode, unsent)
