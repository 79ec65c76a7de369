"""The coordinator core's captures: gathering the state of all PNodes into one checkpoint. Pure."""

from __future__ import annotations

from dcnr_app.cluster.coordinator_state import Capture, CoordinatorState, release, release_parts
from dcnr_app.cluster.effects import CoordinatorEffect, WriteCheckpoint
from dcnr_app.cluster.inputs import Handles
from dcnr_app.errors import InvariantError
from dcnr_app.ids import PNodeId


def begin(state: CoordinatorState) -> None:
    """Expect the state of all owned parameters after this step."""
    state.capture = Capture(step=state.step, t=state.t, scale=state.scale, parts={}, counts={}, arrived={})


def gather(
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


def finish(
    state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, step: int, count: int
) -> None:
    """A PNode says how many parameters it sent."""
    capture = state.capture
    if capture is not None and capture.step == step:
        capture.counts[sender] = count
        _write_when_complete(state, out, capture)


def end(state: CoordinatorState, out: list[CoordinatorEffect]) -> int:
    """The checkpoint is written, or could not be: its tensors go back. Returns its step."""
    capture = state.capture
    if capture is None:
        raise InvariantError("a checkpoint was written that nobody asked for")
    state.capture, state.capture_effect = None, 0
    release_parts(out, capture.parts)
    return capture.step


def _write_when_complete(state: CoordinatorState, out: list[CoordinatorEffect], capture: Capture) -> None:
    is_complete = len(capture.counts) == len(state.job.plan.pnodes) and all(
        capture.arrived.get(pnode, 0) == count for pnode, count in capture.counts.items()
    )
    if not is_complete or state.capture_effect:
        return
    state.capture_effect = state.take_id()
    out.append(
        WriteCheckpoint(
            state.capture_effect,
            capture.step,
            capture.t,
            capture.scale.scale,
            capture.scale.finite_steps,
            capture.parts,
        )
    )
