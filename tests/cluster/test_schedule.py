"""A plan's lists are whole, ordered, within the limit, and PNodes that follow them never wait in a circle."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.placement import tensor_bytes
from dcnr_app.cluster.plan import Plan, Task
from dcnr_app.cluster.schedule import build_plan, segment_links, text_nodes
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import infer_shapes
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.program import compile_segment, network_facts
from tests.cluster.facts import cluster, device
from tests.cluster.random_networks import ROWS, network_of, placed
from tests.runtime.networks import node
from tests.sim.samples import SETTINGS, plan_for, plan_of, pnode_ids, tiny, with_settings

Placed = tuple[Network, dict[str, PNodeId], tuple[PNodeId, ...]]
EXAMPLES = settings(max_examples=150, deadline=None)


def planned(case: Placed, microbatches: int = 3, in_flight: int = 0) -> Plan:
    """The plan of a random placement."""
    network, places, pnodes = case
    wanted = TrainingSettings(batch=ROWS * microbatches, microbatches=microbatches, in_flight=in_flight)
    return build_plan(network, places, pnodes, wanted, generation=4)


def needs_of(plan: Plan, task: Task) -> set[tuple[str, int]]:
    """(reference or edge, microbatch) that a task waits for, inputs from outside left out."""
    segment = plan.segments[task.segment]
    made = {reference for each in plan.segments for reference in each.gives}
    names = [r for r in segment.needs if r in made] if task.direction == "F" else segment.gradients_in
    return {(name, task.microbatch) for name in names}


def gifts_of(plan: Plan, task: Task) -> set[tuple[str, int]]:
    """(reference or edge, microbatch) that a task makes."""
    segment = plan.segments[task.segment]
    names = segment.gives if task.direction == "F" else segment.gradients_out
    return {(name, task.microbatch) for name in names}


@given(placed(), st.integers(1, 4), st.integers(0, 4))
@EXAMPLES
def test_every_task_stands_once_on_its_pnodes_list(case: Placed, microbatches: int, in_flight: int) -> None:
    plan = planned(case, microbatches, in_flight)
    expected = Counter()
    for segment in plan.segments:
        for microbatch in range(microbatches):
            expected[segment.pnode, Task("F", microbatch, segment.index)] += 1
            if segment.has_backward:
                expected[segment.pnode, Task("B", microbatch, segment.index)] += 1
    assert Counter((pnode, task) for pnode, tasks in plan.tasks.items() for task in tasks) == expected


@given(placed(), st.integers(1, 4), st.integers(0, 4))
@EXAMPLES
def test_pnodes_that_follow_their_lists_finish(case: Placed, microbatches: int, in_flight: int) -> None:
    plan = planned(case, microbatches, in_flight)
    left = {pnode: list(tasks) for pnode, tasks in plan.tasks.items()}
    there: set[tuple[str, int]] = set()
    forward: set[tuple[int, int]] = set()
    while any(left.values()):
        ready = [pnode for pnode, tasks in left.items() if tasks and needs_of(plan, tasks[0]) <= there]
        assert ready, f"all wait: {left}"
        for pnode in ready:
            task = left[pnode].pop(0)
            there |= gifts_of(plan, task)
            if task.direction == "F":
                forward.add((task.segment, task.microbatch))
            assert (task.segment, task.microbatch) in forward, "backward before forward"


@given(placed(), st.integers(1, 4), st.integers(0, 4))
@EXAMPLES
def test_each_segment_takes_microbatches_in_order(case: Placed, microbatches: int, in_flight: int) -> None:
    plan = planned(case, microbatches, in_flight)
    for tasks in plan.tasks.values():
        for direction in "FB":
            for segment in plan.segments:
                order = [
                    t.microbatch for t in tasks if (t.direction, t.segment) == (direction, segment.index)
                ]
                assert order == sorted(order)


@given(placed(), st.integers(1, 4), st.integers(0, 4))
@EXAMPLES
def test_no_pnode_opens_more_microbatches_than_the_plan_keeps_in_flight(
    case: Placed, microbatches: int, in_flight: int
) -> None:
    plan = planned(case, microbatches, in_flight)
    assert 1 <= plan.in_flight <= microbatches
    assert not in_flight or plan.in_flight == min(in_flight, microbatches)
    for tasks in plan.tasks.values():
        left = Counter(task.microbatch for task in tasks)
        opened: set[int] = set()
        for task in tasks:
            opened.add(task.microbatch)
            assert len(opened) <= plan.in_flight
            left[task.microbatch] -= 1
            if not left[task.microbatch]:
                opened.remove(task.microbatch)


@given(placed())
@EXAMPLES
def test_segments_hold_every_vnode_once_are_connected_and_fit_together(case: Placed) -> None:
    network, places, _ = case
    plan = planned(case)
    held = Counter(name for segment in plan.segments for name in segment.nodes)
    assert held == Counter(entry.name for entry in network.nodes if not entry.vnode.is_host)
    made = {reference for segment in plan.segments for reference in segment.gives}
    outside = {"tokenizer:0", "targets:0"}
    for index, segment in enumerate(plan.segments):
        assert segment.index == index
        assert {places[name] for name in segment.nodes} == {segment.pnode}
        assert set(segment.needs) <= made | outside
        assert set(segment.text_needs) <= set(segment.needs)
        assert _is_connected(network, segment.nodes)
    incoming = Counter(edge for segment in plan.segments for edge in segment.gradients_in)
    assert incoming == Counter(edge for segment in plan.segments for edge in segment.gradients_out)
    assert set(incoming.values()) <= {1}
    assert all(a < b for a, b in segment_links(plan.segments))
    assert "loss" in plan.segments[plan.cost_segment].nodes


def _is_connected(network: Network, names: tuple[str, ...]) -> bool:
    reached, waiting = set(), [names[0]]
    pairs = [(reference[:-2], entry.name) for entry in network.nodes for reference in entry.inputs]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        near = {b for a, b in pairs if a == name} | {a for a, b in pairs if b == name}
        waiting += [other for other in near & set(names) if other not in reached]
    return reached == set(names)


@given(placed())
@EXAMPLES
def test_the_runtime_agrees_with_every_segment(case: Placed) -> None:
    network, _, _ = case
    plan = planned(case)
    facts = network_facts(network, ROWS)
    for segment in plan.segments:
        program = compile_segment(facts, segment, "train")
        if "side" in segment.nodes:  # nothing in training depends on it
            assert set(program.needs) <= set(segment.needs)
        else:
            assert set(program.needs) == set(segment.needs)
        assert set(program.gradients_in) == set(segment.gradients_in)
        assert program.gradients_out == frozenset(segment.gradients_out)
        assert not program.zero_gradients
        assert program.keeps == segment.has_backward
        answering = compile_segment(facts, segment, "generate")
        assert set(answering.needs) == set(segment.text_needs)


@given(placed())
@EXAMPLES
def test_hop_bytes_are_the_sizes_of_what_crosses(case: Placed) -> None:
    network, _, _ = case
    plan = planned(case)
    specs = infer_shapes(network, ROWS)
    expected: Counter[str] = Counter()
    for task in {Task(d, 0, s.index) for s in plan.segments for d in "FB" if d == "F" or s.has_backward}:
        here = plan.segments[task.segment].pnode
        for name, _ in gifts_of(plan, task):
            takers = [
                other.pnode
                for other in plan.segments
                if name in (other.needs if task.direction == "F" else other.gradients_in)
            ]
            for there in takers:
                if there != here:
                    expected[f"{here}>{there}"] += tensor_bytes(specs[name.partition(">")[0]])
    assert plan.hop_bytes == expected


@pytest.mark.parametrize("n_pnodes", [1, 2, 3])
def test_one_microbatch_in_flight_means_forward_backward_in_turn(n_pnodes: int) -> None:
    plan = plan_for(tiny(), with_settings(in_flight=1), n_pnodes)
    for tasks in plan.tasks.values():
        assert [(task.direction, task.microbatch) for task in tasks] == [
            (direction, microbatch) for microbatch in range(4) for direction in "FB"
        ]


def test_the_last_pnode_of_a_chain_turns_around_and_the_first_runs_ahead() -> None:
    plan = plan_for(tiny(), SETTINGS, 3)
    first, *_, last = ("".join(task.direction for task in plan.tasks[pnode]) for pnode in plan.pnodes)
    assert last == "FBFBFBFB"
    assert first.startswith("FFF")


def test_a_skip_over_another_pnode_makes_two_segments_of_one_pnode() -> None:
    network = tiny()
    away = {"block/0/up", "block/0/gelu", "block/0/down"}
    here, there = pnode_ids(2)
    places = {entry.name: there if entry.name in away else here for entry in network.nodes}
    plan = plan_of(network, SETTINGS, places)
    assert [segment.pnode for segment in plan.segments] == [here, there, here]
    assert "block/0/residual_1:0" in plan.segments[0].gives
    assert "block/0/residual_1:0" in plan.segments[2].needs
    assert "block/0/residual_1:0>block/0/residual_2:0" in plan.segments[2].gradients_out


def test_heads_that_stay_do_not_hold_up_those_that_go() -> None:
    network = tiny("tiny-gpt-per-head")
    plan = plan_of(
        network, SETTINGS, {e.name: pnode_ids(2)[e.name.endswith("1/head")] for e in network.nodes}
    )
    fan_out = next(segment for segment in plan.segments if "block/0/fan_out" in segment.nodes)
    assert not any("head" in name for name in fan_out.nodes)
    stays = next(segment for segment in plan.segments if "block/0/heads/0/head" in segment.nodes)
    assert stays.pnode == fan_out.pnode
    assert stays.level == fan_out.level + 1


def test_measured_facts_change_the_order_of_tasks_and_nothing_else() -> None:
    network, pnodes = tiny(), pnode_ids(2)
    places = dict(plan_for(network, SETTINGS, 2).assignment)
    slow = cluster(device("p1", flops=1e3), device("p2", flops=1e9))
    plain = build_plan(network, places, pnodes, SETTINGS, generation=1)
    timed = build_plan(network, places, pnodes, SETTINGS, generation=1, facts=slow)
    assert msgspec.structs.replace(timed, tasks=plain.tasks) == plain
    assert {pnode: sorted(tasks) for pnode, tasks in timed.tasks.items()} == {
        pnode: sorted(tasks) for pnode, tasks in plain.tasks.items()
    }


def test_a_plan_depends_on_nothing_but_its_arguments_and_carries_the_generation() -> None:
    network = tiny("tiny-gpt-per-head")
    first, second = (plan_for(network, SETTINGS, 3, generation=9) for _ in range(2))
    assert first == second
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert first.generation == 9
    assert sum(first.predicted_flops.values()) == sum(plan_for(network, SETTINGS, 1).predicted_flops.values())


def test_text_nodes_are_the_logits_and_what_is_above_them() -> None:
    network = network_of([])
    assert text_nodes(network) == {"tokens", "tokenizer", "embed", "total", "head"}
    assert not text_nodes(msgspec.structs.replace(network, outputs={"loss": "loss:0"}))


def test_a_vnode_beside_the_logits_is_not_needed_for_them() -> None:
    network = network_of([node("aside", tiny().nodes[6].vnode, "embed")])
    shortened = msgspec.structs.replace(network, outputs={"loss": "loss:0", "logits": "embed:0"})
    assert "aside" not in text_nodes(shortened)
