"""Placing by measured facts: every VNode once, memory and hints kept, the best there is on small cases, and a
word where more machines are slower."""

from __future__ import annotations

import time
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.costs import cost_tables, estimate
from dcnr_app.cluster.devices import ClusterFacts, equal_facts
from dcnr_app.cluster.memory_needs import PROCESS_BYTES
from dcnr_app.cluster.placement import Placement, place
from dcnr_app.cluster.prediction import predict
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.cluster.workload import workload_of
from dcnr_app.errors import InvalidError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.add import Add
from dcnr_app.nodes.attention_head import AttentionHead
from dcnr_app.nodes.broadcast import Broadcast
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.stack import Stack
from tests.cluster.facts import LARGE, cluster, clusters, device
from tests.cluster.random_networks import N_DIM, ROWS, network_of, networks
from tests.runtime.networks import node
from tests.sim.samples import pnode_ids, tiny


def training(microbatches: int, rows: int = ROWS) -> TrainingSettings:
    """Settings with so many microbatches."""
    return TrainingSettings(batch=rows * microbatches, microbatches=microbatches)


def without_hints(network: Network) -> Network:
    """The network without its placement hints."""
    nodes = tuple(msgspec.structs.replace(entry, pnode=None) for entry in network.nodes)
    return msgspec.structs.replace(network, nodes=nodes)


def check(network: Network, wanted: TrainingSettings, facts: ClusterFacts, found: Placement) -> None:
    """What holds for every placement."""
    assert list(found.assignment) == [entry.name for entry in network.nodes]
    for entry in network.nodes:
        if entry.vnode.is_host:
            assert found.assignment[entry.name] == ORCHESTRATOR
        elif entry.pnode is not None:
            assert found.assignment[entry.name] == facts.pnodes[entry.pnode % len(facts.pnodes)]
    used = {found.assignment[entry.name] for entry in network.nodes if not entry.vnode.is_host}
    assert found.pnodes == tuple(pnode for pnode in facts.pnodes if pnode in used)
    for share in found.prediction.pnodes:
        assert share.free_memory_bytes is None or share.memory_bytes <= 0.9 * share.free_memory_bytes
    if found.single_ms is not None and found.prediction.step_ms > 1.011 * found.single_ms:
        assert any("slower than the best one alone" in warning for warning in found.warnings)
    again = predict(network, wanted, facts, found.assignment)
    assert again.step_ms == pytest.approx(found.prediction.step_ms)
    plan = build_plan(network, found.assignment, found.pnodes, wanted, generation=1, facts=facts)
    assert set(plan.tasks) == used


@given(networks(max_middle=5), clusters(memory=True), st.integers(1, 5), st.data())
@settings(max_examples=80, deadline=None)
def test_every_placement_is_whole_fits_follows_hints_and_says_when_it_is_slow(
    network: Network, facts: ClusterFacts, microbatches: int, data: st.DataObject
) -> None:
    hints = [data.draw(st.sampled_from([None, None, None, 0, 1, 4])) for _ in network.nodes]
    nodes = tuple(
        entry if entry.vnode.is_host else msgspec.structs.replace(entry, pnode=hint)
        for entry, hint in zip(network.nodes, hints, strict=True)
    )
    network = msgspec.structs.replace(network, nodes=nodes)
    wanted = training(microbatches)
    try:
        found = place(network, wanted, facts)
    except InvalidError as error:
        assert "needed" in error.why
        assert min(d.free_memory_bytes or 0 for d in facts.devices) < LARGE
        return
    check(network, wanted, facts, found)
    assert place(network, wanted, facts) == found


