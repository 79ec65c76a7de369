"""The worker core's tasks: mailbox in, ordered execution, hops out. Pure."""

from __future__ import annotations

from dcnr_app.cluster.effects import (
    Release,
    RunBackward,
    RunForward,
    Send,
    WorkerEffect,
)
from dcnr_app.cluster.inputs import (
    BackwardDone,
    ForwardDone,
    Handle,
    Handles,
)
from dcnr_app.cluster.messages import (
    EvalRequest,
    EvalResponse,
    GenerateRequest,
    GenerateResponse,
    Hop,
    Phase,
    TrainRequest,
)
from dcnr_app.cluster.routes import Routes, TaskKey, slots_of, why_not_mine
from dcnr_app.cluster.worker_state import WorkerState, drop, hold
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR, PNodeId

LOGITS = "logits"
_MOST_WAITING = 4
"""Times the microbatches in flight: so many inputs of evaluations may wait; no peer fills the memory."""
_ANSWERS_REMEMBERED = 32
"""Generation requests of which a repeated message is known as one; older ones are over."""


def accept_request(
    state: WorkerState, message: TrainRequest | EvalRequest | GenerateRequest, tensors: Handles
) -> str:
    """Put an orchestrator's input tensors into the mailbox of every local segment that needs them."""
    phase: Phase = "train"
    index = 0
    match message:
        case TrainRequest():
            index = message.microbatch
        case EvalRequest():
            phase, index = "evaluate", message.index
        case GenerateRequest():
            phase, index = "generate", message.index
    for reference, handle in tensors.items():
        mine = [s.index for s in state.plan.segments if s.pnode == state.pnode and reference in s.needs]
        if not mine:
            return f"no segment of {state.pnode} needs {reference!r}"
        for segment in mine:
            key = TaskKey(phase, message.step, index, "F", segment)
            reason = _accept(state, key, reference, handle)
            if reason:
                return reason
    _note(state, message, phase, index)
    return ""


def accept_hop(state: WorkerState, message: Hop, tensors: Handles) -> str:
    """Put a peer's tensor into the mailbox."""
    handle = tensors.get(message.slot)
    if handle is None:
        return "its tensor is missing"
    key = TaskKey(message.phase, message.step, message.microbatch, message.direction, message.segment)
    reason = _accept(state, key, message.slot, handle)
    if reason:
        return reason
    _note(state, message, message.phase, message.microbatch)
    return ""


def _note(
    state: WorkerState, message: TrainRequest | EvalRequest | GenerateRequest | Hop, phase: Phase, index: int
) -> None:
    """Keep the numbers that come with an accepted tensor, unless what they are for is over."""
    if isinstance(message, TrainRequest | Hop) and phase == "train" and message.step >= state.step:
        state.scalars.setdefault(message.step, (message.loss_scale, message.target_count))
    elif (
        isinstance(message, GenerateRequest | Hop) and phase == "generate" and not _is_answered(state, index)
    ):
        state.rows[index] = message.row


def _is_answered(state: WorkerState, index: int) -> bool:
    return index <= max(state.rows, default=0) - _ANSWERS_REMEMBERED


def _accept(state: WorkerState, key: TaskKey, slot: str, handle: Handle) -> str:
    reason = why_not_mine(state.plan, state.pnode, key, slot)
    if reason:
        return reason
    # A peer can be one step ahead (it has the decision, this PNode not yet), never two.
    latest = state.step + 1 if key.phase == "train" else state.step - 1
    if key.step > latest:
        return f"step {key.step} is ahead of {latest}"
    is_old = key.step < (state.step if key.phase == "train" else latest)
    if key.phase == "generate" and (
        slot not in slots_of(state.plan, key) or _is_answered(state, key.microbatch)
    ):
        return ""  # the logits do not depend on it, or nobody waits for them any more
    box = state.mailbox.get(key, {})
    if is_old or key in state.finished or slot in box:
        return ""  # late or repeated: already counted
    if key.phase != "train" and not box and _is_crowded(state):
        return "too many evaluations are under way"
    state.mailbox[key] = {**box, slot: handle}
    hold(state, handle)
    if key.phase != "train" and len(state.mailbox[key]) == len(slots_of(state.plan, key)):
        state.ready.append(key)
    return ""


def _is_crowded(state: WorkerState) -> bool:
    """Whether more evaluations and generations wait here than an orchestrator ever has under way."""
    most = _MOST_WAITING * state.plan.in_flight * len(state.plan.segments)
    return sum(key.phase != "train" for key in state.mailbox) >= most


def start_next(state: WorkerState, out: list[WorkerEffect]) -> bool:
    """Start the next training task of the list if its inputs are there, else an evaluation; False if
    neither."""
    if state.tasks_done < len(state.tasks):
        task = state.tasks[state.tasks_done]
        key = TaskKey("train", state.step, task.microbatch, task.direction, task.segment)
        if len(state.mailbox.get(key, {})) == len(slots_of(state.plan, key)):
            _start(state, out, key)
            return True
    if state.ready:
        _start(state, out, state.ready.pop(0))
        return True
    return False


