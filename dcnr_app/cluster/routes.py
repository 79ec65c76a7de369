"""Where tensors go under a Plan, and whether a message fits it. Pure lookups, built once per generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from dcnr_app.cluster.messages import Phase
from dcnr_app.cluster.plan import Plan, Segment
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network, split_ref


class TaskKey(NamedTuple):
    """One task of one step; in phases other than train, `microbatch` is the request's index."""

    phase: Phase
    step: int
    microbatch: int
    direction: Literal["F", "B"]
    segment: int


class Routes(msgspec.Struct, frozen=True):
    """Target segments of each reference, and the segment whose backward wants each edge's gradient."""

    targets: Mapping[str, tuple[int, ...]]
    gradient_target: Mapping[str, int]


def build_routes(plan: Plan) -> Routes:
    """The lookups of a plan."""
    targets: dict[str, list[int]] = {}
    gradient_target: dict[str, int] = {}
    for segment in plan.segments:
        for reference in segment.needs:
            targets.setdefault(reference, []).append(segment.index)
        for edge in segment.gradients_in:
            gradient_target[edge] = segment.index
    return Routes({reference: tuple(found) for reference, found in targets.items()}, gradient_target)


def slots_of(plan: Plan, key: TaskKey) -> tuple[str, ...]:
    """Names of the tensors that the task needs before it can start; none for one that is never run."""
    segment = plan.segments[key.segment]
    if key.phase == "generate":
        return segment.text_needs if key.direction == "F" else ()
    return segment.needs if key.direction == "F" else segment.gradients_in


def why_not_mine(plan: Plan, pnode: PNodeId, key: TaskKey, slot: str) -> str:
    """Why a tensor does not belong to a task of this PNode, or an empty text."""
    if not 0 <= key.segment < len(plan.segments):
        return f"segment {key.segment} is not in the plan"
    segment: Segment = plan.segments[key.segment]
    if segment.pnode != pnode:
        return f"segment {key.segment} runs on {segment.pnode}, not on {pnode}"
    if key.direction == "B" and key.phase != "train":
        return f"there is no backward in phase {key.phase}"
    if slot not in (segment.needs if key.direction == "F" else segment.gradients_in):
        return f"segment {key.segment} has no {'input' if key.direction == 'F' else 'gradient'} {slot!r}"
    if key.phase == "train" and not 0 <= key.microbatch < plan.n_microbatches:
        return f"microbatch {key.microbatch} is not in 0..{plan.n_microbatches - 1}"
    return ""


def outside_references(network: Network, plan: Plan) -> dict[PNodeId, tuple[str, ...]]:
    """References that each PNode needs and that no segment makes: network inputs and outputs of host
    VNodes."""
    outside = {entry.name for entry in network.inputs}
    outside |= {node.name for node in network.nodes if node.vnode.is_host}
    found: dict[PNodeId, dict[str, None]] = {}
    for segment in plan.segments:
        for reference in segment.needs:
            if split_ref(reference)[0] in outside:
                found.setdefault(segment.pnode, {})[reference] = None
    return {pnode: tuple(references) for pnode, references in found.items()}
