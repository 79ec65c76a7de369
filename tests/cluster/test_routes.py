"""Where tensors go under a plan, and why one does not belong here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from dcnr_app.cluster.routes import TaskKey, build_routes, slots_of, why_not_mine
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_edges
from dcnr_app.nodes.graph.network import Network
from tests.cluster.random_networks import placed
from tests.cluster.test_schedule import planned
from tests.sim.samples import SETTINGS, plan_of, pnode_ids, tiny

HERE, THERE = pnode_ids(2)
NETWORK = tiny()
PLAN = plan_of(
    NETWORK,
    SETTINGS,
    {entry.name: THERE if entry.name.startswith("block/0/n") else HERE for entry in NETWORK.nodes},
)
FIRST, AWAY = PLAN.segments[:2]


def key(**changes: object) -> TaskKey:
    """The first task of the segment that is elsewhere."""
    return TaskKey("train", 1, 0, "F", AWAY.index)._replace(**changes)


@given(placed())
@settings(max_examples=100, deadline=None)
def test_every_crossing_edge_has_its_target_and_its_way_back(
    case: tuple[Network, dict[str, PNodeId], tuple[PNodeId, ...]],
) -> None:
    network, _, _ = case
    plan = planned(case)
    routes = build_routes(plan)
    of_node = {name: segment.index for segment in plan.segments for name in segment.nodes}
    expected: dict[str, set[int]] = {}
    backward: dict[str, int] = {}
    for edge in network_edges(network):
        source, target = of_node.get(edge.source), of_node.get(edge.target)
        if target is not None and source != target:
            expected.setdefault(edge.reference, set()).add(target)
            if source is not None and edge.key in plan.segments[target].gradients_out:
                backward[edge.key] = source
    assert {reference: set(found) for reference, found in routes.targets.items()} == expected
    assert all(len(found) == len(set(found)) for found in routes.targets.values())
    assert routes.gradient_target == backward


def test_slots_are_inputs_forward_gradients_backward_and_what_the_logits_need_in_generation() -> None:
    last = PLAN.segments[PLAN.cost_segment]
    assert "targets:0" in slots_of(PLAN, key(segment=last.index))
    assert "targets:0" not in slots_of(PLAN, key(segment=last.index, phase="generate"))
    assert slots_of(PLAN, key()) == AWAY.needs
    assert slots_of(PLAN, key(direction="B")) == AWAY.gradients_in
    assert slots_of(PLAN, key(direction="B", phase="generate")) == ()


def test_a_tensor_that_fits_is_mine() -> None:
    (slot,) = AWAY.needs
    (edge, *_) = AWAY.gradients_in
    assert why_not_mine(PLAN, THERE, key(), slot) == ""
    assert why_not_mine(PLAN, THERE, key(direction="B"), edge) == ""
    assert why_not_mine(PLAN, THERE, key(phase="evaluate", microbatch=99), slot) == ""


@pytest.mark.parametrize(
    ("pnode", "changes", "slot", "reason"),
    [
        (THERE, {"segment": -1}, "embed:0", "segment -1 is not in the plan"),
        (THERE, {"segment": 99}, "embed:0", "segment 99 is not in the plan"),
        (HERE, {}, "embed:0", f"segment 1 runs on {THERE}, not on {HERE}"),
        (THERE, {}, "head:0", "segment 1 has no input 'head:0'"),
        (THERE, {"direction": "B"}, "embed:0", "segment 1 has no gradient 'embed:0'"),
        (THERE, {"microbatch": 4}, "embed:0", "microbatch 4 is not in 0..3"),
        (THERE, {"microbatch": -1}, "embed:0", "microbatch -1 is not in 0..3"),
        (THERE, {"direction": "B", "phase": "evaluate"}, "x", "there is no backward in phase evaluate"),
        (THERE, {"direction": "B", "phase": "generate"}, "x", "there is no backward in phase generate"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_with_the_reason(
    pnode: PNodeId, changes: dict, slot: str, reason: str
) -> None:
    assert why_not_mine(PLAN, pnode, key(**changes), slot) == reason
