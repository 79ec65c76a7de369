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
from dcnr_app.cluster import coordinator_generation as generation
from dcnr_app.cluster import coordinator_recovery as recovery
from dcnr_app.cluster import coordinator_steps as steps
from dcnr_app.cluster import coordinator_watch as watch
from dcnr_app.cluster.coordinator_state import (
    Assignment,
    CoordinatorState,
    drop_everything,
    release,
    release_loads,
    release_parts,
)
from dcnr_app.cluster.effects import (
    CoordinatorEffect,
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
    Joined,
    LeaveRequested,
    Lost,
    Outcome,
    Received,
    Restored,
    StopRequested,
    TaskFailed,
    Tick,
)
from dcnr_app.cluster.messages import (
    Address,
    AnyMessage,
    Applied,
    EvalResponse,
    Failed,
    GenerateResponse,
    GradientsReady,
    LoadDone,
    LoadState,
    Ready,
    Refused,
    StateDone,
    StatePart,
    Status,
    Stop,
)
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId


def start(
    job: Assignment, members: tuple[Address, ...], now_ms: float = 0.0
) -> tuple[CoordinatorState, tuple[CoordinatorEffect, ...]]:
    """A session's state and its first effects: configure every PNode of the plan."""
    state = CoordinatorState(
        job, step=job.resume_step, t=job.t, scale=job.scale, durable_step=job.resume_step
    )
    state.now_ms = now_ms
    state.generation = job.plan.generation
    state.validated = set(job.validated)
    state.order = list(job.plan.pnodes)
    state.members = {member.pnode: member for member in members if member.pnode in job.plan.pnodes}
    if job.recovery is not None:
        state.devices = {device.pnode: device for device in job.recovery.devices}
    state.outside = tuple(member for member in members if member.pnode not in job.plan.pnodes)
    out: list[CoordinatorEffect] = []
    recovery.configure_all(state, out)
    return state, tuple(out)


def step(
    state: CoordinatorState, event: Input, now_ms: float
) -> tuple[CoordinatorState, tuple[CoordinatorEffect, ...]]:
    """Take one input; returns the state (the same object, owned by the caller) and the effects to carry
    out."""
    state.now_ms = now_ms
    out: list[CoordinatorEffect] = []
    match event:
        case Received(sender, message, tensors):
            _receive(state, out, sender, message, tensors)
        case Finished(effect_id, outcome):
            _finish(state, out, effect_id, outcome)
        case Lost(peer, reason):
            recovery.lose(state, out, peer, reason)
        case Joined(member, device):
            if device is not None:
                recovery.know(state, device)
            recovery.join(state, out, member)
        case LeaveRequested(pnode):
            recovery.let_go(state, out, pnode)
        case Tick():
            watch.tick(state, out)
        case StopRequested():
            state.stop_requested = True
        case GenerateRequested():
            generation.ask(state, out, event)
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
            number = int(getattr(message, "generation", 0))
            out.append(Send(sender, Refused(reason=refusal, tag=tag, generation=number)))
        return
    if state.is_over or state.stage == "recovering":
        release(out, tensors)
        return
    if not isinstance(message, Status):
        state.progress_ms = state.now_ms
    match message:
        case StatePart():
            captures.gather(state, out, sender, message.step, message.parameter, tensors)
        case StateDone():
            captures.finish(state, out, sender, message.step, message.count)
        case GenerateResponse():
            generation.deliver(state, out, message.index, tensors)
        case _:
            release(out, tensors)
            _handle(state, out, sender, message)


def _why_refused(state: CoordinatorState, sender: PNodeId, message: AnyMessage) -> str:
    if isinstance(message, Refused) and sender not in state.members:
        return "of a PNode that is not here"
    if sender not in state.job.plan.pnodes:
        return f"{sender} is not in the plan"
    if isinstance(message, Refused):
        return "" if message.generation in (0, state.job.plan.generation) else "of an older generation"
    if getattr(message, "session", None) != state.job.session:
        return f"the session here is {state.job.session}"
    number = getattr(message, "generation", None)
    if number != state.job.plan.generation:
        return f"generation {number} is not the current one, {state.job.plan.generation}"
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
            if message.is_lost and state.job.recovery is not None:
                recovery.report(state, out, sender, message)
            elif message.is_memory and state.job.recovery is not None:
                recovery.shrink(state, out, sender, message.what)
            else:
                kind = "lost" if message.is_lost else "failed"
                recovery.fail(state, out, message.what, message.where, kind)
        case Status():
            watch.note(state, sender, message)
        case Refused():
            recovery.fail(
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
        recovery.fail(state, out, outcome.what, outcome.where, "store")
        return
    if effect_id and effect_id == state.commit_effect:
        state.commit_effect = 0
        recovery.advance(state, out)
        return
    if effect_id != state.effect or state.is_over:
        _release_late(out, outcome)
        return
    if state.stage == "recovering":
        if isinstance(outcome, Restored):
            recovery.adopt(state, out, outcome)
        else:
            recovery.generation_begun(state, out)
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


def _release_late(out: list[CoordinatorEffect], outcome: Outcome) -> None:
    """Give back what comes for nobody."""
    if isinstance(outcome, BatchReady):
        for tensors in outcome.microbatches:
            release(out, tensors)
    elif isinstance(outcome, Restored):
        release_parts(out, outcome.parts)
