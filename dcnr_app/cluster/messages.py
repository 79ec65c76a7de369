"""Messages between PNodes: typed, tagged, without arrays. Pure.

A message may travel with tensors; `tensors` on the wire is described by `TensorHeader`s and follows as raw
bytes. Every message of a session carries its generation: a receiver refuses another one. Unknown fields are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

import msgspec

from dcnr_app.cluster.agent_messages import AgentLeaves, AgentStatus, MembershipUpdate, RestartPNode
from dcnr_app.cluster.message import Message
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId, SessionId
from dcnr_app.nodes.graph.training import TrainingSettings

PROTOCOL_VERSION = 2
Phase = Literal["train", "evaluate", "generate"]


class TensorHeader(msgspec.Struct, frozen=True, array_like=True):
    """Dtype name, shape and name of one attached tensor; its bytes are C-contiguous, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class SessionIds(TypedDict):
    """The fields by which every message of a session is fenced."""

    session: SessionId
    generation: int


class Hello(Message, frozen=True, kw_only=True, tag="hello.v1"):
    """First message on every stream: who speaks which protocol."""

    pnode: PNodeId
    protocol: int
    version: str
    tags: tuple[str, ...]


class Refused(Message, frozen=True, kw_only=True, tag="refused.v1"):
    """Answer to a message that was not accepted; never closes the connection by itself."""

    reason: str
    tag: str = ""
    generation: int = 0
    """Generation of what was refused; 0 when it could not be read."""


class Address(msgspec.Struct, frozen=True):
    """Where a member listens, `host:port`, and the sha256 of its certificate (hex)."""

    pnode: PNodeId
    address: str
    fingerprint: str = ""


class Configure(Message, frozen=True, kw_only=True, tag="configure.v1"):
    """Orchestrator: take part in a session under this plan. `network` is its canonical JSON."""

    session: SessionId
    generation: int
    network: bytes
    plan: Plan
    settings: TrainingSettings
    first_step: int
    members: tuple[Address, ...]
    will_load: bool = False
    """Whether parameters follow as LoadState; otherwise owners make them from the seed."""


class Ready(Message, frozen=True, kw_only=True, tag="ready.v1"):
    """Worker: configured, parameters in place."""

    session: SessionId
    generation: int
    device_class: str
    pid: int


class LoadState(Message, frozen=True, kw_only=True, tag="load-state.v1"):
    """Orchestrator: one parameter's state; tensors `weight` and, for its owner, the optimizer slots."""

    session: SessionId
    generation: int
    parameter: str


class LoadDone(Message, frozen=True, kw_only=True, tag="load-done.v1"):
    """Orchestrator: all LoadState messages for this worker were sent."""

    session: SessionId
    generation: int
    count: int


class TrainRequest(Message, frozen=True, kw_only=True, tag="train-request.v1"):
    """Orchestrator: one microbatch's input tensors, named by their references."""

    session: SessionId
    generation: int
    request: int
    step: int
    microbatch: int
    loss_scale: float
    target_count: int


class EvalRequest(Message, frozen=True, kw_only=True, tag="eval-request.v1"):
    """Orchestrator: forward only. `index` numbers the microbatches of one evaluation."""

    session: SessionId
    generation: int
    request: int
    step: int
    index: int


class GenerateRequest(Message, frozen=True, kw_only=True, tag="generate-request.v1"):
    """Orchestrator: forward up to the logits; answer with the row at `row` of sequence 0."""

    session: SessionId
    generation: int
    request: int
    step: int
    index: int
    row: int


class Hop(Message, frozen=True, kw_only=True, tag="hop.v1"):
    """One tensor for one segment: `slot` is a reference (forward) or an edge key (backward)."""

    session: SessionId
    generation: int
    request: int
    phase: Phase
    step: int
    microbatch: int
    direction: Literal["F", "B"]
    segment: int
    slot: str
    loss_scale: float = 1.0
    target_count: int = 0
    row: int = -1


class EvalResponse(Message, frozen=True, kw_only=True, tag="eval-response.v1"):
    """Worker with the cost VNode: the loss sum of one evaluation microbatch."""

    session: SessionId
    generation: int
    request: int
    step: int
    index: int
    loss_sum: float


class GenerateResponse(Message, frozen=True, kw_only=True, tag="generate-response.v1"):
    """Worker with the logits: one row, as the tensor `logits`."""

    session: SessionId
    generation: int
    request: int
    step: int
    index: int


