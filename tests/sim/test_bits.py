"""Neither the number of PNodes, nor the placement, nor the network's moods change a bit of the result."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dcnr_app.cluster.plan import Plan
from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.graph.network import Network
from tests.sim.samples import SETTINGS, job_for, plan_for, plan_of, pnode_ids, tiny, with_settings
from tests.sim.world import Chaos, Result, World, train

Alone = Callable[[str, str], Result]


def rough(seed: int) -> Chaos:
    """A network that holds back, reorders and repeats."""
    return Chaos(seed, late_ms=5.0, twice=0.2)


@pytest.fixture(scope="module")
def alone(backend: Backend) -> Alone:
    """Results on one PNode over an orderly network, each made once."""
    made: dict[tuple[str, str], Result] = {}

    def run(name: str, edit: str = "") -> Result:
        if (name, edit) not in made:
            made[name, edit] = train(World(tiny(name, edit=edit), SETTINGS, backend))
        return made[name, edit]

    return run


def strewn(network: Network, seed: int, n_pnodes: int = 3) -> Plan:
    """The plan with every VNode on a random PNode."""
    places = random.Random(seed)  # noqa: S311  # a placement, not a secret
    pnodes = pnode_ids(n_pnodes)
    return plan_of(network, SETTINGS, {node.name: places.choice(pnodes) for node in network.nodes})


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_pnodes", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-gpt-per-head"])
def test_any_number_of_pnodes_gives_the_bits_of_one(
    backend: Backend, alone: Alone, name: str, n_pnodes: int, seed: int
) -> None:
    world = World(tiny(name), SETTINGS, backend, chaos=rough(seed))
    result = train(world, n_pnodes=n_pnodes)
    assert len(world.workers) == n_pnodes
    assert result == alone(name, "")
    assert len(result.decisions) == SETTINGS.steps
    assert set(result.validations) == {2, 4, 5}


@pytest.mark.parametrize("seed", range(12))
def test_vnodes_strewn_at_random_give_the_bits_of_one_pnode(
    backend: Backend, alone: Alone, seed: int
) -> None:
    network = tiny("tiny-gpt-per-head")
    plan = strewn(network, seed)
    assert len(plan.segments) > len(plan.pnodes)
    world = World(network, SETTINGS, backend, chaos=rough(seed))
    assert train(world, job_for(network, SETTINGS, plan)) == alone("tiny-gpt-per-head", "")


@pytest.mark.parametrize("edit", ["", "head-owns", "untied"])
@pytest.mark.parametrize("seed", range(3))
def test_a_tied_head_away_from_its_embedder_changes_no_bit(
    backend: Backend, alone: Alone, edit: str, seed: int
) -> None:
    network = tiny(edit=edit)
    world = World(network, SETTINGS, backend, chaos=rough(seed))
    job = job_for(network, SETTINGS, plan_for(network, SETTINGS, 2))
    result = train(world, job)
    assert result == alone("tiny-gpt", edit)


@pytest.mark.parametrize(
    ("edit", "owner", "other"), [("", "p1", "p2"), ("head-owns", "p2", "p1")], ids=["upstream", "downstream"]
)
def test_a_tied_weight_lives_with_its_first_site_and_is_copied_to_the_other(
    backend: Backend, edit: str, owner: str, other: str
) -> None:
    network = tiny(edit=edit)
    name, away = ("embed.weight", "head.weight") if not edit else ("word_embed.weight", "word_embed.weight")
    world = World(network, SETTINGS, backend)
    world.start(job_for(network, SETTINGS, plan_for(network, SETTINGS, 2)))
    world.run()
    facts = {pnode: process.state.runtime for pnode, process in world.workers.items()}
    assert name in facts[owner].owned
    assert name not in facts[other].owned
    assert facts[owner].copies_to == {name: (other,)}
    assert facts[owner].sites_from == (f"{name}|{away}",)
    assert facts[other].site_owner == {f"{name}|{away}": owner}
    assert facts[other].copies_from == (name,)
    world.check_rest()


def test_the_loss_falls_and_the_seed_matters(backend: Backend, alone: Alone) -> None:
    settings = with_settings(seed=12)
    other = train(World(tiny(), settings, backend))
    losses = [decision.loss for decision in alone("tiny-gpt", "").decisions]
    assert [decision.loss for decision in other.decisions] != losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_number_of_microbatches_in_flight_changes_no_bit(
    backend: Backend, alone: Alone, in_flight: int
) -> None:
    network, settings = tiny(), with_settings(in_flight=in_flight)
    world = World(network, settings, backend, chaos=rough(in_flight))
    assert train(world, n_pnodes=3) == alone("tiny-gpt", "")
    reports = [report for step in world.lead.progress for report in step.reports.values()]
    assert max(report.max_in_flight for report in reports) == in_flight
