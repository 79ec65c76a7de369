"""The coordinator core's validation: forward passes at a step boundary, folded in index order. Pure."""

from __future__ import annotations

from dcnr_app.cluster.coordinator_state import CoordinatorState, release
from dcnr_app.cluster.effects import CoordinatorEffect, Send, Validated
from dcnr_app.cluster.inputs import BatchReady
from dcnr_app.cluster.messages import EvalRequest


def is_due(state: CoordinatorState) -> bool:
    """Whether this boundary's validation loss is wanted and not recorded yet: every `validate_every` steps
    and at the end."""
    settings = state.job.settings
    is_wanted = state.step > 0 and (state.step % settings.validate_every == 0 or state.step >= settings.steps)
    return is_wanted and state.step not in state.validated


def begin(state: CoordinatorState, out: list[CoordinatorEffect], batch: BatchReady) -> None:
    """Start the validation microbatches, as many at once as the plan keeps in flight.

    Without any target there is no loss to measure: then the validation is complete at once, without a result.
    """
    state.evaluation = {}
    if not sum(batch.target_counts):
        for tensors in batch.microbatches:
            release(out, tensors)
        batch = BatchReady((), (), ())
    state.evaluation_inputs = list(batch.microbatches)
    state.evaluation_counts = batch.target_counts
    state.evaluation_sent = 0
    for _ in range(min(state.job.plan.in_flight, len(state.evaluation_inputs))):
        _send_next(state, out)


def take(state: CoordinatorState, out: list[CoordinatorEffect], index: int, loss_sum: float) -> None:
    """One validation microbatch's loss sum; the last one gives the loss, summed in index order."""
    if index in state.evaluation or not 0 <= index < state.evaluation_sent:
        return
    state.evaluation[index] = loss_sum
    if state.evaluation_sent < len(state.evaluation_inputs):
        _send_next(state, out)
    if is_complete(state):
        total = 0.0
        for each in sorted(state.evaluation):
            total += state.evaluation[each]
        state.validated.add(state.step)
        out.append(Validated(state.step, total / sum(state.evaluation_counts)))


def is_complete(state: CoordinatorState) -> bool:
    """Whether all validation microbatches have answered."""
    return len(state.evaluation) == len(state.evaluation_inputs)


def _send_next(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    index = state.evaluation_sent
    tensors = state.evaluation_inputs[index]
    state.evaluation_sent += 1
    request = state.take_request()
    for pnode, references in state.job.inputs.items():
        message = EvalRequest(**state.ids, request=request, step=state.step, index=index)
        out.append(Send(pnode, message, {name: tensors[name] for name in references}))
    release(out, tensors)
