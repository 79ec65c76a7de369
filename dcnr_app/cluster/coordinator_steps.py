"""The coordinator core's steps: batch, decision, commit, validation, checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.cluster.coordinator_state import Capture, CoordinatorState, release
from dcnr_app.cluster.decision import Decision, LossScale, decide, scale_after
from dcnr_app.cluster.effects import (
    AppendCommit,
    BatchReady,
    CoordinatorEffect,
    Handles,
    LoadBatch,
    LoadValidation,
    Progress,
    Send,
    SessionFailed,
    Trained,
    Validated,
    WriteCheckpoint,
)
from dcnr_app.cluster.messages import Commit, EvalRequest, Norm, TrainRequest
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId


def next_step(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Go on after a boundary: the next step, or the end.

    A stop takes effect at a step whose state is being kept; if this one's is not, one more step is made.
    """
    kept = state.durable_step if state.capture is None else state.capture.step
    is_stopping = state.stop_requested and kept == state.step
    if state.step >= state.job.settings.steps or is_stopping:
        state.stage = "trained"
        if state.capture is None:
            out.append(Trained(state.step, is_stopping))
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


def conclude(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """All gradients are in: decide, or check a replayed step against what was recorded."""
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
    if recorded is not None:
        if made != recorded and _same_device_class(state):
            fail(state, out, _difference(made, recorded), f"step {state.step}", "diverged")
            return
        state.decision = recorded
        broadcast(state, out)
        return
    if state.step - state.durable_step > state.job.settings.checkpoint_every:
        state.blocked = made
        return
    _commit(state, out, made)


def _commit(state: CoordinatorState, out: list[CoordinatorEffect], decision: Decision) -> None:
    state.decision = decision
    state.stage = "committing"
    state.effect = state.take_id()
    out.append(AppendCommit(state.effect, decision, state.samples))


def _same_device_class(state: CoordinatorState) -> bool:
    return set(state.device_classes.values()) == {state.job.checked_device_class}


def _difference(made: Decision, recorded: Decision) -> str:
    return (
        f"replayed step {made.step} gave loss {made.loss!r} and gradient norm {made.gradient_norm!r}, "
        f"recorded were {recorded.loss!r} and {recorded.gradient_norm!r}"
    )


def broadcast(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """The decision is durable: tell all, then go on."""
    decision = state.decision
    if decision is None:
        raise InvariantError("nothing was decided")
    settings = state.job.settings
    is_last = state.step >= settings.steps or state.stop_requested
    if is_last and state.capture is not None:
        state.is_held = True  # the last state must be kept too, and one checkpoint is gathered at a time
        return
    state.is_held = False
    capture = state.capture is None and (state.step % settings.checkpoint_every == 0 or is_last)
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
    state.t = decision.t
    state.scale = scale_after(state.scale, skip=decision.skip, precision=settings.precision)
    if capture:
        begin_capture(state)
    out.append(_progress(state, decision))
    state.decision = None
    is_due = state.step % settings.validate_every == 0 and state.step not in state.job.validated
    if is_last or is_due:
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
    """All have applied the step: measure validation loss if it is due, then go on."""
    is_stopped_early = state.stop_requested and state.step < state.job.settings.steps
    if is_stopped_early or state.step in state.job.validated:
        next_step(state, out)
        return
    state.stage = "validating"
    state.effect = state.take_id()
    out.append(LoadValidation(state.effect))


# ---- validation


def begin_evaluation(state: CoordinatorState, out: list[CoordinatorEffect], batch: BatchReady) -> None:
    """Start the validation microbatches, as many at once as the plan keeps in flight."""
    state.evaluation = {}
    state.evaluation_inputs = list(batch.microbatches)
    state.evaluation_counts = batch.target_counts
    state.evaluation_sent = 0
    for _ in range(min(state.job.plan.in_flight, len(state.evaluation_inputs))):
        _send_evaluation(state, out)


def _send_evaluation(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    index = state.evaluation_sent
    tensors = state.evaluation_inputs[index]
    state.evaluation_sent += 1
    request = state.take_request()
    for pnode, references in state.job.inputs.items():
        message = EvalRequest(**state.ids, request=request, step=state.step, index=index)
        out.append(Send(pnode, message, {name: tensors[name] for name in references}))
    release(out, tensors)


def take_evaluation(
    state: CoordinatorState, out: list[CoordinatorEffect], index: int, loss_sum: float
) -> None:
    """One validation microbatch's loss sum; the last one gives the loss, summed in index order."""
    if index in state.evaluation:
        return
    state.evaluation[index] = loss_sum
    if state.evaluation_sent < len(state.evaluation_inputs):
        _send_evaluation(state, out)
    if len(state.evaluation) < len(state.evaluation_inputs):
        return
    total = 0.0
    for each in sorted(state.evaluation):
        total += state.evaluation[each]
    out.append(Validated(state.step, total / sum(state.evaluation_counts)))
    state.evaluation_inputs = []
    next_step(state, out)


# ---- checkpoints


def begin_capture(state: CoordinatorState) -> None:
    """Expect the state of all owned parameters after this step."""
    state.capture = Capture(
        step=state.step, t=state.t, scale=LossScale(state.scale.scale, state.scale.finite_steps), parts={},
        counts={},
        arrived={},
    )  # fmt: skip


def gather_state(
    state: CoordinatorState,
    out: list[CoordinatorEffect],
    sender: PNodeId,
    step: int,
    parameter: str,
    tensors: Handles,
) -> None:
    """One parameter's state arrived."""
    capture = state.capture
    if capture is None or capture.step != step or parameter in capture.parts:
        release(out, tensors)
        return
    capture.parts[parameter] = tensors
    capture.arrived[sender] = capture.arrived.get(sender, 0) + 1
    _write_when_complete(state, out, capture)


def finish_state(
    state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, step: int, count: int
) -> None:
    """A PNode says how many parameters it sent."""
    capture = state.capture
    if capture is not None and capture.step == step:
        capture.counts[sender] = count
        _write_when_complete(state, out, capture)


def _write_when_complete(state: CoordinatorState, out: list[CoordinatorEffect], capture: Capture) -> None:
    is_complete = len(capture.counts) == len(state.job.plan.pnodes) and all(
        capture.arrived.get(pnode, 0) == count for pnode, count in capture.counts.items()
    )
    if not is_complete or capture.is_writing:
        return
    capture.is_writing = True
    state.capture_effect = state.take_id()
    parts: Mapping[str, Handles] = capture.parts
    scale = capture.scale
    out.append(
        WriteCheckpoint(state.capture_effect, capture.step, capture.t, scale.scale, scale.finite_steps, parts)
    )


def checkpoint_durable(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """The checkpoint cannot be lost any more: what waited for it goes on."""
    capture = state.capture
    if capture is None:
        raise InvariantError("a checkpoint was written that nobody asked for")
    release(out, {f"{name}/{slot}": h for name, part in capture.parts.items() for slot, h in part.items()})
    state.durable_step = capture.step
    state.capture = None
    if state.is_held:
        broadcast(state, out)
    elif state.blocked is not None and state.stage == "training":
        decision, state.blocked = state.blocked, None
        _commit(state, out, decision)
    elif state.stage == "trained":
        out.append(Trained(state.step, state.step < state.job.settings.steps))


def fail(state: CoordinatorState, out: list[CoordinatorEffect], what: str, where: str, kind: str) -> None:
    """The session cannot go on here; what is durable stays."""
    state.stage = "failed"
    state.failure = what
    out.append(SessionFailed(what, where, kind))
