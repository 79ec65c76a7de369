"""What the coordinator core knows between two inputs. Ids, handles and numbers, never arrays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.effects import CoordinatorEffect, Release
from dcnr_app.cluster.inputs import Handle, Handles
from dcnr_app.cluster.messages import Address, GradientsReady, SessionIds, Status
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId, SessionId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings

Stage = Literal[
    "new",
    "configuring",
    "loading",
    "batching",
    "training",
    "committing",
    "settling",
    "validating",
    "handing-over",
    "recovering",
    "trained",
    "failed",
    "left",
]


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How a session goes on without a PNode: it plans anew from `graph`.

    For `grace_ms` it waits for lost PNodes to come back; a generation without progress for `stall_ms` ends.
    """

    graph: Network
    devices: tuple[DeviceFacts, ...] = ()
    """What was measured of the PNodes; where it is known of all, plans go by predicted times."""
    grace_ms: float = 0.0
    stall_ms: float = 120_000.0


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """All that is fixed for one generation of a session.

    `resume_step` is the step of the checkpoint to start from (0: from the seed), `t` and `scale` its
    counters. `recorded` are the decisions that were committed after it: they are replayed, not made again.
    `checked_device_class` is the class on which they were made.
    """

    session: SessionId
    plan: Plan
    network: bytes
    settings: TrainingSettings
    inputs: Mapping[PNodeId, tuple[str, ...]]
    """References of input tensors that each PNode needs from outside."""
    resume_step: int = 0
    t: int = 0
    scale: LossScale = LossScale()
    recorded: Mapping[int, Decision] = {}
    checked_device_class: str = ""
    validated: frozenset[int] = frozenset()
    """Steps whose validation loss is recorded already."""
    loads: Mapping[PNodeId, Mapping[str, Handles]] = {}
    """State to load: PNode -> parameter -> slot -> handle."""
    recovery: Recovery | None = None
    """None: a lost PNode ends the session."""


class Capture(msgspec.Struct):
    """A checkpoint being gathered."""

    step: int
    t: int
    scale: LossScale
    parts: dict[str, Handles]
    counts: dict[PNodeId, int]
    arrived: dict[PNodeId, int]


class Loss(msgspec.Struct, frozen=True):
    """Out of which generation's plan a PNode was lost, and when."""

    generation: int
    at_ms: float


class Bench(msgspec.Struct, frozen=True):
    """Until when a PNode is left out, by the orchestrator's monotonic clock, and for how long that is."""

    until_ms: float
    length_ms: float


