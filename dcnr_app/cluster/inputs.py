"""Inputs of the pure cores: what drivers tell them, outcomes of effects included. Pure.

Cores hold handles, never arrays. Every effect with an `id` comes back as `Finished(id, outcome)`; failure is
an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

import msgspec

from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.messages import Address, AnyMessage, Norm
from dcnr_app.ids import PNodeId

Handle = NewType("Handle", int)
Handles = Mapping[str, Handle]


class _Frozen(msgspec.Struct, frozen=True):
    """Base of inputs and outcomes."""


# ---- inputs


class Received(_Frozen, frozen=True):
    """A message arrived; its tensors are in the handle table."""

    sender: PNodeId
    message: AnyMessage
    tensors: Handles = {}


class Lost(_Frozen, frozen=True):
    """The streams with a peer broke."""

    peer: PNodeId
    reason: str


class Finished(_Frozen, frozen=True):
    """An effect ended."""

    id: int
    outcome: Outcome


class Joined(_Frozen, frozen=True):
    """A PNode can be used: it is new, or its process is a new one. `device` is what was measured of it."""

    member: Address
    device: DeviceFacts | None = None


class Slept(_Frozen, frozen=True):
    """This process stood still for longer than its lease: it may have been replaced meanwhile."""

    gap_ms: float


class LeaveRequested(_Frozen, frozen=True):
    """A PNode wants to go: its VNodes move to others at a step boundary first."""

    pnode: PNodeId


class Tick(_Frozen, frozen=True):
    """Time has passed; comes about twice a second."""


class StopRequested(_Frozen, frozen=True):
    """The person wants the session to end at the next step boundary, with a checkpoint."""


class GenerateRequested(_Frozen, frozen=True):
    """One forward for generation: input tensors by reference; the row whose logits are wanted."""

    request: int
    tensors: Handles
    row: int


# ---- outcomes


class Done(_Frozen, frozen=True):
    """It was carried out; nothing to tell."""


class TaskFailed(_Frozen, frozen=True):
    """It could not be carried out."""

    what: str
    where: str
    is_memory: bool = False
    """Whether memory ran out."""


class Prepared(_Frozen, frozen=True):
    """A worker's runtime is ready for the plan.

    `copies_to`: owned shared parameters and the other PNodes with sites; `copies_from`: parameters with a
    local site that are owned elsewhere; `sites_from`: "parameter|site" accumulators that arrive from others;
    `site_owner`: the owner of each "parameter|site" accumulator that is sent away.
    """

    owned: tuple[str, ...]
    copies_to: Mapping[str, tuple[PNodeId, ...]]
    copies_from: tuple[str, ...]
    sites_from: tuple[str, ...]
    site_owner: Mapping[str, PNodeId]
    device_class: str
    pid: int


class ForwardDone(_Frozen, frozen=True):
    """Outputs by reference; the loss sum if the cost VNode was in the segment."""

    outputs: Handles
    loss_sum: float | None
    elapsed_ms: float


class BackwardDone(_Frozen, frozen=True):
    """Gradients of entering edges by edge key."""

    gradients: Handles
    elapsed_ms: float


class SitesDone(_Frozen, frozen=True):
    """Accumulators of sites owned elsewhere, by "parameter|site"."""

    gradients: Handles


class Measured(_Frozen, frozen=True):
    """Norms of owned parameters; the driver adds the bytes that its transport carried so far."""

    norms: Mapping[str, Norm]
    bytes_sent: int = 0
    bytes_received: int = 0


class DecisionApplied(_Frozen, frozen=True):
    """The decision is applied; new values of owned shared parameters that others need, by parameter."""

    copies: Handles


class Captured(_Frozen, frozen=True):
    """Copies of the state of owned parameters: parameter -> slot -> handle."""

    parts: Mapping[str, Handles]


class BatchReady(_Frozen, frozen=True):
    """A step's microbatches, or the validation microbatches: input tensors by reference for each."""

    microbatches: tuple[Handles, ...]
    target_counts: tuple[int, ...]
    samples: tuple[int, ...]


class Restored(_Frozen, frozen=True, kw_only=True):
    """The newest durable state (step 0: the seed's), and the decisions that were made after it."""

    step: int
    t: int
    scale: LossScale
    parts: Mapping[str, Handles]
    recorded: Mapping[int, Decision]
    validated: frozenset[int]
    device_class: str


class CheckpointWritten(_Frozen, frozen=True):
    """The checkpoint is durable."""

    path: str


Outcome = (
    Done | TaskFailed | Prepared | ForwardDone | BackwardDone | SitesDone | Measured | DecisionApplied |
    Captured
    | BatchReady | CheckpointWritten | Restored
)  # fmt: skip
Input = (
    Received | Lost | Slept | Joined | LeaveRequested | Tick | Finished | StopRequested | GenerateRequested
)  # fmt: skip
