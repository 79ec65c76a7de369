"""Gradients of the whole small network against finite differences in float64, and unusual graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.add import Add
from dcnr_app.nodes.contract import Context
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.embedder import Embedder
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network, NetworkInput
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.linear import Linear
from dcnr_app.runtime.keys import Decision, Fact, RunKey
from tests.runtime.driving import N_TARGETS, SCALE, Pipeline, pipeline
from tests.runtime.networks import N_DIM, N_TOKENS, N_VOCABULARY, SETTINGS, node, small_batch, small_gpt
from tests.runtime.plans import cut_at

PARAMETERS = tuple(network_parameters(small_gpt()))


def _loss_float64(network: Network, values: Mapping[str, np.ndarray], inputs: Mapping[str, Any]) -> float:
    """The loss sum, by walking the graph with plain calls in float64."""
    context = Context(backend=ReferenceBackend(threads=1), is_training=False)
    tensors: dict[str, Any] = dict(inputs)
    for entry in network.nodes:
        params = {own: values[entry.share.get(own, f"{entry.name}.{own}")] for own in entry.vnode.params()}
        outs = entry.vnode.forward(context, params, tuple(tensors[name] for name in entry.inputs)).outs
        tensors.update({f"{entry.name}:{port}": out for port, out in enumerate(outs)})
    return float(tensors[network.outputs["loss"]])


def _sgd_gradient(made: Pipeline, name: str) -> np.ndarray:
    """The unscaled step gradient of a parameter, read off an update of plain SGD with rate 1."""
    before = made.at("a").parameter(name).astype(np.float64)
    for runtime in made.runtimes.values():
        runtime.apply(Decision(False, 1.0, 1.0, 1, SCALE))
    return before - made.at("a").parameter(name).astype(np.float64)


@pytest.mark.parametrize("name", PARAMETERS)
def test_step_gradient_is_the_derivative_of_the_mean_loss(name: str) -> None:
    network = small_gpt()
    settings = _plain_sgd()
    with pipeline(network, cut_at(network), settings) as made:
        values = {key: made.at("a").parameter(key).astype(np.float64) for key in PARAMETERS}
        made.gradients(0)
        fact = made.facts()[name]
        gradient = _sgd_gradient(made, name)
    generator = np.random.default_rng(3)
    noise = generator.standard_normal(gradient.shape)
    direction = gradient / max(np.linalg.norm(gradient), 1e-12) + noise / np.linalg.norm(noise)
    h = 1e-5

    def mean_loss(shift: float) -> float:
        moved = {**values, name: values[name] + shift * direction}
        return sum(_loss_float64(network, moved, small_batch(0, index)) for index in range(2)) / N_TARGETS

    numeric = (mean_loss(h) - mean_loss(-h)) / (2 * h)
    # A key bias shifts all scores of a row alike: its gradient is zero but for rounding.
    np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(fact.squared_norm, np.sum(gradient**2), rtol=1e-3, atol=1e-9)
    assert fact.is_finite


def _plain_sgd() -> TrainingSettings:
    optimizer = msgspec.structs.replace(SETTINGS.optimizer, type="sgd", beta1=0.0, weight_decay=0.0)
    return msgspec.structs.replace(SETTINGS, optimizer=optimizer)


def _side_network() -> Network:
    """`frozen` feeds a head that the cost does not see: no gradient flows through it."""
    linear = Linear(n_in=N_DIM, n_out=N_DIM)
    nodes = (
        node("embed", Embedder(n_tokens=N_VOCABULARY, n_dim=N_DIM), "tokens"),
        node("twice", Add(), "embed", "embed"),
        node("unseen", linear, "twice"),
        node("unseen_too", linear, "unseen"),
        node("head", Linear(n_in=N_DIM, n_out=N_VOCABULARY), "twice"),
        node("cost", CrossEntropy(), "head", "targets"),
    )
    inputs = tuple(NetworkInput(name, ("batch", N_TOKENS), "int32") for name in ("tokens", "targets"))
    return Network(name="side", inputs=inputs, nodes=nodes, outputs={"loss": "cost:0"})


@pytest.mark.parametrize("firsts", [(), ("unseen", "unseen_too", "head"), ("twice", "head")])
def test_parameters_that_the_loss_does_not_see_stay_and_the_rest_does_not_depend_on_the_cut(
    firsts: tuple[str, ...],
) -> None:
    network = _side_network()
    with pipeline(network, cut_at(network)) as whole, pipeline(network, cut_at(network, *firsts)) as made:
        before = made.at("a").state("unseen.weight")
        expected = whole.step(0)
        result = made.step(0)
        after = made.at("a").state("unseen.weight")
    assert result == expected
    assert result.facts["unseen.weight"] == Fact(0.0, True)
    assert all(before[slot].tobytes() == after[slot].tobytes() for slot in before)
    assert result.facts["embed.weight"].squared_norm > 0


def test_one_tensor_at_two_slots_of_one_vnode_counts_twice() -> None:
    network = _side_network()
    single = Network(
        name="single",
        inputs=network.inputs,
        nodes=(network.nodes[0], node("twice", Add(), "embed"), *network.nodes[4:]),
        outputs=network.outputs,
    )
    with pipeline(network, cut_at(network)) as double, pipeline(single, cut_at(single)) as once:
        embedding = double.at("a").parameter("embed.weight")
        once.at("a").set_parameter("embed.weight", embedding * np.float32(2))
        double_losses, once_losses = double.gradients(0), once.gradients(0)
        double_fact, once_fact = double.facts()["embed.weight"], once.facts()["embed.weight"]
    assert double_losses == once_losses
    assert double_fact.squared_norm == pytest.approx(4 * once_fact.squared_norm, rel=1e-6)


def test_a_gradient_that_is_not_finite_is_reported() -> None:
    network = small_gpt()
    with pipeline(network, cut_at(network)) as made:
        runtime = made.at("a")
        bad = runtime.parameter("down.bias")
        bad[0] = np.inf
        runtime.set_parameter("down.bias", bad)
        with np.errstate(all="ignore"):
            made.gradients(0)
            facts = made.facts()
    assert not facts["norm_3.gain"].is_finite


def _fan_out_network() -> Network:
    """`embed` with three consumers, and a head that shares its weight with a second, unlike one."""
    head = Linear(n_in=N_DIM, n_out=N_VOCABULARY, has_bias=False)
    shared = {"weight": "embed.weight"}
    nodes = (
        node("embed", Embedder(n_tokens=N_VOCABULARY, n_dim=N_DIM), "tokens"),
        node("one", Add(), "embed"),
        node("two", Add(), "embed"),
        node("three", Add(), "one", "two", "embed"),
        node("head", head, "three", share=shared),
        node("head_too", head, "three", share=shared),
        node("both", Add(), "head", "head_too"),
        node("cost", CrossEntropy(), "both", "targets"),
    )
    inputs = tuple(NetworkInput(name, ("batch", N_TOKENS), "int32") for name in ("tokens", "targets"))
    return Network(name="fan-out", inputs=inputs, nodes=nodes, outputs={"loss": "cost:0"})


def test_gradients_of_one_tensor_are_added_in_the_order_of_the_networks_edges() -> None:
    network = _fan_out_network()
    shape = (3, N_TOKENS, N_DIM)
    parts = {"one": 1e8, "two": -1e8, "three": 1.0}
    settings = msgspec.structs.replace(SETTINGS, batch=3, microbatches=1)
    slots = {"one": 0, "two": 0, "three": 2}
    given = {
        f"embed:0>{name}:{slots[name]}": np.full(shape, parts[name], np.float32)
        for name in ("three", "two", "one")
    }
    zeros = np.zeros((N_VOCABULARY, N_DIM), np.float32)
    with pipeline(network, cut_at(network, "one", pnodes=("a", "b")), settings) as made:
        key = RunKey("train", 0, 0)
        inputs = {"tokens:0": np.zeros((3, N_TOKENS), np.int32)}
        made.at("a").forward(0, key, inputs)
        made.at("a").backward(0, key, given, 1.0)
        remote = {("embed.weight", site): zeros for site in ("head.weight", "head_too.weight")}
        fact = made.at("a").facts(remote, 1.0)["embed.weight"]
    # (1e8 - 1e8) + 1 = 1 per element, while 1e8 + 1 = 1e8 in float32; one row of the table has 18 of them.
    assert fact.squared_norm == N_DIM * 18**2


def test_gradients_of_use_sites_are_added_in_the_order_of_their_names() -> None:
    network = _fan_out_network()
    settings = msgspec.structs.replace(SETTINGS, batch=3, microbatches=1)
    cut = cut_at(network, "one", pnodes=("a", "b"))
    edges = ("embed:0>one:0", "embed:0>two:0", "embed:0>three:2")
    big = np.full((N_VOCABULARY, N_DIM), 1e8, np.float32)
    kept = big.copy()
    with pipeline(network, cut, settings) as made:
        key = RunKey("train", 0, 0)
        made.at("a").forward(0, key, {"tokens:0": np.zeros((3, N_TOKENS), np.int32)})
        ones = np.ones((3, N_TOKENS, N_DIM), np.float32) / np.float32(54)
        made.at("a").backward(0, key, dict.fromkeys(edges, ones), 1.0)
        remote = {("embed.weight", "head_too.weight"): -big, ("embed.weight", "head.weight"): big}
        fact = made.at("a").facts(remote, 1.0)["embed.weight"]
    # (1 + 1e8) - 1e8 = 0 in float32, while 1 + (1e8 - 1e8) = 1.
    assert fact.squared_norm == 0.0
    assert big.tobytes() == kept.tobytes()


def test_two_vnodes_of_one_type_draw_different_dropout_masks() -> None:
    losses = set()
    for name in ("drop", "drop_too"):
        network = small_gpt(rate=0.5)
        renamed = tuple(
            msgspec.structs.replace(
                entry,
                name=name if entry.name == "drop" else entry.name,
                inputs=tuple(f"{name}:0" if source == "drop:0" else source for source in entry.inputs),
            )
            for entry in network.nodes
        )
        network = msgspec.structs.replace(network, nodes=renamed)
        with pipeline(network, cut_at(network)) as made:
            losses.add(made.forward(RunKey("train", 0, 0), small_batch(0, 0))[0])
    assert len(losses) == 2


def test_dropout_masks_follow_step_and_microbatch() -> None:
    network = small_gpt(rate=0.5)
    with pipeline(network, cut_at(network)) as made:
        losses = {
            key: made.forward(key, small_batch(0, 0))[0]
            for key in (RunKey("train", step, index) for step in range(2) for index in range(2))
        }
        again, _ = made.forward(RunKey("train", 2, 0), small_batch(0, 0))
    assert len({*losses.values(), again}) == 5
