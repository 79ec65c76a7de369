"""The coordinator core: a session's two-phase steps, validation and checkpoints. Pure: no IO, no clock, no
arrays.

Stages: new -> configuring -> [loading] -> batching -> training -> committing -> batching of the next step; at
a boundary that needs one: settling (all have applied) -> [validating] -> batching or trained. A checkpoint is
gathered beside the next step; no step is committed more than `checkpoint_every` after the last durable
checkpoint.
"""

from __future__ import annotations

from dcnr_app.cluster import coordinator_captures as captures
from dcnr_app.cluster import coordinator_evaluation as evaluation
from dcnr_app.cluster import coordinator_steps as steps
from dcnr_app.cluster.coordinator_state import (
    Assignment,
    CoordinatorState,
    drop_everything,
    release,
    release_loads,
)
from dcnr_app.cluster.effects import (
    CoordinatorEffect,
    Deliver,
    Send,
    WorkerReady,
)
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Finished,
    GenerateRequested,
    Handles,
    Input,
    Lost,
    Outcome,
    Received,
    StopRequested,
    TaskFailed,
)
from dcnr_app.cluster.messages import (
    Address,
    AnyMessage,
    Applied,
    Configure,
    EvalResponse,
    Failed,
    GenerateRequest,
    GenerateResponse,
    GradientsReady,
    LoadDone,
    LoadState,
    Ready,
    Refused,
    StateDone,
    StatePart,
    Stop,
)
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId


def start(
    job: Assignment, members: tuple[Address, ...]
) -> tuple[CoordinatorState, tuple[CoordinatorEffect, ...]]:
    """A session's state and its first effects: configure every PNode of the plan."""
    state = CoordinatorState(
        job, step=job.resume_step, t=job.t, scale=job.scale, durable_step=job.resume_step
    )
    state.stage = "configuring"
    state.waiting = set(job.plan.pnodes)
    configure = Configure(
        **state.ids,
        network=job.network,
        plan=job.plan,
        settings=job.settings,
        first_step=job.resume_step + 1,
        members=members,
        will_load=bool(job.loads),
    )
    return state, tuple(Send(pnode, configure) for pnode in job.plan.pnodes)


def step(
    state: CoordinatorState, event: Input, now_ms: float
) -> tuple[CoordinatorState, tuple[CoordinatorEffect, ...]]:
    """Take one input; returns the state (the same object, owned by the caller) and the effects to carry
    out."""
    del now_ms  # nothing here depends on time yet: liveness comes as Lost
    out: list[CoordinatorEffect] = []
    match event:
        case Received(sender, message, tensors):
            _receive(state, out, sender, message, tensors)
        case Finished(effect_id, outcome):
            _finish(state, out, effect_id, outcome)
        case Lost(peer, reason):
            if peer in state.job.plan.pnodes:
                steps.fail(state, out, f"lost PNode {peer}: {reason}", peer, "lost")
        case StopRequested():
            state.stop_requested = True
        case GenerateRequested():
            _generate(state, out, event)
        case _:
            raise InvariantError(f"a coordinator cannot take {type(event).__name__}")
    return state, tuple(out)


def leave(state: CoordinatorState) -> tuple[CoordinatorEffect, ...]:
    """Effects that end the session for the PNodes; whatever comes after it changes nothing."""
    out: list[CoordinatorEffect] = [Send(pnode, Stop(**state.ids)) for pnode in state.job.plan.pnodes]
    drop_everything(state, out)
    state.stage = "left"
    return tuple(out)


# ---- messages


def _receive(
    state: CoordinatorState,
    out: list[CoordinatorEffect],
    sender: PNodeId,
    message: AnyMessage,
    tensors: Handles,
) -> None:
    refusal = _why_refused(state, sender, message)
    if refusal:
        release(out, tensors)
        if not isinstance(message, Refused):
            tag = str(type(message).__struct_config__.tag)
            generation = int(getattr(message, "generation", 0))
            out.append(Send(sender, Refused(reason=refusal, tag=tag, generation=generation)))
        return
    if state.is_over:
        release(out, tensors)
        return
    match message:
        case StatePart():
            captures.gather(state, out, sender, message.step, message.parameter, tensors)
        case StateDone():
            captures.finish(state, out, sender, message.step, message.count)
        case GenerateResponse():
            _deliver(state, out, message.index, tensors)
        case _:
            release(out, tensors)
            _handle(state, out, sender, message)