def _start(state: WorkerState, out: list[WorkerEffect], key: TaskKey) -> None:
    effect_id = state.run()
    state.running_key = key
    box = state.mailbox.get(key, {})
    if key.phase == "train":
        _count_in_flight(state, key)
    if key.direction == "F":
        row = state.rows.get(key.microbatch, -1) if key.phase == "generate" else -1
        out.append(RunForward(effect_id, key.segment, key.phase, key.step, key.microbatch, box, row))
    else:
        scale, count = state.scalars[key.step]
        seed = scale / count
        out.append(RunBackward(effect_id, key.segment, key.step, key.microbatch, box, seed))


def _count_in_flight(state: WorkerState, key: TaskKey) -> None:
    if key.microbatch not in state.open_microbatches:
        n_tasks = sum(task.microbatch == key.microbatch for task in state.tasks)
        state.open_microbatches[key.microbatch] = n_tasks
    state.max_in_flight = max(state.max_in_flight, len(state.open_microbatches))


def _close(state: WorkerState, out: list[WorkerEffect], elapsed_ms: float) -> TaskKey:
    """Book the task that just ended; its inputs are no longer needed."""
    key = state.running_key
    if key is None:
        raise InvariantError("a task ended that was not started")
    state.running_key = None
    state.finished.add(key)
    drop(state, out, list(state.mailbox.pop(key, {}).values()))
    if key.phase == "train":
        state.tasks_done += 1
        state.compute_ms += elapsed_ms
        state.open_microbatches[key.microbatch] -= 1
        if not state.open_microbatches[key.microbatch]:
            del state.open_microbatches[key.microbatch]
    elif key.phase == "generate":
        state.rows = {index: row for index, row in state.rows.items() if not _is_answered(state, index)}
        state.finished = {k for k in state.finished if k.phase != "generate" or k.microbatch in state.rows}
    return key


def forward_done(state: WorkerState, out: list[WorkerEffect], outcome: ForwardDone) -> None:
    """Send each output to the segments that need it, and the loss to the orchestrator."""
    key = _close(state, out, outcome.elapsed_ms)
    outputs = dict(outcome.outputs)
    logits = outputs.pop(LOGITS, None)
    if logits is not None:
        response = GenerateResponse(
            **state.ids, request=state.take_request(), step=key.step, index=key.microbatch
        )
        out.append(Send(ORCHESTRATOR, response, {LOGITS: logits}))
        out.append(Release((logits,)))
    if outcome.loss_sum is not None:
        _report_loss(state, out, key, outcome.loss_sum)
    for reference, handle in outputs.items():
        hold(state, handle)
        for segment in _routes(state).targets.get(reference, ()):
            target = TaskKey(key.phase, key.step, key.microbatch, "F", segment)
            if reference in slots_of(state.plan, target):
                _deliver(state, out, target, reference, handle)
        drop(state, out, [handle])


def backward_done(state: WorkerState, out: list[WorkerEffect], outcome: BackwardDone) -> None:
    """Send each edge's gradient to the segment that made the edge's tensor."""
    key = _close(state, out, outcome.elapsed_ms)
    for edge, handle in sorted(outcome.gradients.items()):  # one order in every process
        hold(state, handle)
        target = TaskKey("train", key.step, key.microbatch, "B", _routes(state).gradient_target[edge])
        _deliver(state, out, target, edge, handle)
        drop(state, out, [handle])


def _deliver(state: WorkerState, out: list[WorkerEffect], key: TaskKey, slot: str, handle: Handle) -> None:
    pnode: PNodeId = state.plan.segments[key.segment].pnode
    if pnode == state.pnode:
        reason = _accept(state, key, slot, handle)
        if reason:
            raise InvariantError(f"own tensor {slot!r} does not fit the plan: {reason}")
        return
    scale, count = state.scalars.get(key.step, (1.0, 0))
    hop = Hop(
        **state.ids, request=state.take_request(), phase=key.phase, step=key.step,
        microbatch=key.microbatch,
        direction=key.direction, segment=key.segment, slot=slot, loss_scale=scale, target_count=count,
        row=state.rows.get(key.microbatch, -1) if key.phase == "generate" else -1,
    )  # fmt: skip
    out.append(Send(pnode, hop, {slot: handle}))


def _report_loss(state: WorkerState, out: list[WorkerEffect], key: TaskKey, loss_sum: float) -> None:
    if key.phase == "train":
        state.loss_sums[key.microbatch] = loss_sum
    elif key.phase == "evaluate":
        response = EvalResponse(
            **state.ids,
            request=state.take_request(),
            step=key.step,
            index=key.microbatch,
            loss_sum=loss_sum,
        )
        out.append(Send(ORCHESTRATOR, response))


def _routes(state: WorkerState) -> Routes:
    if state.routes is None:
        raise InvariantError("worker has no routes")
    return state.routes
