"""The coordinator core's steps: batch, decision, commit, validation, checkpoint. Pure."""

from __future__ import annotations

from dcnr_app.cluster import coordinator_captures as captures
from dcnr_app.cluster import coordinator_evaluation as evaluation
from dcnr_app.cluster import coordinator_recovery as recovery
from dcnr_app.cluster.coordinator_recovery import fail
from dcnr_app.cluster.coordinator_state import CoordinatorState, release
from dcnr_app.cluster.decision import Decision, decide, scale_after
from dcnr_app.cluster.effects import (
    AppendCommit,
    CoordinatorEffect,
    LoadBatch,
    LoadValidation,
    Progress,
    Send,
    Trained,
)
from dcnr_app.cluster.inputs import BatchReady
from dcnr_app.cluster.messages import Commit, GradientsReady, Norm, TrainRequest
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId

MAX_SKIPS = 20
"""Steps skipped in a row after which full precision has diverged: nothing would change any more."""
MIN_STAY_MS = 20_000.0
"""How long a plan stays before a better one replaces it: PNodes that come and go must not stop the work."""


def next_step(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Go on after a boundary: the next step, or the end.

    A stop takes effect at a step whose state is being kept; if this one's is not, one more step is made.
    """
    kept = state.durable_step if state.capture is None else state.capture.step
    is_stopping = state.stop_requested and kept == state.step
    is_over = state.step >= state.job.settings.steps or is_stopping
    if state.handover and not is_over and kept == state.step:
        state.stage = "handing-over"
        if state.capture is None:
            recovery.begin(state, out, state.handover, PNodeId(""))
        return
    if is_over:
        state.stage = "trained"
        if state.capture is None:
            _report_trained(state, out)
        return
    state.step += 1
    state.stage = "batching"
    state.effect = state.take_id()
    out.append(LoadBatch(state.effect, state.step))


def send_batch(state: CoordinatorState, out: list[CoordinatorEffect], batch: BatchReady) -> None:
    """Send every microbatch's inputs to the PNodes that need them; their task lists hold the order."""
    state.stage = "training"
    state.samples = batch.samples
    state.target_count = sum(batch.target_counts)
    state.gradients = {}
    if not state.target_count:
        for tensors in batch.microbatches:
            release(out, tensors)
        fail(state, out, f"the batch of step {state.step} has no target token", f"step {state.step}", "store")
        return
    for microbatch, tensors in enumerate(batch.microbatches):
        request = state.take_request()
        for pnode, references in state.job.inputs.items():
            message = TrainRequest(
                **state.ids,
                request=request,
                step=state.step,
                microbatch=microbatch,
                loss_scale=state.scale.scale,
                target_count=state.target_count,
            )
            out.append(Send(pnode, message, {name: tensors[name] for name in references}))
        release(out, tensors)


def take_gradients(
    state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, message: GradientsReady
) -> None:
    """A PNode's facts about the step; with the last of them the step is decided.

    Replayed or not, a step more than `checkpoint_every` after the last durable checkpoint waits for the next.
    """
    is_awaited = state.stage == "training" and message.step == state.step
    if not is_awaited or sender in state.gradients:
        return
    state.gradients[sender] = message
    if len(state.gradients) < len(state.job.plan.pnodes):
        return
    decision = _conclude(state, out)
    if decision is None:
        return
    if state.step - state.durable_step > state.job.settings.checkpoint_every:
        state.blocked = decision
        return
    _commit(state, out, decision)


def _conclude(state: CoordinatorState, out: list[CoordinatorEffect]) -> Decision | None:
    """The decision, or what was recorded of a replayed step; None if that cannot be kept to."""
    norms: dict[str, Norm] = {}
    loss_sums: dict[int, float] = {}
    for ready in state.gradients.values():
        norms.update(ready.norms)
        loss_sums.update(ready.loss_sums)
    made = decide(
        settings=state.job.settings,
        step=state.step,
        t_before=state.t,
        scale=state.scale,
        loss_sums=loss_sums,
        target_count=state.target_count,
        norms=norms,
    )
    recorded = state.job.recorded.get(state.step)
    if recorded is None or made == recorded:
        return made
    # Elsewhere other bits are expected; but a recorded update cannot be made with gradients that overflowed.
    if _same_device_class(state) or (made.skip and not recorded.skip):
        fail(state, out, _difference(made, recorded), f"step {state.step}", "diverged")
        return None
    return recorded


def _commit(state: CoordinatorState, out: list[CoordinatorEffect], decision: Decision) -> None:
    state.decision = decision
    if state.step in state.job.recorded:
        broadcast(state, out)
        return
    state.stage = "committing"
    state.effect = state.take_id()
    out.append(AppendCommit(state.effect, decision, state.samples))


def _same_device_class(state: CoordinatorState) -> bool:
    return set(state.device_classes.values()) == {state.job.checked_device_class}


def _difference(made: Decision, recorded: Decision) -> str:
    return f"replayed step {made.step} gave {_shown(made)}, recorded is {_shown(recorded)}"


def _shown(decision: Decision) -> str:
    skipped = "an overflow, " if decision.skip else ""
    return f"{skipped}loss {decision.loss!r} and gradient norm {decision.gradient_norm!r}"


def broadcast(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """The decision is durable: tell all, then go on."""
    decision = state.decision
    if decision is None:
        raise InvariantError("nothing was decided")
    settings = state.job.settings
    is_last = state.step >= settings.steps or state.stop_requested
    is_move = bool(state.handover) and state.now_ms - state.planned_ms >= MIN_STAY_MS
    if (is_last or is_move) and state.capture is not None:
        state.is_held = True  # the last state must be kept too, and one checkpoint is gathered at a time
        return
    state.is_held = False
    capture = state.capture is None and (state.step % settings.checkpoint_every == 0 or is_last or is_move)
    commit = Commit(
        **state.ids,
        step=state.step,
        skip=decision.skip,
        clip_coefficient=decision.clip_coefficient,
        learning_rate=decision.learning_rate,
        t=decision.t,
        loss_scale=decision.loss_scale,
        capture=capture,
    )
    out.extend(Send(pnode, commit) for pnode in state.job.plan.pnodes)
    if state.step not in state.job.recorded:
        state.deaths, state.link_failures, state.stalls = [], {}, 0
    state.t = decision.t
    state.skips = state.skips + 1 if decision.skip else 0
    state.scale = scale_after(state.scale, skip=decision.skip, precision=settings.precision)
    if capture:
        captures.begin(state)
    out.append(_progress(state, decision))
    state.decision = None
    if state.skips >= MAX_SKIPS:
        since = state.step - state.skips + 1
        what = (
            f"{state.skips} steps in a row were skipped: since step {since} gradients or loss are not "
            "finite; start again with a lower learning rate"
        )
        fail(state, out, what, f"step {state.step}", "diverged")
        return
    if is_last or is_move or evaluation.is_due(state):
        state.stage = "settling"
        state.waiting = set(state.job.plan.pnodes)
    else:
        next_step(state, out)


def _progress(state: CoordinatorState, decision: Decision) -> Progress:
    return Progress(
        decision=decision,
        is_replay=state.step in state.job.recorded,
        reports=dict(state.gradients),
    )


def settle(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """All PNodes are at the same boundary: measure the validation loss if it is due, then go on."""
    if not evaluation.is_due(state):
        next_step(state, out)
        return
    state.stage = "validating"
    state.effect = state.take_id()
    out.append(LoadValidation(state.effect))


# ---- checkpoints


def checkpoint_durable(state: CoordinatorState, out: list[CoordinatorEffect], step: int) -> None:
    """The checkpoint of `step` cannot be lost any more: what waited for it goes on."""
    state.durable_step = step
    if state.is_over:
        return
    if state.is_held:
        broadcast(state, out)
    elif state.blocked is not None and state.stage == "training":
        decision, state.blocked = state.blocked, None
        _commit(state, out, decision)
    elif state.stage == "recovering":
        recovery.advance(state, out)
    elif state.stage == "handing-over":
        recovery.begin(state, out, state.handover, PNodeId(""))
    elif state.stage == "trained":
        _report_trained(state, out)


def _report_trained(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    out.append(Trained(state.step, state.step < state.job.settings.steps))
