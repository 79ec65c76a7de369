"""A PNode process of a simulated cluster: a core, its arrays, and compute effects that take their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dcnr_app.cluster import worker
from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.effects import Leave, Release, Send, WorkerEffect
from dcnr_app.cluster.inputs import Finished, Handle, Input, Lost, Received
from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.cluster.worker_state import WorkerState
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from tests.sim.invariants import WorkerWatch, assert_refused
from tests.sim.process import Process
from tests.sim.samples import registry

if TYPE_CHECKING:
    from tests.sim.world import World

HostArray = np.ndarray[Any, Any]


class SimWorker(Process):
    """A PNode process: compute effects run one after the other, each ends some time later."""

    def __init__(self, world: World, pnode: PNodeId, backend: Backend, address: str = "") -> None:
        super().__init__(world, pnode, machine=pnode, address=address or f"sim:{pnode}")
        self._world = world
        self.state = WorkerState(pnode)
        self.compute = Compute(pnode, registry(), lambda: backend, world)
        self.watch = WorkerWatch(world.journal)
        self.members: dict[PNodeId, str] = {}
        self.stuck_in: type | None = None
        """The next compute effect of this kind never ends."""
        self.received_bytes = 0
        self._queue: deque[ComputeEffect | Leave] = deque()
        self._is_busy = False

    # ---- the network's end

    def address_of(self, pnode: PNodeId) -> str:
        """As the last plan that was taken up says."""
        return self.members.get(pnode, "")

    def admits(self, sender: Process) -> bool:
        """The orchestrator by its certificate, others as the last plan says."""
        return sender.pnode == ORCHESTRATOR or self.members.get(sender.pnode) == sender.address

    def arrive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """A message came over a link."""
        self.received_bytes += sum(tensor.nbytes for tensor in tensors.values())
        refusal = self._world.why_unexpected(self, message, tensors)
        if refusal is not None:
            self._world.answer(self, sender, refusal)
            return
        before = self.state.configure
        self.receive(sender, message, tensors)
        if self.state.configure is not None and self.state.configure is not before:
            self.members = {member.pnode: member.address for member in self.state.configure.members}
            self._world.configured(self)

    def hear_lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with a peer broke."""
        self.take(Lost(peer, reason))

    # ---- the driver

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
        place = (current, self.state.step, self.state.stage == "loading")
        self.state, effects = worker.step(self.state, event, self.clock_ms())
        if is_old and isinstance(event, Received) and current is not None:
            assert_refused(before, repr(self.state), event.message, effects, current.generation)
        for effect in effects:
            self.watch.effect(self.state, effect)
            self._carry_out(effect)
        self.watch.after(self.state, len(self.compute.handles))
        now = (self.state.configure, self.state.step, self.state.stage == "loading")
        is_past = now != place and now[0] is place[0] and self.state.stage in ("computing", "capturing")
        if is_past and self.state.prepared is not None:
            self._world.at_boundary(self)

    def report(self) -> None:
        """Say how far this PNode is."""
        status = worker.status(self.state, self.clock_ms(), self.received_bytes)
        if status is not None:
            self._carry_out(Send(ORCHESTRATOR, status))

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case Send(to, message, handles):
                backend = self.compute.backend
                tensors = {name: backend.to_host(self.compute.handles.get(h)) for name, h in handles.items()}
                self._world.post(self, to, message, tensors)
            case Release(handles):
                for handle in handles:
                    self.compute.handles.release(handle)
            case _:
                if isinstance(effect, Leave):
                    self.members = {p: a for p, a in self.members.items() if p == ORCHESTRATOR}
                    self._world.shrank(self)
                self._queue.append(effect)
                self._start()

    def _start(self) -> None:
        if self._queue and not self._is_busy:
            self._is_busy = True
            effect = self._queue.popleft()
            if self.stuck_in is None or isinstance(effect, Leave) or not isinstance(effect, self.stuck_in):
                self.later(self._world.compute_ms(), lambda: self._finish(effect))

    def _finish(self, effect: ComputeEffect | Leave) -> None:
        self._is_busy = False
        if isinstance(effect, Leave):
            self.compute.leave()
        else:
            self.take(Finished(effect.id, self.compute.execute(effect)))
        self._start()
