"""Every VNode gets one place, every PNode gets work, and no cut is worse than a search of all cuts finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.placement import assign, tensor_bytes
from dcnr_app.errors import InvalidError
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.contract import TensorSpec
from dcnr_app.nodes.graph.analysis import infer_shapes, node_flops
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.linear import Linear
from tests.cluster.random_networks import ROWS, network_of, networks
from tests.runtime.networks import node
from tests.sim.samples import pnode_ids, tiny

Cut = list[list[str]]


def all_cuts(network: Network, n_parts: int) -> list[Cut]:
    """Every way to cut the VNodes into contiguous parts with parameters in each."""
    names = [entry.name for entry in network.nodes if not entry.vnode.is_host]
    with_parameters = {entry.name for entry in network.nodes if entry.vnode.params()}
    found = []
    for places in combinations(range(1, len(names)), n_parts - 1):
        bounds = [0, *places, len(names)]
        parts = [names[start:stop] for start, stop in pairwise(bounds)]
        if all(with_parameters & set(part) for part in parts):
            found.append(parts)
    return found


def bottleneck(network: Network, parts: Cut) -> int:
    """FLOPs of the largest part."""
    flops = node_flops(network, ROWS)
    return max(sum(flops[name] for name in part) for part in parts)


def crossing_bytes(network: Network, parts: Cut) -> int:
    """Bytes forward over all cuts; a tensor counts once at every cut that it passes."""
    specs = infer_shapes(network, ROWS)
    part_of = {name: index for index, part in enumerate(parts) for name in part}
    total = 0
    for entry in network.nodes:
        users = [part_of[n.name] for n in network.nodes if f"{entry.name}:0" in n.inputs]
        if users and entry.name in part_of:
            n_cuts = max(users) - part_of[entry.name]
            total += max(0, n_cuts) * tensor_bytes(specs[f"{entry.name}:0"])
    return total


@given(networks(max_middle=4), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_the_cut_is_within_five_per_cent_of_the_best_and_the_cheapest_of_those(
    network: Network, n_pnodes: int
) -> None:
    pnodes = pnode_ids(n_pnodes)
    cuts = all_cuts(network, n_pnodes)
    if not cuts:
        with pytest.raises(InvalidError, match="cannot be spread over"):
            assign(network, ROWS, pnodes)
        return
    assignment = assign(network, ROWS, pnodes)
    assert set(assignment) == {entry.name for entry in network.nodes}
    assert assignment.pop("tokenizer") == ORCHESTRATOR
    parts = [[name for name, pnode in assignment.items() if pnode == at] for at in pnodes]
    assert parts in cuts, "contiguous, complete, parameters everywhere"
    limit = 1.05 * min(bottleneck(network, cut) for cut in cuts)
    assert bottleneck(network, parts) <= limit
    good = [cut for cut in cuts if bottleneck(network, cut) <= limit]
    assert crossing_bytes(network, parts) == min(crossing_bytes(network, cut) for cut in good)


@given(networks(), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_too_many_pnodes_are_refused_with_the_number_that_works(network: Network, n_pnodes: int) -> None:
    n_useful = sum(bool(entry.vnode.params()) for entry in network.nodes)
    if n_useful >= n_pnodes:
        assert set(assign(network, ROWS, pnode_ids(n_pnodes)).values()) >= set(pnode_ids(n_pnodes))
        return
    with pytest.raises(InvalidError) as raised:
        assign(network, ROWS, pnode_ids(n_pnodes))
    assert raised.value.fix == f"use at most {n_useful} workers"
    assert "would hold no parameters" in raised.value.why
    assign(network, ROWS, pnode_ids(n_useful))


@pytest.mark.parametrize("n_pnodes", [1, 2, 3, 4])
def test_hints_are_followed_modulo_the_number_of_pnodes(n_pnodes: int) -> None:
    network = tiny("tiny-gpt-per-head")
    pnodes = pnode_ids(n_pnodes)
    assignment = assign(network, 2, pnodes)
    hinted = {entry.name: entry.pnode for entry in network.nodes if entry.pnode is not None}
    assert len(hinted) == 2
    assert all(assignment[name] == pnodes[hint % n_pnodes] for name, hint in hinted.items())
    assert set(assignment.values()) == {*pnodes, ORCHESTRATOR}


def test_a_pnode_whose_parameters_are_hinted_may_get_any_part_of_the_rest() -> None:
    nodes = [node("a", Linear(n_in=4, n_out=4), "embed"), node("b", Linear(n_in=4, n_out=4), "a")]
    network = network_of([msgspec.structs.replace(nodes[0], pnode=1), nodes[1]])
    fully = [
        msgspec.structs.replace(entry, pnode=0) if entry.vnode.params() and entry.pnode is None else entry
        for entry in network.nodes
    ]
    network = msgspec.structs.replace(network, nodes=tuple(fully))
    pnodes = (PNodeId("x"), PNodeId("y"))
    assignment = assign(network, ROWS, pnodes)
    assert assignment["a"] == "y"
    assert {assignment[name] for name in ("embed", "b", "head")} == {"x"}
    assert {assignment["total"], assignment["loss"]} == {"x", "y"}


def test_a_network_without_parameters_is_refused_without_a_number() -> None:
    bare = network_of([])
    kept = tuple(entry for entry in bare.nodes if not entry.vnode.params())
    network = msgspec.structs.replace(bare, nodes=kept[:1])
    with pytest.raises(InvalidError) as raised:
        assign(network, ROWS, pnode_ids(1))
    assert raised.value.fix == ""


@pytest.mark.parametrize(
    ("dtype", "item"), [("float32", 4), ("bfloat16", 2), ("float16", 2), ("int64", 8), ("float64", 8)]
)
def test_tensor_bytes_are_items_times_their_size(dtype: str, item: int) -> None:
    assert tensor_bytes(TensorSpec((2, 3, 5), dtype)) == 30 * item
    assert tensor_bytes(TensorSpec((), dtype)) == item