def _why_refused(state: CoordinatorState, sender: PNodeId, message: AnyMessage) -> str:
    if sender not in state.job.plan.pnodes:
        return f"{sender} is not in the plan"
    if isinstance(message, Refused):
        return "" if message.generation in (0, state.job.plan.generation) else "of an older generation"
    if getattr(message, "session", None) != state.job.session:
        return f"the session here is {state.job.session}"
    generation = getattr(message, "generation", None)
    if generation != state.job.plan.generation:
        return f"generation {generation} is not the current one, {state.job.plan.generation}"
    return ""


def _handle(
    state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, message: AnyMessage
) -> None:
    match message:
        case Ready():
            _ready(state, out, sender, message)
        case GradientsReady():
            steps.take_gradients(state, out, sender, message)
        case Applied():
            _applied(state, out, sender, message)
        case EvalResponse():
            if state.stage == "validating" and message.step == state.step:
                evaluation.take(state, out, message.index, message.loss_sum)
                if evaluation.is_complete(state):
                    steps.next_step(state, out)
        case Failed():
            steps.fail(state, out, message.what, message.where, "lost" if message.is_lost else "failed")
        case Refused():
            steps.fail(
                state,
                out,
                f"{sender} refused {message.tag or 'a message'}: {message.reason}",
                sender,
                "refused",
            )
        case _:
            tag = str(type(message).__struct_config__.tag)
            out.append(Send(sender, Refused(reason=f"an orchestrator does not take {tag}", tag=tag)))


def _ready(state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, message: Ready) -> None:
    if state.stage != "configuring" or sender not in state.waiting:
        return
    state.waiting.discard(sender)
    state.device_classes[sender] = message.device_class
    out.append(WorkerReady(sender, message.pid, message.device_class))
    if state.waiting:
        return
    if not state.job.loads:
        steps.settle(state, out)
        return
    state.stage = "loading"
    state.waiting = set(state.job.plan.pnodes)
    for pnode in state.job.plan.pnodes:
        parameters = state.job.loads.get(pnode, {})
        for parameter, tensors in parameters.items():
            out.append(Send(pnode, LoadState(**state.ids, parameter=parameter), tensors))
        out.append(Send(pnode, LoadDone(**state.ids, count=len(parameters))))
    release_loads(out, state.job)


def _applied(
    state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, message: Applied
) -> None:
    is_awaited = state.stage in ("loading", "settling") and message.step == state.step
    if is_awaited and sender in state.waiting:
        state.waiting.discard(sender)
        if not state.waiting:
            steps.settle(state, out)


# ---- outcomes


def _finish(state: CoordinatorState, out: list[CoordinatorEffect], effect_id: int, outcome: Outcome) -> None:
    if effect_id == state.capture_effect:
        captured_step = captures.end(state, out)
        if isinstance(outcome, CheckpointWritten):
            steps.checkpoint_durable(state, out, captured_step)
            return
    if isinstance(outcome, TaskFailed):
        steps.fail(state, out, outcome.what, outcome.where, "store")
        return
    if effect_id != state.effect or state.is_over:
        if isinstance(outcome, BatchReady):
            for tensors in outcome.microbatches:
                release(out, tensors)
        return
    match outcome:
        case BatchReady():
            if state.stage == "batching":
                steps.send_batch(state, out, outcome)
                return
            evaluation.begin(state, out, outcome)
            if evaluation.is_complete(state):
                steps.next_step(state, out)
        case Done():
            steps.broadcast(state, out)
        case _:
            raise InvariantError(f"a coordinator cannot take outcome {type(outcome).__name__}")


# ---- generation


def _generate(state: CoordinatorState, out: list[CoordinatorEffect], event: GenerateRequested) -> None:
    if state.stage != "trained":
        raise InvariantError("generation needs a session at rest", why=f"it is {state.stage}")
    request = state.take_request()
    state.generation_requests[request] = event.request
    for pnode, references in state.job.inputs.items():
        needed = {
            reference
            for segment in state.job.plan.segments
            if segment.pnode == pnode
            for reference in segment.text_needs
        }
        tensors = {name: event.tensors[name] for name in references if name in needed}
        if tensors:
            message = GenerateRequest(
                **state.ids, request=request, step=state.step, index=request, row=event.row
            )
            out.append(Send(pnode, message, tensors))
    release(out, event.tensors)


def _deliver(state: CoordinatorState, out: list[CoordinatorEffect], index: int, tensors: Handles) -> None:
    request = state.generation_requests.pop(index, None)
    if request is None or "logits" not in tensors:
        release(out, tensors)
        return
    out.append(Deliver(request, tensors["logits"]))