class SiteGradient(Message, frozen=True, kw_only=True, tag="site-gradient.v1"):
    """Worker: a use site's accumulated gradient of a shared parameter, for its owner; tensor `gradient`."""

    session: SessionId
    generation: int
    step: int
    parameter: str
    site: str


class ParameterCopy(Message, frozen=True, kw_only=True, tag="parameter-copy.v1"):
    """Owner: the parameter after committed step `step`, for another PNode's sites; tensor `weight`."""

    session: SessionId
    generation: int
    step: int
    parameter: str


class Norm(msgspec.Struct, frozen=True, array_like=True):
    """Unscaled squared norm (float64) and finite flag of one parameter's gradient."""

    squared_norm: float
    is_finite: bool


class GradientsReady(Message, frozen=True, kw_only=True, tag="gradients-ready.v1"):
    """Worker: all its backward work of the step is done; facts about owned parameters, loss sums if it has
    the cost."""

    session: SessionId
    generation: int
    step: int
    norms: Mapping[str, Norm]
    loss_sums: Mapping[int, float]
    max_in_flight: int
    compute_ms: float
    bytes_sent: int = 0
    bytes_received: int = 0
    """By this PNode since it started, framing included."""


class Commit(Message, frozen=True, kw_only=True, tag="commit.v1"):
    """Orchestrator: the decision for one step, for all. `skip` applies nothing; `capture` asks for a
    checkpoint."""

    session: SessionId
    generation: int
    step: int
    skip: bool
    clip_coefficient: float
    learning_rate: float
    t: int
    loss_scale: float
    capture: bool = False


class Applied(Message, frozen=True, kw_only=True, tag="applied.v1"):
    """Worker: the decision is carried out, shared copies included."""

    session: SessionId
    generation: int
    step: int


class StatePart(Message, frozen=True, kw_only=True, tag="state-part.v1"):
    """Worker: one owned parameter's state at a step boundary; tensors `weight` and the optimizer's slots."""

    session: SessionId
    generation: int
    step: int
    parameter: str


class StateDone(Message, frozen=True, kw_only=True, tag="state-done.v1"):
    """Worker: all StatePart messages of this capture were sent."""

    session: SessionId
    generation: int
    step: int
    count: int


class Failed(Message, frozen=True, kw_only=True, tag="failed.v1"):
    """Worker: it could not go on; `where` names the VNode or phase."""

    session: SessionId
    generation: int
    what: str
    where: str
    is_lost: bool = False
    """Whether it is another PNode that went away, and not something that failed here."""
    peer: str = ""
    """The PNode that went away."""
    is_memory: bool = False
    """Whether memory ran out: a smaller share may fit."""


class Status(Message, frozen=True, kw_only=True, tag="status.v1"):
    """Worker, every second: how far it is. `running_ms` is the age of the compute effect under way, 0 when
    none; `where` names it. While state is loaded, `tasks_done` counts what is stored."""

    session: SessionId
    generation: int
    step: int
    stage: str
    tasks_done: int
    running_ms: float
    where: str = ""
    received_bytes: int = 0
    """By this PNode since it started: a tensor that takes minutes on a slow link is no standstill."""


class Stop(Message, frozen=True, kw_only=True, tag="stop.v1"):
    """Orchestrator: leave the session."""

    session: SessionId
    generation: int


class Probe(Message, frozen=True, kw_only=True, tag="probe.v1"):
    """Any member: answer this at once, so that the link can be measured. Of no session."""

    number: int
    payload: bytes = b""


class ProbeReply(Message, frozen=True, kw_only=True, tag="probe-reply.v1"):
    """Answer to the Probe of that number, which came with so many bytes."""

    number: int
    n_bytes: int


AnyMessage = (
    Hello
    | Refused
    | Configure
    | Ready
    | LoadState
    | LoadDone
    | TrainRequest
    | EvalRequest
    | GenerateRequest
    | Hop
    | EvalResponse
    | GenerateResponse
    | SiteGradient
    | ParameterCopy
    | GradientsReady
    | Commit
    | Applied
    | StatePart
    | StateDone
    | Failed
    | Status
    | Stop
    | AgentStatus
    | AgentLeaves
    | MembershipUpdate
    | RestartPNode
    | Probe
    | ProbeReply
)
