"""A trained session answers prompts: the same row of logits wherever the VNodes are, and nothing piles up."""

from __future__ import annotations

import random

import pytest

from dcnr_app.cluster.messages import AnyMessage, Hop
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.add import Add
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.embedder import Embedder
from dcnr_app.nodes.graph.network import Network, NetworkInput
from dcnr_app.nodes.linear import Linear
from tests.runtime.networks import node
from tests.sim.samples import (
    N_CONTEXT,
    N_VOCABULARY,
    job_for,
    plan_for,
    plan_of,
    pnode_ids,
    tiny,
    with_settings,
)
from tests.sim.world import Chaos, World

PROMPTS = ([3], [3, 1, 4], [3, 1, 4, 1, 5])
BRIEF = with_settings(steps=2)
A, B = pnode_ids(2)


def at_rest(world: World, places: dict[str, PNodeId] | None = None, *, n_pnodes: int = 1) -> World:
    """`world` after its training."""
    network, settings = world.network, world.settings
    plan = plan_of(network, settings, places) if places else plan_for(network, settings, n_pnodes)
    world.start(job_for(network, settings, plan))
    world.run()
    assert [trained.step for trained in world.lead.trained] == [settings.steps]
    return world


def answers(world: World) -> list[bytes]:
    """Logits after every prompt; then the session ends with nothing left."""
    rows = [world.ask(prompt) for prompt in PROMPTS]
    assert {row.shape for row in rows} == {(1, 1, N_VOCABULARY)}
    world.check_rest()
    assert not any(process.state.mailbox for process in world.workers.values())
    world.end()
    found = [row.tobytes() for row in rows]
    assert len(set(found)) == len(PROMPTS)
    return found


@pytest.mark.parametrize("n_pnodes", [2, 3, 4])
@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-gpt-per-head"])
def test_logits_are_the_same_on_any_number_of_pnodes(backend: Backend, name: str, n_pnodes: int) -> None:
    network = tiny(name)
    expected = answers(at_rest(World(network, BRIEF, backend)))
    rough = World(network, BRIEF, backend, chaos=Chaos(n_pnodes, 5.0, 0.2))
    assert answers(at_rest(rough, n_pnodes=n_pnodes)) == expected


@pytest.mark.parametrize("seed", range(6))
def test_logits_are_the_same_with_vnodes_strewn_at_random(backend: Backend, seed: int) -> None:
    network = tiny("tiny-gpt-per-head")
    expected = answers(at_rest(World(network, BRIEF, backend)))
    choice = random.Random(seed).choice  # noqa: S311  # a placement, not a secret
    places = {entry.name: choice(pnode_ids(3)) for entry in network.nodes}
    world = World(network, BRIEF, backend, chaos=Chaos(seed, 5.0, 0.2))
    assert answers(at_rest(world, places)) == expected


def test_logits_that_are_not_upstream_of_the_cost_alone_do_not_wait_for_what_they_do_not_need(
    backend: Backend,
) -> None:
    # `bonus` stands in the segment of the logits, which do not depend on it: nobody makes what it needs.
    square = Linear(n_in=8, n_out=8)
    wide = Linear(n_in=8, n_out=N_VOCABULARY)
    nodes = (
        node("embed", Embedder(n_tokens=N_VOCABULARY, n_dim=8, init_std=0.5), "tokens"),
        node("ahead", square, "embed"),
        node("aside", square, "embed"),
        node("head", wide, "ahead"),
        node("bonus", wide, "aside"),
        node("both", Add(), "head", "bonus"),
        node("loss", CrossEntropy(), "both", "targets"),
    )
    inputs = tuple(NetworkInput(name, ("batch", N_CONTEXT), "int32") for name in ("tokens", "targets"))
    outputs = {"loss": "loss:0", "logits": "head:0"}
    network = Network(name="branching", inputs=inputs, nodes=nodes, outputs=outputs)
    expected = answers(at_rest(World(network, BRIEF, backend)))
    places = {entry.name: B if entry.name in ("ahead", "aside") else A for entry in nodes}
    assert answers(at_rest(World(network, BRIEF, backend), places)) == expected


def test_logits_do_not_travel_to_a_cost_that_generation_does_not_run(backend: Backend) -> None:
    network = tiny()
    places = {entry.name: B if entry.name == "loss" else A for entry in network.nodes}
    world = at_rest(World(network, BRIEF, backend), places)
    hops: list[AnyMessage] = []

    def note(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del sender, to
        if isinstance(message, Hop):
            hops.append(message)
        return message

    world.tamper = note
    answers(world)
    assert not hops


def test_a_long_conversation_leaves_no_growing_record(backend: Backend) -> None:
    world = at_rest(World(tiny(), BRIEF, backend, chaos=Chaos(5, 5.0, 0.5)), n_pnodes=2)
    sizes = []
    for _ in range(2):
        for _ in range(50):
            world.ask([1, 2])
        states = [process.state for process in world.workers.values()]
        sizes.append([(len(state.finished), len(state.rows), len(state.ready)) for state in states])
    assert sizes[0] == sizes[1]
    assert len(world.lead.state.generation_requests) == 0
    world.end()
