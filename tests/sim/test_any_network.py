"""Whatever the network and wherever its VNodes are: one PNode's bits, one PNode's answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from tests.cluster.random_networks import placed
from tests.sim.samples import job_for, plan_of, with_settings
from tests.sim.world import Chaos, World

SETTINGS = with_settings(steps=2, microbatches=4, validate_every=1, checkpoint_every=1)
ONE = PNodeId("a")
Placed = tuple[Network, dict[str, PNodeId], tuple[PNodeId, ...]]


def outcome(world: World, places: dict[str, PNodeId]) -> tuple:
    """Result and an answer of a session."""
    plan = plan_of(world.network, SETTINGS, places)
    world.start(job_for(world.network, SETTINGS, plan))
    world.run()
    assert not world.lead.failures
    assert [trained.step for trained in world.lead.trained] == [2]
    for process in world.workers.values():
        process.watch.finish(1, 1, 2)
    answer = world.ask([1, 2, 3])
    world.check_rest()
    assert not world.refusals
    world.end()
    return world.result(), answer.tobytes()


@given(placed(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_placement_of_any_network_gives_the_bits_of_one_pnode(
    backend: Backend, case: Placed, seed: int
) -> None:
    network, places, _ = case
    expected = outcome(World(network, SETTINGS, backend), dict.fromkeys(places, ONE))
    rough = World(network, SETTINGS, backend, chaos=Chaos(seed, 5.0, 0.3))
    assert outcome(rough, places) == expected
