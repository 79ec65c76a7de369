"""The worker core: a PNode's side of the step protocol. Pure: no IO, no clock, no arrays.

Arrival of a tensor only makes a task ready; training tasks run in list order (DESIGN §5). One compute effect
is under way at a time. Stages of a step: computing -> [collecting -> awaiting-sites] -> measuring -> deciding
-> applying -> [awaiting-copies <-> storing] -> [capturing] -> computing of the next step.
"""

from __future__ import annotations

from dcnr_app.cluster import worker_stages, worker_tasks
from dcnr_app.cluster.effects import (
    Leave,
    Prepare,
    Release,
    Send,
    WorkerEffect,
)
from dcnr_app.cluster.inputs import (
    BackwardDone,
    Captured,
    DecisionApplied,
    Done,
    Finished,
    ForwardDone,
    Handle,
    Handles,
    Input,
    Lost,
    Measured,
    Outcome,
    Prepared,
    Received,
    SitesDone,
    Slept,
    TaskFailed,
)
from dcnr_app.cluster.messages import (
    AnyMessage,
    Commit,
    Configure,
    EvalRequest,
    GenerateRequest,
    GradientsReady,
    Hop,
    LoadDone,
    LoadState,
    ParameterCopy,
    Refused,
    SiteGradient,
    Status,
    Stop,
    TrainRequest,
)
from dcnr_app.cluster.routes import build_routes
from dcnr_app.cluster.worker_state import WorkerState, drop, drop_everything, hold
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR, PNodeId


def step(state: WorkerState, event: Input, now_ms: float) -> tuple[WorkerState, tuple[WorkerEffect, ...]]:
    """Take one input; returns the state (the same object, owned by the caller) and the effects to carry
    out."""
    out: list[WorkerEffect] = []
    match event:
        case Received(sender, message, tensors):
            state = _receive(state, out, sender, message, tensors)
        case Finished(effect_id, outcome):
            _finish(state, out, effect_id, outcome, now_ms)
        case Lost(peer, reason):
            if peer == ORCHESTRATOR:
                state = _leave(state, out, f"the orchestrator is gone: {reason}")
            elif state.configure is not None and peer in state.plan.pnodes:
                what, where = f"lost PNode {peer}: {reason}", f"PNode {state.pnode}"
                worker_stages.fail(state, out, what, where, lost=peer)
        case Slept(gap_ms):
            if state.configure is not None:
                what = f"{state.pnode} stood still for {gap_ms / 1000.0:.1f} s"
                worker_stages.fail(state, out, what, f"PNode {state.pnode}", lost=state.pnode)
        case _:
            raise InvariantError(f"a worker cannot take {type(event).__name__}")
    worker_stages.advance(state, out)
    if state.running != state.timed:
        state.timed, state.started_ms = state.running, now_ms
    return state, tuple(out)


def status(state: WorkerState, now_ms: float, received_bytes: int = 0) -> Status | None:
    """How far this PNode is, for the orchestrator; None outside a session. `received_bytes` since it
    started."""
    if state.configure is None:
        return None
    key = state.running_key
    is_task = bool(state.running and key is not None)
    where = f"{key.phase} {key.direction} of segment {key.segment}" if is_task and key else state.stage
    return Status(
        **state.ids,
        step=state.step,
        stage=state.stage,
        tasks_done=len(state.stored) if state.stage == "loading" else state.tasks_done,
        running_ms=now_ms - state.started_ms if state.running else 0.0,
        where=where,
        received_bytes=received_bytes,
    )


# ---- messages


def _receive(
    state: WorkerState, out: list[WorkerEffect], sender: PNodeId, message: AnyMessage, tensors: Handles
) -> WorkerState:
    for handle in tensors.values():
        hold(state, handle)
    refusal = ""
    if isinstance(message, Configure):
        if sender != ORCHESTRATOR:
            refusal = f"only the orchestrator configures, not {sender}"
        else:
            state, refusal = _configure(state, out, message)
    elif isinstance(message, Refused):
        _take_refusal(state, out, sender, message)
    else:
        refusal = _why_refused(state, sender, message)
        if not refusal and isinstance(message, Stop):
            return _leave(state, out, "the session ended")
        # Nothing but Configure and Stop helps a failed worker; its peers learn of it from the orchestrator.
        if not refusal and state.stage != "failed":
            refusal = _handle(state, out, message, tensors)
    if refusal:
        tag = str(type(message).__struct_config__.tag)
        generation = int(getattr(message, "generation", 0))
        out.append(Send(sender, Refused(reason=refusal, tag=tag, generation=generation)))
    drop(state, out, list(tensors.values()))
    return state


def _take_refusal(state: WorkerState, out: list[WorkerEffect], sender: PNodeId, message: Refused) -> None:
    configure = state.configure
    if configure is None or sender not in (ORCHESTRATOR, *configure.plan.pnodes):
        return
    if message.generation in (0, configure.generation):
        what = f"{sender} refused {message.tag or 'a message'}: {message.reason}"
        worker_stages.fail(state, out, what, f"PNode {state.pnode}")


def _leave(state: WorkerState, out: list[WorkerEffect], reason: str) -> WorkerState:
    """Out of the session: nothing is kept but the numbers, so that a late outcome is known as one, and an
    orchestrator that others have replaced meanwhile is too."""
    drop_everything(state, out)
    out.append(Leave(reason))
    return WorkerState(
        pnode=state.pnode,
        next_id=state.next_id,
        next_request=state.next_request,
        left=state.left if state.configure is None else (state.configure.session, state.configure.generation),
    )


