"""The small values that enter and leave the runtime. Knows no backend and no network."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dcnr_app.engine.backend import Array

Phase = Literal["train", "evaluate", "generate"]


class RunKey(NamedTuple):
    """Which pass over the network a call belongs to; `microbatch` counts from 0 within its step."""

    phase: Phase
    step: int
    microbatch: int


class ForwardResult(NamedTuple):
    """Tensors that leave a segment, by reference, and the loss sum if the segment holds the cost VNode."""

    outputs: dict[str, Array]
    loss_sum: float | None


class Decision(NamedTuple):
    """What was decided for one step: the same for every PNode. `t` counts applied updates from 1."""

    skip: bool
    clip_coefficient: float
    learning_rate: float
    t: int
    loss_scale: float


class Fact(NamedTuple):
    """float64 squared norm of one parameter's unscaled gradient, and whether all of it is finite."""

    squared_norm: float
    is_finite: bool
