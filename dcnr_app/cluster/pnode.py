"""The PNode driver: feeds a worker core from a transport and a compute thread, and carries out its effects.
IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster import worker
from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.effects import (
    Finished,
    Handle,
    Input,
    Leave,
    Lost,
    Measured,
    Received,
    Release,
    Send,
    WorkerEffect,
)
from dcnr_app.cluster.expectations import Expectations, expectations_of, why_unexpected
from dcnr_app.cluster.messages import AnyMessage, Configure, TensorHeader
from dcnr_app.cluster.outbox import Outbox
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.cluster.worker_state import WorkerState
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.network import decode_network
from dcnr_app.nodes.registry import Registry

logger = logging.getLogger(__name__)
_FLUSH_S = 1.0


def role_of(pnode: PNodeId) -> str:
    """The role that a member's certificate must carry."""
    return "orchestrator" if pnode == ORCHESTRATOR else "worker"


class PNodeDriver:
    """One worker: implements the transport's Receiver; `run` lasts until the orchestrator is gone or
    `stop`."""

    def __init__(
        self,
        *,
        pnode: PNodeId,
        transport: PeerTransport,
        compute: Compute,
        registry: Registry,
        clock: Clock,
    ) -> None:
        self._pnode = pnode
        self._transport = transport
        self._compute = compute
        self._registry = registry
        self._clock = clock
        self._state = WorkerState(pnode)
        self._expected: Expectations | None = None
        self._queue: asyncio.Queue[ComputeEffect | None] = asyncio.Queue()
        self._outbox: Outbox | None = None
        self._ended = asyncio.Event()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Serve until the orchestrator is lost or `stop` is called."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute") as thread:
            async with asyncio.TaskGroup() as tasks:
                self._outbox = Outbox(self._transport, tasks, self._peer_failed)
                computing = tasks.create_task(self._compute_all(thread))
                self._started.set()
                await self._ended.wait()
                self._queue.put_nowait(None)
                await self._outbox.flush(_FLUSH_S)
                await computing
            self._compute.leave()

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
        if isinstance(message, Configure) and sender == ORCHESTRATOR:
            self._expected = expectations_of(
                decode_network(message.network, self._registry), message.settings
            )
            peers = [
                Member(pnode=m.pnode, address=m.address, fingerprint=m.fingerprint, role=role_of(m.pnode))
                for m in message.members
                if m.pnode != self._pnode
            ]
            self._transport.set_members(peers)
        backend = self._compute.backend
        handles = {
            name: Handle(self._compute.handles.put(backend.from_host(tensor)))
            for name, tensor in tensors.items()
        }
        self._take(Received(sender, message, handles))

    def lost(self, peer: PNodeId, reason: str) -> None:
        """A peer's streams broke."""
        self._take(Lost(peer, reason))

    def _peer_failed(self, peer: PNodeId, reason: str) -> None:
        self._take(Lost(peer, reason))

    # ---- effects

    def _take(self, event: Input) -> None:
        if self._ended.is_set():
            return
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
            outcome = await loop.run_in_executor(thread, self._compute.execute, effect)
            if isinstance(outcome, Measured):
                outcome = msgspec.structs.replace(outcome, **self._transport.totals()._asdict())
            effect_id: int = effect.id
            self._take(Finished(effect_id, outcome))
