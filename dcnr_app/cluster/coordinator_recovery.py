"""The coordinator core's recovery: a lost PNode or a wanted move ends the generation, and the next one goes
on from the newest durable state. Pure.

Order: what is being written ends -> (lost PNodes may come back for a while) -> the generation's row is
durable -> the state is read -> a plan for the PNodes that are there -> configuring. Steps that were committed
after that state are replayed with their recorded decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dcnr_app.cluster import coordinator_bench as bench
from dcnr_app.cluster.coordinator_state import (
    Assignment,
    CoordinatorState,
    Recovery,
    drop_everything,
    release_parts,
)
from dcnr_app.cluster.devices import ClusterFacts, DeviceFacts
from dcnr_app.cluster.effects import (
    BeginGeneration,
    CoordinatorEffect,
    Drained,
    Evict,
    Recovering,
    Replanned,
    Restore,
    Send,
    SessionFailed,
    Undeliverable,
)
from dcnr_app.cluster.inputs import Handles, Restored
from dcnr_app.cluster.messages import Address, Configure, Failed, Stop
from dcnr_app.cluster.planning import plan_on
from dcnr_app.cluster.routes import outside_references
from dcnr_app.errors import DcnrError, InvariantError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network

MEMORY_SHARE = 0.6
"""What is counted of a PNode's free memory after it ran out: the prediction was wrong."""
SUSPECT_MS = 1_500.0
"""How long a PNode that others cannot reach may take to be seen as lost here too."""


# ---- what happens to PNodes


def lose(state: CoordinatorState, out: list[CoordinatorEffect], peer: PNodeId, reason: str) -> None:
    """A PNode is gone. If it had a part in the plan, the session goes on without it where that is allowed."""
    member = state.members.pop(peer, None)
    state.leaving.discard(peer)
    if state.is_over:
        return
    if member is not None and state.job.recovery is not None:
        out.append(Evict(peer, reason))  # else its process would never be offered again
    if peer not in state.job.plan.pnodes:
        return
    if state.job.recovery is None:
        fail(state, out, f"lost PNode {peer}: {reason}", peer, "lost")
        return
    state.missing.add(peer)
    if state.stage != "recovering" and is_at_rest(state):
        withdraw_requests(state, out, f"lost PNode {peer}: {reason}")
        return
    if _is_poisoned(state, out, peer):
        return
    begin(state, out, f"lost PNode {peer}: {reason}", peer)


def report(state: CoordinatorState, out: list[CoordinatorEffect], sender: PNodeId, failed: Failed) -> None:
    """A worker lost a peer. The peer's own streams will break too, or only the way between the two is broken:
    either way the generation is over. A way that stays broken costs one of the two its place for a while."""
    named = PNodeId(failed.peer)
    peer = named if named in state.job.plan.pnodes else sender
    if is_at_rest(state):
        return
    left_out = bench.note_failure(state, sender, peer)
    if left_out:
        begin(state, out, f"{sender}: {failed.what}; {left_out} is left out for a while", PNodeId(""))
        return
    state.suspect = peer if peer != sender else PNodeId("")
    begin(state, out, f"{sender}: {failed.what}", PNodeId(""))


def shrink(state: CoordinatorState, out: list[CoordinatorEffect], pnode: PNodeId, what: str) -> None:
    """Memory ran out on a PNode: its process is replaced, and its next share is for less memory. A network
    that fits nowhere ends as one that kills PNodes in turn."""
    device = state.devices.get(pnode)
    if device is not None and device.free_memory_bytes is not None:
        state.memory_limits[pnode] = int(device.free_memory_bytes * MEMORY_SHARE)
        know(state, device)
    lose(state, out, pnode, what)


def know(state: CoordinatorState, device: DeviceFacts) -> None:
    """Take up what was measured of a PNode; no more memory is counted than it has shown to have."""
    limit = state.memory_limits.get(device.pnode)
    free = device.free_memory_bytes
    if limit is not None and (free is None or free > limit):
        device = msgspec.structs.replace(device, free_memory_bytes=limit)
    state.devices[device.pnode] = device