class CoordinatorState(msgspec.Struct):
    """The coordinator core's state. `step` is the step under way; `t` counts applied updates before it."""

    job: Assignment
    stage: Stage = "new"
    step: int = 0
    t: int = 0
    skips: int = 0
    """Steps skipped in a row."""
    scale: LossScale = LossScale()
    next_id: int = 0
    next_request: int = 0
    waiting: set[PNodeId] = msgspec.field(default_factory=set)
    """PNodes whose answer the current stage waits for."""
    device_classes: dict[PNodeId, str] = msgspec.field(default_factory=dict)
    samples: tuple[int, ...] = ()
    target_count: int = 0
    gradients: dict[PNodeId, GradientsReady] = msgspec.field(default_factory=dict)
    decision: Decision | None = None
    effect: int = 0
    """Id of the effect that the stage waits for."""
    capture: Capture | None = None
    capture_effect: int = 0
    """Id of the effect that writes the capture; 0 while it is gathered."""
    durable_step: int = 0
    blocked: Decision | None = None
    """A decision that waits until the checkpoint before it is durable."""
    is_held: bool = False
    """The last step's decision is durable but waits for the checkpoint under way."""
    stop_requested: bool = False
    evaluation: dict[int, float] = msgspec.field(default_factory=dict)
    evaluation_inputs: list[Handles] = msgspec.field(default_factory=list)
    evaluation_counts: tuple[int, ...] = ()
    evaluation_sent: int = 0
    generation_requests: dict[int, int] = msgspec.field(default_factory=dict)
    validated: set[int] = msgspec.field(default_factory=set)
    """Steps whose validation loss is known."""
    now_ms: float = 0.0
    generation: int = 0
    """The highest number that is taken; while a recovery is under way, higher than the plan's."""
    outside: tuple[Address, ...] = ()
    """Members that run no VNodes: the orchestrator."""
    members: dict[PNodeId, Address] = msgspec.field(default_factory=dict)
    """PNodes that can be used."""
    order: list[PNodeId] = msgspec.field(default_factory=list)
    """All PNodes ever known, in the order in which plans use them."""
    devices: dict[PNodeId, DeviceFacts] = msgspec.field(default_factory=dict)
    memory_limits: dict[PNodeId, int] = msgspec.field(default_factory=dict)
    """Bytes that a PNode may be given after its memory ran out."""
    missing: set[PNodeId] = msgspec.field(default_factory=set)
    """PNodes lost in this recovery: they may come back."""
    suspect: PNodeId = PNodeId("")
    """A PNode that another one cannot reach and that is not seen as lost here yet."""
    link_failures: dict[tuple[PNodeId, PNodeId], int] = msgspec.field(default_factory=dict)
    """How often one PNode could not reach another since the last new step."""
    benched: dict[PNodeId, Bench] = msgspec.field(default_factory=dict)
    """PNodes that others could not reach, or that came and went: they are left out for a while."""
    losses: dict[PNodeId, Loss] = msgspec.field(default_factory=dict)
    """The last loss of each PNode."""
    leaving: set[PNodeId] = msgspec.field(default_factory=set)
    reason: str = ""
    since_ms: float = 0.0
    """Why and since when the session recovers."""
    commit_effect: int = 0
    """Id of an AppendCommit that was under way when the generation ended."""
    handover: str = ""
    """Why a new plan is wanted at a step boundary; empty if none is."""
    planned_ms: float = 0.0
    deaths: list[tuple[PNodeId, frozenset[str]]] = msgspec.field(default_factory=list)
    """The PNodes lost since the last new step, and the VNodes that they ran."""
    statuses: dict[PNodeId, Status] = msgspec.field(default_factory=dict)
    progress_ms: float = 0.0
    longest_ms: float = 0.0
    """When something last moved, and the longest compute effect seen."""
    stalls: int = 0

    @property
    def ids(self) -> SessionIds:
        """Session and generation for a message."""
        return {"session": self.job.session, "generation": self.job.plan.generation}

    @property
    def is_over(self) -> bool:
        """Whether nothing that comes can change the session any more."""
        return self.stage in ("failed", "left")

    def take_id(self) -> int:
        """A fresh effect id."""
        self.next_id += 1
        return self.next_id

    def take_request(self) -> int:
        """A fresh request id."""
        self.next_request += 1
        return self.next_request


def release(out: list[CoordinatorEffect], tensors: Handles) -> None:
    """Give handles back, each once."""
    handles: set[Handle] = set(tensors.values())
    if handles:
        out.append(Release(tuple(sorted(handles))))


def release_parts(out: list[CoordinatorEffect], parts: Mapping[str, Handles]) -> None:
    """Give back the state of parameters: parameter -> slot -> handle."""
    release(out, {f"{name}/{slot}": h for name, part in parts.items() for slot, h in part.items()})


def drop_everything(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Give back all handles but those of a checkpoint that is being written: they go back when it ends."""
    for tensors in state.evaluation_inputs[state.evaluation_sent :]:
        release(out, tensors)
    state.evaluation_inputs = []
    if state.capture is not None and not state.capture_effect:
        release_parts(out, state.capture.parts)
        state.capture = None
    if state.stage in ("new", "configuring"):
        release_loads(out, state.job)


def release_loads(out: list[CoordinatorEffect], job: Assignment) -> None:
    """Give back the state that was to be loaded; shared parameters' handles stand in it more than once."""
    handles = {
        f"{pnode}/{parameter}/{slot}": handle
        for pnode, parameters in job.loads.items()
        for parameter, tensors in parameters.items()
        for slot, handle in tensors.items()
    }
    release(out, handles)