@given(networks(max_middle=2), clusters(memory=True), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_small_cases_are_as_good_as_brute_force(
    network: Network, facts: ClusterFacts, microbatches: int
) -> None:
    wanted = training(microbatches)
    work = workload_of(network, ROWS)
    tables = cost_tables(work, facts, wanted)
    every = (estimate(tables, at) for at in product(range(len(facts.pnodes)), repeat=work.n_nodes))
    fitting = [found.step_ms for found in every if not found.excess_bytes]
    if not fitting:
        with pytest.raises(InvalidError, match="does not fit into the memory"):
            place(network, wanted, facts)
        return
    assert place(network, wanted, facts).prediction.step_ms == pytest.approx(min(fitting), abs=1e-6)


@pytest.mark.slow
@given(networks(max_middle=5).filter(lambda n: len(n.nodes) >= 10), clusters(), st.integers(1, 5))
@settings(max_examples=6, deadline=None)
def test_ten_vnodes_on_three_pnodes_are_as_good_as_brute_force(
    network: Network, facts: ClusterFacts, microbatches: int
) -> None:
    test_small_cases_are_as_good_as_brute_force.hypothesis.inner_test(network, facts, microbatches)


def test_unequal_speeds_get_unequal_shares() -> None:
    network = without_hints(tiny("tiny-gpt", layers=6))
    facts = cluster(device("slow", flops=1e5), device("fast", flops=3e5), round_trip_ms=0.01)
    found = place(network, training(16), facts)
    busy = found.prediction.compute_ms()
    assert set(busy) == {"slow", "fast"}
    assert max(busy.values()) < 1.25 * min(busy.values())
    assert found.prediction.step_ms < 0.9 * (found.single_ms or 0.0)
    assert found.warnings == ()


def test_a_pnode_that_would_only_slow_things_down_is_left_out() -> None:
    network = without_hints(tiny("tiny-gpt", layers=2))
    facts = cluster(device("fast", flops=1e9), device("slow", flops=1e5), round_trip_ms=50.0)
    found = place(network, training(4), facts)
    assert found.pnodes == ("fast",)
    assert found.prediction.step_ms == pytest.approx(found.single_ms)
    assert "slow not used" in found.warnings[0]


def test_using_all_where_fewer_are_faster_is_said() -> None:
    network = without_hints(tiny("tiny-gpt", layers=2))
    facts = cluster(device("fast", flops=1e9), device("slow", flops=1e5), round_trip_ms=50.0)
    found = place(network, training(4), facts, uses_all=True)
    assert set(found.pnodes) == {"fast", "slow"}
    assert "slower than the best one alone" in found.warnings[0]
    assert "fewer PNodes would be faster" in found.warnings[1]


def test_a_pnode_with_little_memory_gets_a_smaller_part_and_memory_is_named() -> None:
    network = without_hints(tiny("tiny-gpt", layers=4))
    wanted = training(4, rows=64)
    one, two = device("a", flops=1e8), device("b", flops=1e8)
    free = place(network, wanted, cluster(one, two, round_trip_ms=0.01))
    shares = {share.pnode: share.memory_bytes for share in free.prediction.pnodes}
    tight = int((PROCESS_BYTES + 0.4 * (shares["b"] - PROCESS_BYTES)) / 0.9)
    small = msgspec.structs.replace(two, free_memory_bytes=tight)
    found = place(network, wanted, cluster(one, small, round_trip_ms=0.01))
    (share,) = [share for share in found.prediction.pnodes if share.pnode == "b"]
    assert 0 < share.memory_bytes <= 0.9 * tight < shares["b"]
    assert found.prediction.step_ms > free.prediction.step_ms
    assert found.prediction.bottleneck.kind == "memory"


def test_what_fits_nowhere_is_refused_with_both_figures() -> None:
    facts = cluster(device("a", free_memory_bytes=10_000_000), device("b", free_memory_bytes=20_000_000))
    with pytest.raises(InvalidError) as raised:
        place(tiny(), training(2), facts)
    assert "a: " in raised.value.why
    assert "18 MB there" in raised.value.why
    assert raised.value.fix


def test_no_pnodes_and_more_pnodes_than_vnodes_are_refused() -> None:
    with pytest.raises(InvalidError, match="no PNode"):
        place(network_of([]), training(1), ClusterFacts(devices=()))
    with pytest.raises(InvalidError) as raised:
        place(network_of([]), training(1), equal_facts(pnode_ids(5)), uses_all=True)
    assert raised.value.fix == "use at most 4 workers"


def heads(n_heads: int) -> Network:
    """One layer of heads with more work than all else together."""
    names = [f"head_{index}" for index in range(n_heads)]
    middle = [
        node("fan_out", Broadcast(n_outputs=n_heads), "embed"),
        *(
            node(name, AttentionHead(n_dim=N_DIM, n_head_dim=64), f"fan_out:{index}")
            for index, name in enumerate(names)
        ),
        node("stack", Stack(), *names),
    ]
    return network_of(middle)


@pytest.mark.parametrize(("n_heads", "n_pnodes"), [(8, 2), (5, 3), (7, 4), (2, 4)])
def test_heads_run_side_by_side_where_one_microbatch_leaves_no_pipeline(n_heads: int, n_pnodes: int) -> None:
    network = _narrowed(heads(n_heads))
    facts = cluster(*(device(name, flops=1e5) for name in "abcd"[:n_pnodes]), bytes_per_s=1e9)
    found = place(network, training(1), facts)
    at = [found.assignment[f"head_{index}"] for index in range(n_heads)]
    counts = sorted(at.count(pnode) for pnode in set(at))
    assert len(counts) == min(n_heads, n_pnodes)
    assert counts[-1] <= -(-n_heads // n_pnodes) + 1
    assert found.prediction.step_ms < 0.8 * (found.single_ms or 0.0)


@given(networks(), st.integers(2, 4), clusters(most=1))
@settings(max_examples=30, deadline=None)
def test_all_pnodes_are_used_when_all_are_asked_for(
    network: Network, n_pnodes: int, one: ClusterFacts
) -> None:
    others = [device(name, flops=1e4 if name == "c" else 1e9) for name in "bcd"[: n_pnodes - 1]]
    facts = cluster(*one.devices, *others, round_trip_ms=5.0)
    found = place(network, training(2), facts, uses_all=True)
    assert found.pnodes == facts.pnodes
    check(network, training(2), facts, found)


def _narrowed(network: Network) -> Network:
    """The stack's sum with the embedding needs one width: a head of its own brings it back."""
    from dcnr_app.nodes.linear import Linear

    n_heads = sum(isinstance(entry.vnode, AttentionHead) for entry in network.nodes)
    back = node("back", Linear(n_in=64 * n_heads, n_out=N_DIM), "stack")
    nodes = []
    for entry in network.nodes:
        if isinstance(entry.vnode, Add):
            nodes += [back, msgspec.structs.replace(entry, inputs=("back:0", "embed:0"))]
        else:
            nodes.append(entry)
    return msgspec.structs.replace(network, nodes=tuple(nodes))


def test_hints_that_cost_time_are_followed_and_said() -> None:
    network = tiny("tiny-gpt-per-head")
    facts = cluster(device("a", flops=1e9), device("b", flops=1e9), round_trip_ms=20.0)
    found = place(network, training(2), facts)
    hinted = {entry.name: entry.pnode for entry in network.nodes if entry.pnode is not None}
    assert all(found.assignment[name] == facts.pnodes[hint] for name, hint in hinted.items())
    assert "the placement hints ask for it" in found.warnings[0]


def test_adjacent_vnodes_stay_together_and_the_cheapest_edges_are_cut() -> None:
    network = without_hints(tiny("tiny-gpt", layers=6))
    facts = cluster(*(device(name, flops=1e6) for name in "abc"), round_trip_ms=0.1)
    found = place(network, training(12), facts)
    plan = build_plan(network, found.assignment, found.pnodes, training(12), generation=1, facts=facts)
    assert len(plan.pnodes) == 3
    assert len(plan.segments) <= 5


def test_more_pnodes_than_microbatches_is_said() -> None:
    facts = equal_facts([PNodeId(name) for name in "abc"])
    found = place(tiny("tiny-gpt", layers=2), training(2), facts, uses_all=True)
    assert any("2 microbatches on 3 PNodes" in warning for warning in found.warnings)


@pytest.mark.parametrize("n_pnodes", [2, 6])
def test_two_hundred_vnodes_are_placed_within_seconds(n_pnodes: int) -> None:
    network = without_hints(tiny("tiny-gpt", layers=24))
    facts = cluster(*(device(name, flops=1e6 * (1 + i)) for i, name in enumerate("abcdef"[:n_pnodes])))
    began = time.perf_counter()
    found = place(network, training(8), facts)
    assert len(network.nodes) > 200
    check(network, training(8), facts, found)
    # Two seconds is the aim; a shared machine gets ten before the search counts as unbounded.
    assert time.perf_counter() - began < 10.0