def join(state: CoordinatorState, out: list[CoordinatorEffect], member: Address) -> None:
    """A PNode can be used: at once if the session waits for one, else after a step boundary."""
    pnode = member.pnode
    if state.is_over or state.job.recovery is None:
        return
    was_known = state.members.get(pnode)
    state.members[pnode] = member
    state.missing.discard(pnode)
    if pnode not in state.order:
        state.order.append(pnode)
    if state.stage == "recovering":
        advance(state, out)
    elif pnode not in state.job.plan.pnodes:
        if not bench.is_benched(state, pnode):
            state.handover = f"PNode {pnode} joined"
    elif was_known is not None and was_known != member and not is_at_rest(state):
        begin(state, out, f"PNode {pnode} was started anew", pnode)


def let_go(state: CoordinatorState, out: list[CoordinatorEffect], pnode: PNodeId) -> None:
    """A PNode wants to leave: at once if it holds nothing, else after a step boundary."""
    if pnode not in state.members:
        return
    state.leaving.add(pnode)
    if state.is_over or pnode not in state.job.plan.pnodes or is_at_rest(state):
        _drain(state, out)
    else:
        state.handover = f"PNode {pnode} leaves"
        if state.stage == "recovering":
            advance(state, out)


def is_at_rest(state: CoordinatorState) -> bool:
    """Whether training is over and its last state kept: nothing can be lost any more."""
    return state.stage == "trained" and state.capture is None


def withdraw_requests(state: CoordinatorState, out: list[CoordinatorEffect], reason: str) -> None:
    """Nobody will answer what was asked for generation."""
    for request in state.generation_requests.values():
        out.append(Undeliverable(request, reason))
    state.generation_requests = {}


# ---- from one generation to the next


def begin(state: CoordinatorState, out: list[CoordinatorEffect], reason: str, pnode: PNodeId) -> None:
    """End the generation; `pnode` is the lost one, or empty for a move that is wanted."""
    if state.is_over:
        return
    if state.stage != "recovering":
        out.append(Recovering(reason, pnode, state.step))
        drop_everything(state, out)
        state.commit_effect = state.effect if state.stage == "committing" else 0
        state.effect = 0
        state.stage = "recovering"
        state.reason, state.handover = reason, ""
        state.since_ms = state.now_ms
        state.gradients, state.waiting, state.decision = {}, set(), None
        state.blocked, state.is_held = None, False
    advance(state, out)


