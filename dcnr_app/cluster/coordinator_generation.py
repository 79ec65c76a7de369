"""The coordinator core's generation: one forward at rest per token, answered with a row of logits. Pure."""

from __future__ import annotations

from dcnr_app.cluster.coordinator_state import CoordinatorState, release
from dcnr_app.cluster.effects import CoordinatorEffect, Deliver, Send, Undeliverable
from dcnr_app.cluster.inputs import GenerateRequested, Handles
from dcnr_app.cluster.messages import GenerateRequest
from dcnr_app.errors import InvariantError


def ask(state: CoordinatorState, out: list[CoordinatorEffect], event: GenerateRequested) -> None:
    """Send one prompt to the PNodes whose segments the logits depend on."""
    if state.stage != "trained":
        raise InvariantError("generation needs a session at rest", why=f"it is {state.stage}")
    if not set(state.job.plan.pnodes) <= set(state.members):
        release(out, event.tensors)
        out.append(Undeliverable(event.request, "a PNode of the plan is gone"))
        return
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


def deliver(state: CoordinatorState, out: list[CoordinatorEffect], index: int, tensors: Handles) -> None:
    """The logits came back."""
    request = state.generation_requests.pop(index, None)
    if request is None or "logits" not in tensors:
        release(out, tensors)
        return
    out.append(Deliver(request, tensors["logits"]))
