"""Effects of the pure cores: what they ask drivers to do. Pure.

A driver carries effects out in order; compute effects of one PNode run one after the other. Every effect with
an `id` comes back as `Finished(id, outcome)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.inputs import Handle, Handles
from dcnr_app.cluster.messages import AnyMessage, Commit, Configure, GradientsReady, Phase
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId


class _Frozen(msgspec.Struct, frozen=True):
    """Base of effects."""


# ---- effects of both cores


class Send(_Frozen, frozen=True):
    """Send a message with tensors. The handles stay the core's."""

    to: PNodeId
    message: AnyMessage
    tensors: Handles = {}


class Release(_Frozen, frozen=True):
    """The core is done with these handles."""

    handles: tuple[Handle, ...]


# ---- effects of a worker


class Prepare(_Frozen, frozen=True):
    """Build the runtime for a plan; make parameters from the seed unless they will be loaded."""

    id: int
    configure: Configure


class RunForward(_Frozen, frozen=True):
    """Run a segment forward. In phase `generate`, output `logits` is that row's logits of sequence 0."""

    id: int
    segment: int
    phase: Phase
    step: int
    microbatch: int
    inputs: Handles
    row: int = -1


class RunBackward(_Frozen, frozen=True):
    """Run a segment backward."""

    id: int
    segment: int
    step: int
    microbatch: int
    gradients: Handles
    loss_seed: float


class CollectSites(_Frozen, frozen=True):
    """Hand over the accumulators of sites owned elsewhere."""

    id: int


class Measure(_Frozen, frozen=True):
    """Fold, unscale and measure the gradients of owned parameters; `remote` by "parameter|site"."""

    id: int
    remote: Handles
    loss_scale: float


class ApplyDecision(_Frozen, frozen=True):
    """Carry out a committed decision."""

    id: int
    commit: Commit


class StoreParameter(_Frozen, frozen=True):
    """Take over a shared parameter's new value or, loading, a parameter's whole state."""

    id: int
    parameter: str
    tensors: Handles
    is_load: bool


class CaptureState(_Frozen, frozen=True):
    """Copy the state of all owned parameters."""

    id: int


class Leave(_Frozen, frozen=True):
    """Drop the runtime; `reason` is for the log."""

    reason: str


# ---- effects of the coordinator


class LoadBatch(_Frozen, frozen=True):
    """Take a step's microbatches from the batch source."""

    id: int
    step: int


class LoadValidation(_Frozen, frozen=True):
    """Take the validation microbatches from the batch source."""

    id: int


class AppendCommit(_Frozen, frozen=True):
    """Make the commit row and its ledger rows durable."""

    id: int
    decision: Decision
    samples: tuple[int, ...]


class WriteCheckpoint(_Frozen, frozen=True):
    """Write a checkpoint: parameter -> slot -> handle."""

    id: int
    step: int
    t: int
    scale: float
    finite_steps: int
    parts: Mapping[str, Handles]


class BeginGeneration(_Frozen, frozen=True):
    """Make it durable that generation `generation` begins, before anybody hears of it."""

    id: int
    generation: int
    reason: str


class Restore(_Frozen, frozen=True):
    """Read the newest durable state and what was recorded after it."""

    id: int


class Evict(_Frozen, frozen=True):
    """This PNode is out: its process, if there still is one, must end before it may come back."""

    pnode: PNodeId
    reason: str


class Recovering(_Frozen, frozen=True):
    """The generation ends at `step`; the session goes on in the next one. `pnode` is the lost one, if any."""

    reason: str
    pnode: PNodeId
    step: int


class Replanned(_Frozen, frozen=True):
    """A new generation goes on after `step`."""

    plan: Plan
    step: int
    reason: str


class Drained(_Frozen, frozen=True):
    """This PNode has handed over all it had: it may go."""

    pnode: PNodeId


class Progress(_Frozen, frozen=True):
    """A step was committed (or replayed)."""

    decision: Decision
    is_replay: bool
    reports: Mapping[PNodeId, GradientsReady]


class Validated(_Frozen, frozen=True):
    """Validation loss in nats per token at a step."""

    step: int
    loss: float


class Deliver(_Frozen, frozen=True):
    """The answer to a GenerateRequested: the logits row."""

    request: int
    logits: Handle


class Undeliverable(_Frozen, frozen=True):
    """There will be no answer to a GenerateRequested."""

    request: int
    reason: str


class WorkerReady(_Frozen, frozen=True):
    """A worker took up the plan."""

    pnode: PNodeId
    pid: int
    device_class: str


class Trained(_Frozen, frozen=True):
    """Training ended at a step boundary; the PNodes stay ready to generate."""

    step: int
    stopped: bool


class SessionFailed(_Frozen, frozen=True):
    """The session cannot go on; `kind` selects the error class."""

    what: str
    where: str
    kind: str


WorkerEffect = (
    Send | Release | Prepare | RunForward | RunBackward | CollectSites | Measure | ApplyDecision |
    StoreParameter
    | CaptureState | Leave
)  # fmt: skip
CoordinatorEffect = (
    Send | Release | LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint | Progress | Validated |
    Deliver | Undeliverable | BeginGeneration | Restore | Evict | Recovering | Replanned | Drained
    | WorkerReady | Trained | SessionFailed
)  # fmt: skip
