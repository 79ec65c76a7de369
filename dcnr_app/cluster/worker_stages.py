"""The worker core's stages: from the last backward task to the next step. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.cluster import worker_tasks
from dcnr_app.cluster.effects import (
    ApplyDecision,
    CaptureState,
    CollectSites,
    Measure,
    Release,
    Send,
    StoreParameter,
    WorkerEffect,
)
from dcnr_app.cluster.inputs import Handles
from dcnr_app.cluster.messages import (
    Applied,
    Commit,
    Failed,
    ParameterCopy,
    Ready,
    SiteGradient,
    StateDone,
    StatePart,
)
from dcnr_app.cluster.worker_state import WorkerState, drop, hold
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR


def accept_load(state: WorkerState, parameter: str, tensors: Handles) -> str:
    """Keep one parameter's state until it is stored; returns why it is refused, or an empty text."""
    if state.configure is None or not state.configure.will_load:
        return "no parameters are awaited"
    if state.stage == "loading" and parameter not in state.loads and parameter not in state.stored:
        state.loads[parameter] = dict(tensors)
        for handle in tensors.values():
            hold(state, handle)
    return ""


def advance(state: WorkerState, out: list[WorkerEffect]) -> None:
    """Start the next compute effect if none is under way."""
    if state.running or state.configure is None:
        return
    match state.stage:
        case "loading":
            _advance_loading(state, out)
        case "computing":
            if not worker_tasks.start_next(state, out) and state.tasks_done == len(state.tasks):
                _close_backward(state, out)
        case "awaiting-sites":
            _measure_when_complete(state, out)
        case "applying":
            if state.commit is None:
                raise InvariantError("applying without a decision")
            out.append(ApplyDecision(state.run(), state.commit))
        case "awaiting-copies":
            _store_next_copy(state, out)
        case _:
            pass


def _advance_loading(state: WorkerState, out: list[WorkerEffect]) -> None:
    if state.loads:
        parameter, tensors = next(iter(state.loads.items()))
        out.append(StoreParameter(state.run(), parameter, tensors, is_load=True))
    elif len(state.stored) == state.loads_expected:
        state.stage = "computing"
        state.stored = set()
        out.append(Send(ORCHESTRATOR, applied(state, state.step - 1)))


def _close_backward(state: WorkerState, out: list[WorkerEffect]) -> None:
    if state.runtime.site_owner:
        state.stage = "collecting"
        out.append(CollectSites(state.run()))
    else:
        state.stage = "awaiting-sites"
        _measure_when_complete(state, out)


def _measure_when_complete(state: WorkerState, out: list[WorkerEffect]) -> None:
    remote = state.sites.get(state.step, {})
    if all(key in remote for key in state.runtime.sites_from):
        state.stage = "measuring"
        scale = state.scalars.get(state.step, (1.0, 0))[0]
        out.append(Measure(state.run(), dict(remote), scale))


def _store_next_copy(state: WorkerState, out: list[WorkerEffect]) -> None:
    commit = state.commit
    if commit is None:
        raise InvariantError("awaiting copies without a decision")
    expected = () if commit.skip else state.runtime.copies_from
    arrived = state.copies.get(state.step, {})
    missing = [parameter for parameter in expected if parameter not in arrived]
    if missing:
        return
    left = [parameter for parameter in expected if parameter not in state.stored]
    if left:
        parameter = left[0]
        state.stored.add(parameter)
        state.stage = "storing"
        out.append(StoreParameter(state.run(), parameter, {"weight": arrived[parameter]}, is_load=False))
        return
    _finish_step(state, out, commit)


def _finish_step(state: WorkerState, out: list[WorkerEffect], commit: Commit) -> None:
    out.append(Send(ORCHESTRATOR, applied(state, state.step)))
    leftover = [*state.sites.pop(state.step, {}).values(), *state.copies.pop(state.step, {}).values()]
    drop(state, out, leftover)
    state.scalars.pop(state.step, None)
    state.step += 1
    state.stored = set()
    state.finished = {key for key in state.finished if key.step >= state.step}
    state.tasks_done, state.commit, state.loss_sums = 0, None, {}
    state.max_in_flight, state.compute_ms = 0, 0.0
    state.stage = "computing"
    if commit.capture:
        state.stage = "capturing"
        out.append(CaptureState(state.run()))
    else:
        advance(state, out)


def send_sites(state: WorkerState, out: list[WorkerEffect], gradients: Handles) -> None:
    """Send the sums of sites owned elsewhere to their owners, then wait for those of others."""
    owners = state.runtime.site_owner
    for key, handle in gradients.items():
        parameter, _, site = key.partition("|")
        message = SiteGradient(**state.ids, step=state.step, parameter=parameter, site=site)
        out.append(Send(owners[key], message, {"gradient": handle}))
        out.append(Release((handle,)))
    state.stage = "awaiting-sites"


def send_copies(state: WorkerState, out: list[WorkerEffect], copies: Handles) -> None:
    """Send new values of owned shared parameters to the other PNodes with sites, then wait for theirs."""
    targets = state.runtime.copies_to
    for parameter, handle in copies.items():
        message = ParameterCopy(**state.ids, step=state.step, parameter=parameter)
        out.extend(Send(pnode, message, {"weight": handle}) for pnode in targets[parameter])
        out.append(Release((handle,)))
    state.stage = "awaiting-copies"


def stored(state: WorkerState, out: list[WorkerEffect]) -> None:
    """A parameter was taken over: a copy of this step, or one of those that are loaded."""
    if state.stage == "storing":
        state.stage = "awaiting-copies"
        return
    parameter = next(iter(state.loads))
    state.stored.add(parameter)
    drop(state, out, list(state.loads.pop(parameter).values()))


def send_state(state: WorkerState, out: list[WorkerEffect], parts: Mapping[str, Handles]) -> None:
    """Send the captured state to the orchestrator and go on with the step."""
    for parameter, tensors in parts.items():
        message = StatePart(**state.ids, step=state.step - 1, parameter=parameter)
        out.append(Send(ORCHESTRATOR, message, tensors))
        out.append(Release(tuple(tensors.values())))
    out.append(Send(ORCHESTRATOR, StateDone(**state.ids, step=state.step - 1, count=len(parts))))
    state.stage = "computing"


def fail(
    state: WorkerState,
    out: list[WorkerEffect],
    what: str,
    where: str,
    *,
    lost: str = "",
    is_memory: bool = False,
) -> None:
    """Go no further and tell the orchestrator, once. `lost` is the peer that went away, if that is why;
    `is_memory`: memory ran out."""
    if state.stage == "failed":
        return
    state.stage = "failed"
    message = Failed(**state.ids, what=what, where=where, is_lost=bool(lost), peer=lost, is_memory=is_memory)
    out.append(Send(ORCHESTRATOR, message))


def applied(state: WorkerState, at: int) -> Applied:
    """The message that step `at` is carried out here."""
    return Applied(**state.ids, step=at)


def send_ready(state: WorkerState, out: list[WorkerEffect]) -> None:
    """Tell the orchestrator that the plan is taken up."""
    prepared = state.runtime
    ready = Ready(**state.ids, device_class=prepared.device_class, pid=prepared.pid)
    out.append(Send(ORCHESTRATOR, ready))