def _why_refused(state: WorkerState, sender: PNodeId, message: AnyMessage) -> str:
    configure = state.configure
    generation = getattr(message, "generation", None)
    if configure is None or generation is None:
        return f"{state.pnode} is in no session"
    if getattr(message, "session", None) != configure.session:
        return f"{state.pnode} is in session {configure.session}"
    if generation != configure.generation:
        return f"generation {generation} is not the current one, {configure.generation}"
    between_workers = isinstance(message, Hop | SiteGradient | ParameterCopy)
    if between_workers and sender not in configure.plan.pnodes:
        return f"{sender} is not in the plan"
    if not between_workers and sender != ORCHESTRATOR:
        return f"{sender} is not the orchestrator"
    return ""


def _configure(state: WorkerState, out: list[WorkerEffect], message: Configure) -> tuple[WorkerState, str]:
    current = state.configure
    if current is not None and message.session == current.session:
        if message.generation < current.generation:
            return state, f"generation {message.generation} is older than {current.generation}"
        if message.generation == current.generation:
            if state.prepared is not None:
                worker_stages.send_ready(state, out)
            return state, ""
    if message.session == state.left[0] and message.generation <= state.left[1]:
        if message.generation < state.left[1]:
            return state, f"generation {message.generation} is older than {state.left[1]}"
        return state, ""  # a repeated one: this PNode has left that generation and lost what it had
    if state.pnode not in message.plan.pnodes:
        return state, f"{state.pnode} is not in the plan"
    drop_everything(state, out)
    fresh = WorkerState(
        pnode=state.pnode,
        stage="preparing",
        configure=message,
        routes=build_routes(message.plan),
        step=message.first_step,
        next_id=state.next_id,
        next_request=state.next_request,
        left=state.left,
    )
    out.append(Prepare(fresh.run(), message))
    return fresh, ""


def _handle(state: WorkerState, out: list[WorkerEffect], message: AnyMessage, tensors: Handles) -> str:
    """Carry out a message of the current generation; returns why it is refused, or an empty text."""
    match message:
        case TrainRequest() | EvalRequest() | GenerateRequest():
            return worker_tasks.accept_request(state, message, tensors)
        case Hop():
            return worker_tasks.accept_hop(state, message, tensors)
        case SiteGradient():
            key = f"{message.parameter}|{message.site}"
            return _keep(state, state.sites, message.step, key, tensors.get("gradient"))
        case ParameterCopy():
            return _keep(state, state.copies, message.step, message.parameter, tensors.get("weight"))
        case LoadState():
            return worker_stages.accept_load(state, message.parameter, tensors)
        case LoadDone():
            state.loads_expected = message.count
        case Commit():
            return _commit(state, out, message)
        case _:
            return f"a worker does not take {type(message).__struct_config__.tag}"
    return ""


def _keep(
    state: WorkerState, boxes: dict[int, dict[str, Handle]], at: int, key: str, handle: Handle | None
) -> str:
    if handle is None:
        return "its tensor is missing"
    if at > state.step + 1:  # a peer can be one step ahead: see worker_tasks
        return f"step {at} is ahead of {state.step + 1}"
    if at >= state.step and key not in boxes.setdefault(at, {}):
        boxes[at][key] = handle
        hold(state, handle)
    return ""


def _commit(state: WorkerState, out: list[WorkerEffect], message: Commit) -> str:
    if message.step < state.step:
        out.append(Send(ORCHESTRATOR, worker_stages.applied(state, message.step)))
        return ""
    if message.step > state.step or state.stage not in (
        "deciding", "applying", "awaiting-copies", "storing"
    ):  # fmt: skip
        return f"step {message.step} is not decided here yet"
    if state.stage == "deciding":
        state.commit = message
        state.stage = "applying"
    return ""


# ---- outcomes


def _finish(
    state: WorkerState, out: list[WorkerEffect], effect_id: int, outcome: Outcome, now_ms: float
) -> None:
    is_current = effect_id == state.running
    if is_current:
        state.running = 0
    if not is_current or state.stage == "failed":
        _release_outcome(out, outcome)
        return
    state.progress_ms = now_ms
    match outcome:
        case TaskFailed(what, where, is_memory):
            worker_stages.fail(state, out, what, where, is_memory=is_memory)
        case Prepared():
            state.prepared = outcome
            will_load = state.configure is not None and state.configure.will_load
            state.stage = "loading" if will_load else "computing"
            worker_stages.send_ready(state, out)
        case ForwardDone():
            worker_tasks.forward_done(state, out, outcome)
        case BackwardDone():
            worker_tasks.backward_done(state, out, outcome)
        case SitesDone(gradients):
            worker_stages.send_sites(state, out, gradients)
        case Measured(norms, bytes_sent, bytes_received):
            out.append(Send(ORCHESTRATOR, GradientsReady(
                **state.ids, step=state.step, norms=norms, loss_sums=state.loss_sums,
                max_in_flight=state.max_in_flight, compute_ms=state.compute_ms, bytes_sent=bytes_sent,
                bytes_received=bytes_received,
            )))  # fmt: skip
            state.stage = "deciding"
        case DecisionApplied(copies):
            worker_stages.send_copies(state, out, copies)
        case Done():
            worker_stages.stored(state, out)
        case Captured(parts):
            worker_stages.send_state(state, out, parts)
        case _:
            raise InvariantError(f"a worker cannot take outcome {type(outcome).__name__}")


def _release_outcome(out: list[WorkerEffect], outcome: Outcome) -> None:
    handles: list[Handle] = []
    match outcome:
        case ForwardDone(outputs):
            handles = list(outputs.values())
        case BackwardDone(gradients) | SitesDone(gradients):
            handles = list(gradients.values())
        case DecisionApplied(copies):
            handles = list(copies.values())
        case Captured(parts):
            handles = [handle for part in parts.values() for handle in part.values()]
        case _:
            pass
    if handles:
        out.append(Release(tuple(handles)))
