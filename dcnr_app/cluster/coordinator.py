"""The coordinator core: a session's two-phase steps, validation and checkpoints. Pure: no IO, no clock, no
arrays.

Stages: new -> configuring -> [loading] -> batching -> training -> committing -> batching of the next step;
at a
boundary that needs one: settling (all have applied) -> [validating] -> batching or trained. A checkpoint is
gathered
beside the next step; no step is committed more than `checkpoint_every` after the last durable checkpoint.
"""

from __future__ import annotations

from dcnr_app.cluster import coordinator_steps as steps
from dcnr_app.cluster.coordinator_state import Assignment, CoordinatorState, release
from dcnr_app.cluster.effects import (
    BatchReady,
    CheckpointWritten,
    CoordinatorEffect,
    Deliver,
    Done,
    Finished,
    GenerateRequested,
    Handles,
    Input,
    Lost,
    Outcome,
    Received,
    Send,
    StopRequested,
    TaskFailed,
    WorkerReady,
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
            if peer in state.job.plan.pnodes and state.stage != "failed":
                steps.fail(state, out, f"lost PNode {peer}: {reason}", peer, "lost")
        case StopRequested():
            state.stop_requested = True
        case GenerateRequested():
            _generate(state, out, event)
        case _:
            raise InvariantError(f"a coordinator cannot take {type(event).__name__}")
    return state, tuple(out)


def leave(state: CoordinatorState) -> tuple[CoordinatorEffect, ...]:
    """Effects that end the session for the PNodes."""
    return tuple(Send(pnode, Stop(**state.ids)) for pnode in state.job.plan.pnodes)


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
    if state.stage == "failed":
        release(out, tensors)
        return
    match message:
        case StatePart():
            steps.gather_state(state, out, sender, message.step, message.parameter, tensors)
        case StateDone():
            steps.finish_state(state, out, sender, message.step, message.count)
        case GenerateResponse():
            _deliver(state, out, message.index, tensors)
        case _:
            release(out, tensors)
            _handle(state, out, sender, message)


def _why_refused(state: CoordinatorState, sender: PNodeId, message: AnyMessage) -> str:
    if isinstance(message, Refused):
        return "" if message.generation in (0, state.job.plan.generation) else "of an older generation"
    if sender not in state.job.plan.pnodes:
        return f"{sender} is not in the plan"
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
            if state.stage == "training" and message.step == state.step:
                state.gradients.setdefault(sender, message)
                if len(state.gradients) == len(state.job.plan.pnodes):
                    steps.conclude(state, out)
        case Applied():
            if message.step == state.step and sender in state.waiting:
                state.waiting.discard(sender)
                if not state.waiting:
                    _all_applied(state, out)
        case EvalResponse():
            if state.stage == "validating" and message.step == state.step:
                steps.take_evaluation(state, out, message.index, message.loss_sum)
        case Failed():
            steps.fail(state, out, message.what, message.where, "failed")
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
        steps.next_step(state, out)
        return
    state.stage = "loading"
    state.waiting = set(state.job.plan.pnodes)
    for pnode in state.job.plan.pnodes:
        parameters = state.job.loads.get(pnode, {})
        for parameter, tensors in parameters.items():
            out.append(Send(pnode, LoadState(**state.ids, parameter=parameter), tensors))
        out.append(Send(pnode, LoadDone(**state.ids, count=len(parameters))))
    shared = {
        f"{pnode}/{parameter}/{slot}": handle
        for pnode, parameters in state.job.loads.items()
        for parameter, tensors in parameters.items()
        for slot, handle in tensors.items()
    }
    release(out, shared)


def _all_applied(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    if state.stage == "loading":
        steps.next_step(state, out)
    elif state.stage == "settling":
        steps.settle(state, out)


# ---- outcomes


def _finish(state: CoordinatorState, out: list[CoordinatorEffect], effect_id: int, outcome: Outcome) -> None:
    if isinstance(outcome, TaskFailed):
        if state.stage != "failed":
            steps.fail(state, out, outcome.what, outcome.where, "store")
        return
    if effect_id == state.capture_effect and isinstance(outcome, CheckpointWritten):
        steps.checkpoint_durable(state, out)
        return
    if effect_id != state.effect or state.stage == "failed":
        if isinstance(outcome, BatchReady):
            for tensors in outcome.microbatches:
                release(out, tensors)
        return
    match outcome:
        case BatchReady():
            if state.stage == "batching":
                steps.send_batch(state, out, outcome)
            else:
                steps.begin_evaluation(state, out, outcome)
        case Done():
            steps.broadcast(state, out)
        case _:
            raise InvariantError(f"a coordinator cannot take outcome {type(outcome).__name__}")


# ---- generation


def _generate(state: CoordinatorState, out: list[CoordinatorEffect], event: GenerateRequested) -> None:
    if state.stage != "trained":
        release(out, event.tensors)
        raise InvariantError("generation needs a session at rest")
    request = state.take_request()
    state.generation_requests[request] = event.request
    for pnode, references in state.job.inputs.items():
        message = GenerateRequest(**state.ids, request=request, step=state.step, index=request, row=event.row)
        out.append(Send(pnode, message, {name: event.tensors[name] for name in references}))
    release(out, event.tensors)


def _deliver(state: CoordinatorState, out: list[CoordinatorEffect], index: int, tensors: Handles) -> None:
    request = state.generation_requests.pop(index, None)
    if request is None or "logits" not in tensors:
        release(out, tensors)
        return
    out.append(Deliver(request, tensors["logits"]))
