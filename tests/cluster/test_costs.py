"""Predicted times are those of a calculation by hand, memory that of a real run, bytes those of the plan."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.costs import NODE_MS, STEP_MS, TASK_MS, cost_tables, estimate
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.memory_needs import PROCESS_BYTES, memory_needs, pools_of
from dcnr_app.cluster.prediction import predict
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.cluster.workload import group_nodes, workload_of
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.contract import Context, spec_bytes
from dcnr_app.nodes.graph.load import load_network
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.linear import Linear
from dcnr_app.runtime.liveness import buffer_bytes
from tests.cluster.facts import cluster, clusters, device
from tests.cluster.random_networks import ROWS, network_of, networks, placed
from tests.contracts.vnode import EXAMPLES, case_of, context, spec_of
from tests.runtime.driving import Pipeline
from tests.runtime.networks import node
from tests.sim.samples import NETWORKS, registry

ONE = PNodeId("a")
_PER_ROW_BYTES = 64
"""Statistics of a row, as layernorm and cross_entropy keep them."""


def training(microbatches: int, **changes: object) -> TrainingSettings:
    """Settings for the random networks."""
    return TrainingSettings(batch=ROWS * microbatches, microbatches=microbatches, **changes)


def test_one_pnode_takes_the_sum_of_its_work() -> None:
    network, microbatches = network_of([node("up", Linear(n_in=4, n_out=4), "embed")]), 3
    work = workload_of(network, ROWS)
    facts = cluster(device("a", flops=1e6, memory_bytes_per_s=1e5))
    forward = [n.flops / 1e3 + n.moved_bytes / 1e2 + NODE_MS for n in work.nodes]
    tasks = microbatches * (3 * sum(forward) + 2 * TASK_MS)
    update = 8 * sum(p.n_bytes for p in work.parameters) / 1e2
    found = predict(network, training(microbatches), facts, {n.name: ONE for n in network.nodes})
    assert found.tasks_ms == pytest.approx(tasks)
    assert found.update_ms == pytest.approx(update)
    assert found.sync_ms == 0.0
    assert found.step_ms == pytest.approx(tasks + update + STEP_MS + 2 * 0.3)
    assert found.bottleneck.kind == "compute"
    assert found.links == ()


def test_two_pnodes_and_one_microbatch_take_turns_and_pay_for_the_hops() -> None:
    network = network_of([])
    work = workload_of(network, ROWS)
    facts = cluster(device("a", flops=1e6), device("b", flops=2e6), bytes_per_s=1e5, round_trip_ms=8.0)
    names = [n.name for n in work.nodes]
    there = set(names[names.index("head") :])
    at = {n.name: PNodeId("b" if n.name in there else "a") for n in network.nodes}
    ms = {n.name: n.flops / 1e3 + n.moved_bytes / 1e3 for n in work.nodes}
    first = sum(ms[name] + NODE_MS for name in names if name not in there)
    second = sum(ms[name] / 2 + NODE_MS for name in there)
    crossing = spec_bytes(case_spec((ROWS, 8, 4)))
    hop = crossing / 1e2 + 4.0
    found = predict(network, training(1), facts, at)
    assert found.tasks_ms == pytest.approx(3 * first + 3 * second + 4 * TASK_MS + 2 * hop)
    assert {(link.source, link.target): link.bytes_per_step for link in found.links} == {
        ("a", "b"): crossing,
        ("b", "a"): crossing,
    }


def case_spec(shape: tuple[int, ...]) -> object:
    """A float32 spec."""
    return spec_of(np.zeros(shape, np.float32))


@given(placed(), st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_links_carry_the_plans_hops_and_the_shared_parameters(
    case: tuple[Network, dict[str, PNodeId], tuple[PNodeId, ...]], microbatches: int, in_flight: int
) -> None:
    network, places, pnodes = case
    wanted = training(microbatches, in_flight=in_flight)
    facts = cluster(*(device(name) for name in pnodes))
    plan = build_plan(network, places, pnodes, wanted, generation=1)
    work = workload_of(network, ROWS)
    expected = Counter({pair: microbatches * n_bytes for pair, n_bytes in plan.hop_bytes.items()})
    for parameter in work.parameters:
        owner = places[work.nodes[parameter.owner].name]
        away = [places[work.nodes[site].name] for site in parameter.sites]
        away = [pnode for pnode in away if pnode != owner]
        for pnode in away:
            expected[f"{pnode}>{owner}"] += parameter.n_bytes
        for pnode in set(away):
            expected[f"{owner}>{pnode}"] += parameter.n_bytes
    found = predict(network, wanted, facts, places)
    assert {f"{link.source}>{link.target}": link.bytes_per_step for link in found.links} == dict(expected)
    assert {share.pnode: share.n_vnodes for share in found.pnodes} == Counter(
        places[entry.name] for entry in network.nodes if not entry.vnode.is_host
    )


@given(networks(), clusters(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_faster_device_or_link_never_makes_a_chain_on_one_pnode_slower(
    network: Network, facts: ClusterFacts, microbatches: int
) -> None:
    everything = {entry.name: facts.pnodes[0] for entry in network.nodes}
    slow = predict(network, training(microbatches), facts, everything)
    faster = tuple(
        msgspec.structs.replace(d, gemm_flops={"float32": 2 * d.flops_per_s("float32")})
        for d in facts.devices
    )
    fast = predict(
        network, training(microbatches), msgspec.structs.replace(facts, devices=faster), everything
    )
    assert fast.step_ms <= slow.step_ms


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"tokenizer"}))
def test_what_forward_makes_is_what_placement_counts(name: str) -> None:
    case = case_of(name, "float32")
    backend = ReferenceBackend(1)
    ctx: Context = context(backend)
    result = case.vnode.forward(ctx, case.params, case.ins)
    given_bytes = buffer_bytes([*case.ins, *case.params.values()])
    together = [*case.ins, *case.params.values(), *result.outs, *result.saved.values()]
    made = buffer_bytes(together) - given_bytes
    counted = case.vnode.made_bytes(tuple(spec_of(array) for array in case.ins))
    n_rows = max(array.size // array.shape[-1] for array in case.ins)
    assert made <= counted + _PER_ROW_BYTES * n_rows
    assert counted <= made + spec_bytes(*(spec_of(out) for out in result.outs))
    backend.close()


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-gpt-per-head"])
def test_predicted_memory_is_that_of_a_real_step(name: str, in_flight: int) -> None:
    text = (NETWORKS / f"{name}.yaml").read_text()
    sizes = {"layers": 1, "vocabulary": 1024}
    network = load_network(text, file=name, registry=registry(), overrides=sizes).network
    wanted = TrainingSettings(batch=12, microbatches=3)
    work = workload_of(network, wanted.rows)
    groups = group_nodes(work, [0] * work.n_nodes)
    (need,) = memory_needs(work, wanted, groups, [in_flight] * len(groups.members), 1)
    plan = build_plan(network, {n.name: ONE for n in network.nodes}, (ONE,), wanted, generation=1)
    random = np.random.default_rng(0)

    def batch(step: int, microbatch: int) -> dict[str, np.ndarray]:
        del step, microbatch
        tokens = random.integers(0, 1024, (wanted.rows, 128)).astype(np.int32)
        return {"tokenizer:0": tokens, "targets:0": tokens}

    backend = ReferenceBackend(1)
    tracemalloc.start()
    try:
        pipeline = Pipeline(network, plan, wanted, backend)
        pipeline.gradients(0, batch, in_flight=in_flight)
        pipeline.facts()
        pipeline.apply(0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        backend.close()
    assert 0.8 * peak_bytes <= need - PROCESS_BYTES <= 1.25 * peak_bytes


def test_pnodes_of_one_machine_share_its_memory_and_a_gpu_has_its_own() -> None:
    one, two = (
        device("a", machine="m", free_memory_bytes=1000),
        device("b", machine="m", free_memory_bytes=900),
    )
    gpu = device("c", machine="m", kind="cuda", free_memory_bytes=500)
    pools = pools_of(cluster(one, two, gpu, device("d", free_memory_bytes=None)))
    assert [(pool.places, pool.budget_bytes) for pool in pools] == [((0, 1), 810), ((2,), 450)]
    assert pools[0].excess((500, 400, 9, 9)) == 90


def test_sgd_needs_less_memory_than_adamw() -> None:
    work = workload_of(network_of([]), ROWS)
    facts = cluster(device("a"))
    needs = {}
    for kind in ("sgd", "adamw"):
        wanted = training(2)
        wanted = msgspec.structs.replace(
            wanted, optimizer=msgspec.structs.replace(wanted.optimizer, type=kind)
        )
        (needs[kind],) = estimate(cost_tables(work, facts, wanted), [0] * work.n_nodes).needs_bytes
    assert needs["adamw"] - needs["sgd"] == sum(parameter.n_bytes for parameter in work.parameters)
