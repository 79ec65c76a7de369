"""What a worker core knows between two inputs: ids, handles, counters. Never arrays. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from dcnr_app.cluster.effects import Release, WorkerEffect
from dcnr_app.cluster.inputs import Handle, Prepared
from dcnr_app.cluster.messages import Commit, Configure, SessionIds
from dcnr_app.cluster.plan import Plan, Task
from dcnr_app.cluster.routes import Routes, TaskKey
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId

Stage = Literal[
    "idle", "preparing", "loading", "computing", "collecting", "awaiting-sites", "measuring", "deciding",
    "applying",
    "awaiting-copies", "storing", "capturing", "failed",
]  # fmt: skip


class WorkerState(msgspec.Struct):
    """A worker core's state. `step` is the step being trained; `tasks_done` counts its finished list
    entries."""

    pnode: PNodeId
    stage: Stage = "idle"
    configure: Configure | None = None
    prepared: Prepared | None = None
    routes: Routes | None = None
    step: int = 0
    tasks_done: int = 0
    running: int = 0
    """Id of the compute effect under way; 0 when none."""
    running_key: TaskKey | None = None
    next_id: int = 1
    next_request: int = 1
    mailbox: dict[TaskKey, dict[str, Handle]] = msgspec.field(default_factory=dict)
    ready: list[TaskKey] = msgspec.field(default_factory=list)
    """Evaluation and generation tasks whose inputs are complete, in order of completion."""
    finished: set[TaskKey] = msgspec.field(default_factory=set)
    """Tasks done of which a repeated tensor may still come."""
    rows: dict[int, int] = msgspec.field(default_factory=dict)
    """The row whose logits are wanted, by generation request."""
    holds: dict[Handle, int] = msgspec.field(default_factory=dict)
    scalars: dict[int, tuple[float, int]] = msgspec.field(default_factory=dict)
    """Loss scale and target count by step."""
    sites: dict[int, dict[str, Handle]] = msgspec.field(default_factory=dict)
    copies: dict[int, dict[str, Handle]] = msgspec.field(default_factory=dict)
    loads: dict[str, dict[str, Handle]] = msgspec.field(default_factory=dict)
    """Arrived state that is still to be stored, by parameter."""
    loads_expected: int = -1
    stored: set[str] = msgspec.field(default_factory=set)
    """Parameters stored in this stage: loaded ones, or copies of the step."""
    commit: Commit | None = None
    loss_sums: dict[int, float] = msgspec.field(default_factory=dict)
    open_microbatches: dict[int, int] = msgspec.field(default_factory=dict)
    max_in_flight: int = 0
    compute_ms: float = 0.0
    timed: int = 0
    started_ms: float = 0.0
    """The compute effect under way and when it was asked for."""
    left: tuple[str, int] = ("", 0)
    """The session that was left last, and its generation: older ones are refused also outside a session."""
    progress_ms: float = 0.0
    """When the last task ended: the PNode's progress, as opposed to its liveness."""

    @property
    def plan(self) -> Plan:
        """The plan of the current generation."""
        if self.configure is None:
            raise InvariantError("worker has no plan")
        return self.configure.plan

    @property
    def tasks(self) -> tuple[Task, ...]:
        """This PNode's ordered task list."""
        return self.plan.tasks[self.pnode]

    @property
    def ids(self) -> SessionIds:
        """Session and generation for a message."""
        if self.configure is None:
            raise InvariantError("worker is in no session")
        return {"session": self.configure.session, "generation": self.configure.generation}

    @property
    def runtime(self) -> Prepared:
        """Facts of the prepared runtime."""
        if self.prepared is None:
            raise InvariantError("worker has no runtime")
        return self.prepared

    def run(self) -> int:
        """Mark a compute effect as under way; returns its id."""
        self.next_id += 1
        self.running = self.next_id
        return self.running

    def take_request(self) -> int:
        """A fresh request id."""
        self.next_request += 1
        return self.next_request


def hold(state: WorkerState, handle: Handle) -> None:
    """Count one more use of a handle."""
    state.holds[handle] = state.holds.get(handle, 0) + 1


def drop(state: WorkerState, out: list[WorkerEffect], handles: list[Handle]) -> None:
    """Count one use less of each handle; release those without any."""
    gone: list[Handle] = []
    for handle in handles:
        left = state.holds.pop(handle, 1) - 1
        if left > 0:
            state.holds[handle] = left
        else:
            gone.append(handle)
    if gone:
        out.append(Release(tuple(gone)))


def drop_everything(state: WorkerState, out: list[WorkerEffect]) -> None:
    """Release every handle that the state still has, each once; the state must not be used afterwards."""
    if state.holds:
        out.append(Release(tuple(sorted(state.holds))))
