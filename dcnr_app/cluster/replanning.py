"""Whether the VNodes of a running session should be placed anew, and why. Pure; called at step boundaries.

A PNode that left must be replaced at once. All else is a wish: PNodes that joined, one that is twice as slow
as the plan takes it for (it keeps some VNodes, it is not evicted), or as fast again. A wish is granted if it
gains enough, repays what the move costs, and nothing was moved too often of late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec

from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.placement import Placement, place
from dcnr_app.cluster.prediction import predict
from dcnr_app.errors import InvalidError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings

WINDOW = 5
"""Steps whose median says how fast a PNode is: one slow step is nothing."""
STRAGGLER = 2.0
LEAST_GAIN = 0.10
MOST_PER_MINUTE = 3
_MINUTE_MS = 60_000.0
_QUIET_MS = 10_000.0
"""No wish is granted for so long after a move, twice as long for each of the moves that came before it."""
_CALM_MS = 300_000.0
"""One of those is forgiven for each time of this length without a move."""
_MOST_DAMPING = 6
_FLAPPING, _FLAP_MS = 3, 600_000.0
"""A PNode that was lost so often within this time is not waited for when it joins."""
_MOVE_MS = 2_000.0
"""What a move costs beside the bytes that it carries: agreeing on the plan, a pipeline that fills anew."""

Why = Literal["left", "joined", "slower", "faster"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may be worth a new placement. `slowdowns` says how much slower than measured each PNode
    is, where it is at all."""

    why: Why
    pnodes: tuple[PNodeId, ...]
    slowdowns: Mapping[PNodeId, float] = {}

    @property
    def is_forced(self) -> bool:
        """Whether the session cannot go on without a new placement."""
        return self.why == "left"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and the reason in words. `placement` is there where it is to move."""

    reason: str
    cause: Cause | None = None
    placement: Placement | None = None


class ReplanState(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen since the last move, and how often it was moved.

    `windows` has the last compute times by PNode, `assumed` how much slower than measured the present plan
    takes a PNode for.
    """

    windows: Mapping[PNodeId, tuple[float, ...]] = {}
    assumed: Mapping[PNodeId, float] = {}
    moves_ms: tuple[float, ...] = ()
    losses_ms: Mapping[PNodeId, tuple[float, ...]] = {}
    damping: int = 0


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A session at a step boundary: the present placement, the PNodes that are there now (`facts`), and how
    many steps are left."""

    network: Network
    settings: TrainingSettings
    assignment: Mapping[str, PNodeId]
    pnodes: tuple[PNodeId, ...]
    facts: ClusterFacts
    known: frozenset[PNodeId]
    """PNodes that were weighed for the present placement, those that it left out among them."""
    steps_left: int
    now_ms: float


def observed(state: ReplanState, compute_ms: Mapping[PNodeId, float]) -> ReplanState:
    """The state after a step in which the PNodes computed for so long."""
    windows = {
        pnode: (*state.windows.get(pnode, ()), took_ms)[-WINDOW:] for pnode, took_ms in compute_ms.items()
    }
    return msgspec.structs.replace(state, windows=windows)


def lost(state: ReplanState, pnode: PNodeId, now_ms: float) -> ReplanState:
    """The state after a PNode was lost."""
    recent = [at for at in state.losses_ms.get(pnode, ()) if now_ms - at < _FLAP_MS]
    return msgspec.structs.replace(state, losses_ms={**state.losses_ms, pnode: (*recent, now_ms)})


def moved(state: ReplanState, cause: Cause, now_ms: float) -> ReplanState:
    """The state after a new placement was taken up: what was seen before says nothing of it."""
    damping = _damping(state, now_ms)
    if not cause.is_forced:
        damping = min(_MOST_DAMPING, damping + 1)
    return msgspec.structs.replace(
        state,
        windows={},
        assumed=dict(cause.slowdowns),
        moves_ms=(*(at for at in state.moves_ms if now_ms - at < _MINUTE_MS), now_ms),
        damping=damping,
    )


def find_cause(state: ReplanState, situation: Situation) -> Cause | None:
    """What may be worth a new placement now, most urgent first; cheap enough for every step."""
    there = set(situation.facts.pnodes)
    slowdowns = {p: s for p, s in _slowdowns(state, situation).items() if p in there}
    left = tuple(pnode for pnode in situation.pnodes if pnode not in there)
    if left:
        return Cause(why="left", pnodes=left, slowdowns=slowdowns)
    slower = tuple(
        pnode for pnode, now in slowdowns.items() if now >= STRAGGLER * state.assumed.get(pnode, 1.0)
    )
    if slower:
        return Cause(why="slower", pnodes=slower, slowdowns=slowdowns)
    joined = tuple(
        pnode
        for pnode in situation.facts.pnodes
        if pnode not in situation.known and not _is_flapping(state, pnode, situation.now_ms)
    )
    if joined:
        return Cause(why="joined", pnodes=joined, slowdowns=slowdowns)
    faster = tuple(
        pnode for pnode, before in state.assumed.items() if slowdowns.get(pnode, before) <= before / STRAGGLER
    )
    return Cause(why="faster", pnodes=faster, slowdowns=slowdowns) if faster else None


def decide(state: ReplanState, situation: Situation) -> Decision:
    """Whether to move, and where to. Searches for a placement only where there is a cause that may be
    granted: call it off the event loop.

    Raises InvalidError if a PNode left and the network fits on those that are there no more.
    """
    cause = find_cause(state, situation)
    if cause is None:
        return Decision(reason="nothing changed")
    held_back = "" if cause.is_forced else _why_not_now(state, situation.now_ms)
    if held_back:
        return Decision(reason=f"{_told(cause)}: {held_back}", cause=cause)
    facts = slowed(situation.facts, cause.slowdowns)
    try:
        found = place(situation.network, situation.settings, facts)
    except InvalidError:
        if cause.is_forced:
            raise
        return Decision(reason=f"{_told(cause)}: the network fits on no placement of these", cause=cause)
    if cause.is_forced:
        return Decision(reason=_told(cause), cause=cause, placement=found)
    return _weighed(situation, cause, facts, found)


def slowed(facts: ClusterFacts, slowdowns: Mapping[PNodeId, float]) -> ClusterFacts:
    """The facts with the rates of these PNodes divided by their slowdowns."""
    devices = []
    for device in facts.devices:
        by = slowdowns.get(device.pnode, 1.0)
        rates = dict(device.gemm_flops) or {"float32": device.flops_per_s("float32")}
        devices.append(
            msgspec.structs.replace(
                device,
                gemm_flops={dtype: rate / by for dtype, rate in rates.items()},
                memory_bytes_per_s=device.row_bytes_per_s / by,
            )
        )
    return msgspec.structs.replace(facts, devices=tuple(devices))


def _slowdowns(state: ReplanState, situation: Situation) -> dict[PNodeId, float]:
    """How much slower than measured each PNode is against the one that keeps its promise best. A prediction
    that is off for all of them alike says nothing of any.

    Until every PNode's window is full, it is what the present plan assumes.
    """
    windows = [state.windows.get(pnode, ()) for pnode in situation.pnodes]
    if any(len(window) < WINDOW for window in windows):
        return dict(state.assumed)
    known = situation.facts.only(tuple(dict.fromkeys((*situation.facts.pnodes, *situation.pnodes))))
    planned = slowed(known, state.assumed)
    expected = predict(situation.network, situation.settings, planned, situation.assignment).compute_ms()
    ratios = {
        pnode: state.assumed.get(pnode, 1.0) * median(window) / max(1e-6, expected.get(pnode, 0.0))
        for pnode, window in zip(situation.pnodes, windows, strict=True)
        if pnode in expected
    }
    best = min(ratios.values(), default=1.0)
    found = {pnode: ratio / best for pnode, ratio in ratios.items()}
    return {pnode: by for pnode, by in found.items() if by >= STRAGGLER or pnode in state.assumed}


def _damping(state: ReplanState, now_ms: float) -> int:
    if not state.moves_ms:
        return state.damping
    return max(0, state.damping - int((now_ms - state.moves_ms[-1]) / _CALM_MS))


def _why_not_now(state: ReplanState, now_ms: float) -> str:
    recent = [at for at in state.moves_ms if now_ms - at < _MINUTE_MS]
    if len(recent) >= MOST_PER_MINUTE:
        return f"moved {len(recent)} times within a minute"
    if state.moves_ms:
        quiet_ms = _QUIET_MS * 2.0 ** _damping(state, now_ms)
        if now_ms - state.moves_ms[-1] < quiet_ms:
            return f"moved {(now_ms - state.moves_ms[-1]) / 1e3:.0f} s ago, waiting {quiet_ms / 1e3:.0f} s"
    return ""


def _is_flapping(state: ReplanState, pnode: PNodeId, now_ms: float) -> bool:
    recent = [at for at in state.losses_ms.get(pnode, ()) if now_ms - at < _FLAP_MS]
    return len(recent) >= _FLAPPING


def _weighed(situation: Situation, cause: Cause, facts: ClusterFacts, found: Placement) -> Decision:
    """Move if it gains enough, and repays itself within the steps that are left."""
    now = predict(situation.network, situation.settings, facts, situation.assignment)
    gain_ms = now.step_ms - found.prediction.step_ms
    told = f"{_told(cause)}: {now.step_ms:.1f} → {found.prediction.step_ms:.1f} ms per step predicted"
    if gain_ms < LEAST_GAIN * now.step_ms:
        return Decision(reason=f"{told}, not enough to move", cause=cause)
    cost_ms = _MOVE_MS + _carrying_ms(situation, facts, found)
    if gain_ms * situation.steps_left < cost_ms:
        return Decision(reason=f"{told}, not repaid in {situation.steps_left} steps", cause=cause)
    return Decision(reason=told, cause=cause, placement=found)


def _carrying_ms(situation: Situation, facts: ClusterFacts, found: Placement) -> float:
    """How long the parameters and slots that change their PNode are under way, one link after the other."""
    total = 0.0
    for node in situation.network.nodes:
        source, target = situation.assignment[node.name], found.assignment[node.name]
        if source != target:
            n_elements = sum(_count(spec.shape) for spec in node.vnode.params().values())
            total += 3 * 4 * n_elements / facts.link(source, target).bytes_per_s * 1e3
    return total


def _count(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _told(cause: Cause) -> str:
    names = ", ".join(cause.pnodes)
    match cause.why:
        case "left":
            return f"{names} left"
        case "joined":
            return f"{names} joined"
        case "slower":
            by = max(cause.slowdowns[pnode] for pnode in cause.pnodes)
            return f"{names} {by:.1f} times slower than measured"
        case "faster":
            return f"{names} as fast as measured again"
