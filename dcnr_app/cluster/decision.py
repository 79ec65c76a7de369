"""The numbers of one step's decision: learning rate, clipping, loss scale, folds. Pure.

All folds run in a fixed order (microbatch order, name order), so that the same gradients give the same
decision wherever they were computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dcnr_app.cluster.messages import Norm
from dcnr_app.nodes.graph.training import Schedule, TrainingSettings


class LossScale(msgspec.Struct, frozen=True):
    """The session's one loss scale and how many finite steps it has seen since it last changed."""

    scale: float = 1.0
    finite_steps: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What all PNodes do with one step's gradients, and the facts it was made from. The commit row's body.

    `t` counts applied updates, this one included; a skipped step does not advance it. `loss` is nats per
    token.
    """

    step: int
    loss: float
    gradient_norm: float
    skip: bool
    clip_coefficient: float
    learning_rate: float
    t: int
    loss_scale: float
    target_count: int


def learning_rate_at(settings: TrainingSettings, t: int) -> float:
    """Learning rate of update number `t` (from 1) out of `settings.steps`.

    Linear warm-up to the peak over `warmup_steps` updates, then half a cosine down to final_fraction of it
    (Loshchilov & Hutter 2017), or constant.
    """
    peak = settings.optimizer.learning_rate
    schedule: Schedule = settings.schedule
    if t <= schedule.warmup_steps:
        return peak * t / schedule.warmup_steps
    if schedule.type == "constant":
        return peak
    n_decay = max(1, settings.steps - schedule.warmup_steps)
    progress = min(1.0, (t - schedule.warmup_steps) / n_decay)
    floor = schedule.final_fraction
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def clip_coefficient_for(norm: float, clip_norm: float) -> float:
    """Factor that brings a gradient of length `norm` to at most `clip_norm`; 1 where clipping is off (0)."""
    if clip_norm <= 0.0 or norm <= clip_norm:
        return 1.0
    return clip_norm / norm


def fold_loss(loss_sums: Mapping[int, float], target_count: int) -> float:
    """Mean loss in nats per target token: sums added in microbatch order."""
    total = 0.0
    for microbatch in sorted(loss_sums):
        total += loss_sums[microbatch]
    return total / target_count


def fold_norm(norms: Mapping[str, Norm]) -> tuple[float, bool]:
    """(Euclidean norm over all parameters, whether all are finite): squares added in name order."""
    total = 0.0
    is_finite = True
    for name in sorted(norms):
        total += norms[name].squared_norm
        is_finite = is_finite and norms[name].is_finite
    return math.sqrt(total) if is_finite and math.isfinite(total) else math.inf, is_finite and math.isfinite(
        total
    )


def decide(
    *,
    settings: TrainingSettings,
    step: int,
    t_before: int,
    scale: LossScale,
    loss_sums: Mapping[int, float],
    target_count: int,
    norms: Mapping[str, Norm],
) -> Decision:
    """The step's one decision for all. Any non-finite gradient or loss means that all skip."""
    loss = fold_loss(loss_sums, target_count)
    norm, is_finite = fold_norm(norms)
    skip = not (is_finite and math.isfinite(loss))
    t = t_before if skip else t_before + 1
    return Decision(
        step=step,
        loss=loss if math.isfinite(loss) else 0.0,
        gradient_norm=norm if math.isfinite(norm) else 0.0,
        skip=skip,
        clip_coefficient=0.0 if skip else clip_coefficient_for(norm, settings.clip_norm),
        learning_rate=0.0 if skip else learning_rate_at(settings, t),
        t=t,
        loss_scale=scale.scale,
        target_count=target_count,
    )


def scale_after(scale: LossScale, *, skip: bool, precision: str) -> LossScale:
    """The loss scale for the next step: halved after a skip. Full precision keeps 1: it needs no scaling."""
    if precision == "float32":
        return LossScale(scale.scale, 0 if skip else scale.finite_steps + 1)
    if skip:
        return LossScale(max(1.0, scale.scale / 2.0), 0)
    return LossScale(scale.scale, scale.finite_steps + 1)