def advance(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Go on with the recovery as far as what is there allows."""
    recovery = state.job.recovery
    if state.stage != "recovering" or recovery is None:
        return
    if state.commit_effect or state.capture_effect or state.effect:
        return
    if not _available(state):
        _drain(state, out)  # whoever is left wants to go, and what counts is durable
        return
    waited_ms = state.now_ms - state.since_ms
    may_return = any(not bench.is_benched(state, pnode) for pnode in state.missing)
    is_waiting = (may_return and waited_ms < recovery.grace_ms) or (
        state.suspect in state.members and waited_ms < SUSPECT_MS
    )
    if not is_waiting:
        state.effect = state.take_id()
        out.append(BeginGeneration(state.effect, state.generation + 1, state.reason))


def generation_begun(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """The generation's row is durable."""
    state.generation += 1
    state.effect = state.take_id()
    out.append(Restore(state.effect))


def adopt(state: CoordinatorState, out: list[CoordinatorEffect], restored: Restored) -> None:
    """Plan for the PNodes that are there and configure them."""
    state.effect = 0
    recovery = _recovery(state)
    if not _available(state):
        release_parts(out, restored.parts)
        return
    old = state.job.plan
    try:
        job = next_assignment(state, recovery.graph, restored)
    except DcnrError as error:
        release_parts(out, restored.parts)
        fail(state, out, str(error), "plan", "failed")
        return
    for pnode in state.members:
        if pnode in old.pnodes and pnode not in job.plan.pnodes:
            out.append(Send(pnode, Stop(**state.ids)))
    state.job = job
    state.step, state.t, state.scale = restored.step, restored.t, restored.scale
    state.durable_step, state.skips = restored.step, 0
    state.validated = set(restored.validated)
    state.missing, state.suspect = set(), PNodeId("")
    state.handover = ""  # whoever came or wanted to go meanwhile is accounted for
    _drain(state, out)
    out.append(Replanned(job.plan, restored.step, state.reason))
    configure_all(state, out)


def configure_all(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Tell every PNode of the plan to take it up."""
    job = state.job
    state.stage = "configuring"
    state.waiting = set(job.plan.pnodes)
    state.planned_ms = state.progress_ms = state.now_ms
    state.statuses = {}  # how long something hung in an earlier generation is no measure for this one
    configure = Configure(
        **state.ids,
        network=job.network,
        plan=job.plan,
        settings=job.settings,
        first_step=job.resume_step + 1,
        members=(*state.outside, *(m for m in state.members.values() if m.pnode in job.plan.pnodes)),
        will_load=bool(job.loads),
    )
    out.extend(Send(pnode, configure) for pnode in job.plan.pnodes)


def next_assignment(state: CoordinatorState, graph: Network, restored: Restored) -> Assignment:
    """The assignment of the new generation. Raises InvalidError if the network cannot be placed."""
    job, pnodes = state.job, _available(state)
    devices = tuple(state.devices[pnode] for pnode in pnodes if pnode in state.devices)
    facts = ClusterFacts(devices=devices) if len(devices) == len(pnodes) else None
    plan = plan_on(graph, job.settings, pnodes, facts, state.generation)
    return msgspec.structs.replace(
        job,
        plan=plan,
        inputs=outside_references(graph, plan),
        resume_step=restored.step,
        t=restored.t,
        scale=restored.scale,
        recorded={step: row for step, row in restored.recorded.items() if step > restored.step},
        checked_device_class=restored.device_class,
        loads=loads_for(graph, plan.assignment, plan.pnodes, restored.parts),
    )


def loads_for(
    graph: Network,
    assignment: Mapping[str, PNodeId],
    pnodes: tuple[PNodeId, ...],
    parts: Mapping[str, Handles],
) -> dict[PNodeId, dict[str, Handles]]:
    """What each PNode must load: owners take all slots, other sites of shared parameters the weight."""
    if not parts:
        return {}
    loads: dict[PNodeId, dict[str, Handles]] = {pnode: {} for pnode in pnodes}
    for name, parameter in network_parameters(graph).items():
        slots = parts[name]
        owner = assignment[parameter.sites[0][0]]
        loads[owner][name] = slots
        for node, _ in parameter.sites:
            if assignment[node] != owner:
                loads[assignment[node]][name] = {"weight": slots["weight"]}
    return loads


def fail(state: CoordinatorState, out: list[CoordinatorEffect], what: str, where: str, kind: str) -> None:
    """The session cannot go on here; what is durable stays. Only the first failure is told."""
    if state.is_over:
        return
    drop_everything(state, out)
    state.stage = "failed"
    out.append(SessionFailed(what, where, kind))


def _available(state: CoordinatorState) -> tuple[PNodeId, ...]:
    there = [pnode for pnode in state.order if pnode in state.members and pnode not in state.leaving]
    reachable = [pnode for pnode in there if not bench.is_benched(state, pnode)]
    return tuple(reachable or there)


def _drain(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    for pnode in sorted(state.leaving):
        state.members.pop(pnode, None)
        out.append(Drained(pnode))
    state.leaving = set()


def _is_poisoned(state: CoordinatorState, out: list[CoordinatorEffect], peer: PNodeId) -> bool:
    """Whether VNodes end every PNode that they run on; then the session has failed."""
    blamed = bench.note_death(state, peer)
    if not blamed:
        return False
    shown = ", ".join(blamed[:6]) + (", …" if len(blamed) > 6 else "")
    lost = len(state.deaths)
    what = f"PNodes were lost {lost} times without a step in between; all of them ran {shown}"
    fail(state, out, what, peer, "lost")
    return True


def _recovery(state: CoordinatorState) -> Recovery:
    if state.job.recovery is None:
        raise InvariantError("a session that may not recover was told to")
    return state.job.recovery
