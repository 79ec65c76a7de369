"""The example networks: they load, have the size that arithmetic says, and their variants agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.load import LoadedNetwork, load_network, read_network_file
from dcnr_app.nodes.graph.show import network_table
from dcnr_app.nodes.registry import load_registry

FOLDER = Path(__file__).parents[3] / "assets" / "networks"


def _load(name: str) -> LoadedNetwork:
    path = FOLDER / f"{name}.yaml"
    return load_network(read_network_file(path), file=str(path), registry=load_registry())


def _gpt_parameters(width: int, layers: int, vocabulary: int) -> int:
    """Tied table; per layer q, k, v, out (4 W² + 4 W), mlp (8 W² + 5 W), two norms (4 W); final norm 2 W."""
    return vocabulary * width + layers * (12 * width**2 + 13 * width) + 2 * width


FACTS = {
    "tiny-gpt": (2 + 9 * 3 + 3, _gpt_parameters(128, 3, 512), 128, 512),
    "tiny-gpt-per-head": (2 + 14 * 3 + 3, _gpt_parameters(128, 3, 512), 128, 512),
    "tiny-gpt-no-attention": (
        2 + 8 * 3 + 3,
        _gpt_parameters(128, 3, 512) - 3 * (3 * 128**2 + 3 * 128),
        128,
        512,
    ),
    "gpt-124m": (2 + 9 * 12 + 3, _gpt_parameters(768, 12, 32000), 2048, 32000),
    "production-32k": (183, _gpt_parameters(512, 8, 32000) + 512 * 512, 512, 32000),
}
"""VNodes, parameters, context and vocabulary by name."""


def test_every_asset_has_its_facts_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(FACTS)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_asset_has_the_size_of_the_closed_formula(name: str) -> None:
    loaded = _load(name)
    table = network_table(loaded.network, loaded.training.rows)
    assert loaded.network.name == name
    assert (len(table.rows), table.parameters, loaded.context, loaded.vocabulary) == FACTS[name]


@pytest.mark.parametrize("name", sorted(FACTS))
def test_the_head_is_tied_to_the_embedding(name: str) -> None:
    parameters = network_parameters(_load(name).network)
    assert parameters["embed.weight"].sites == (("embed", "weight"), ("head", "weight"))
    assert "head.weight" not in parameters


def test_residual_projections_start_smaller_with_depth() -> None:
    parameters = network_parameters(_load("tiny-gpt").network)
    small = 0.02 / (2 * 3) ** 0.5
    assert parameters["block/2/project.weight"].spec.std == pytest.approx(small)
    assert parameters["block/0/down.weight"].spec.std == pytest.approx(small)
    for name in ("block/0/up.weight", "block/1/attention.query_weight", "embed.weight"):
        assert parameters[name].spec.std == 0.02


def test_the_per_head_variant_costs_the_same_and_spreads_its_heads() -> None:
    fused, split = _load("tiny-gpt"), _load("tiny-gpt-per-head")
    assert network_table(fused.network, 8).flops == network_table(split.network, 8).flops
    heads = {node.name: node for node in split.network.nodes if "/heads/" in node.name}
    assert [heads[f"block/1/heads/{index}/head"].pnode for index in range(4)] == [0, 1, 2, 3]
    assert heads["block/2/heads/3/head"].inputs == ("block/2/fan_out:3",)


def test_production_branches_are_explicit_broadcasts() -> None:
    network = _load("production-32k").network
    consumers: dict[str, int] = {}
    for node in network.nodes:
        for reference in node.inputs:
            consumers[reference] = consumers.get(reference, 0) + 1
    assert max(consumers.values()) == 1
