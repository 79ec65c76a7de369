"""A plan changes where a network runs, never what comes out: every cut gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.runtime.keys import RunKey
from tests.runtime.driving import StepResult, pipeline, same_state
from tests.runtime.networks import small_batch, small_gpt
from tests.runtime.plans import Cut, cut_at

NETWORK = small_gpt(rate=0.25)
NAMES = tuple(entry.name for entry in NETWORK.nodes)
WHOLE = cut_at(NETWORK)
CUTS = {
    "two segments": cut_at(NETWORK, "norm_2", pnodes=("a", "b")),
    "three segments": cut_at(NETWORK, "side", "copies", pnodes=("a", "b", "c")),
    "there and back": cut_at(NETWORK, "attend", "skip_1", "parts", "norm_3", pnodes=("a", "b")),
    "two segments of one PNode": cut_at(NETWORK, "both"),
    "per node on one PNode": cut_at(NETWORK, *NAMES),
    "per node on three PNodes": cut_at(NETWORK, *NAMES, pnodes=("a", "b", "c")),
    "consumers apart": [
        ("a", NAMES[:3]),
        ("b", ("side",)),
        ("c", ("attend",)),
        ("a", NAMES[5:]),
    ],
    "owner last": cut_at(NETWORK, "place", pnodes=("b", "a")),
}


def _run(cut: Cut, *, in_flight: int = 1) -> tuple[list[StepResult], dict]:
    with pipeline(NETWORK, cut) as made:
        results = [made.step(step, in_flight=in_flight) for step in range(2)]
        return results, made.state()


@pytest.mark.parametrize("name", CUTS)
def test_every_cut_gives_the_bits_of_one_segment(name: str) -> None:
    expected, expected_state = _run(WHOLE)
    results, state = _run(CUTS[name])
    assert results == expected
    assert same_state(dict(sorted(state.items())), dict(sorted(expected_state.items())))


@pytest.mark.parametrize("seed", range(6))
def test_vnodes_strewn_over_pnodes_give_the_bits_of_one_segment(seed: int) -> None:
    places = np.random.default_rng(seed).integers(0, 3, len(NAMES))
    expected, expected_state = _run(WHOLE)
    results, state = _run([("abc"[place], (name,)) for place, name in zip(places, NAMES, strict=True)])
    assert results == expected
    assert same_state(dict(sorted(state.items())), dict(sorted(expected_state.items())))


def test_microbatches_in_flight_change_no_bit() -> None:
    expected, expected_state = _run(WHOLE)
    results, state = _run(CUTS["there and back"], in_flight=2)
    assert results == expected
    assert same_state(dict(sorted(state.items())), dict(sorted(expected_state.items())))


def test_training_moves_every_parameter_and_lowers_the_loss_of_a_repeated_batch() -> None:
    with pipeline(small_gpt(), WHOLE) as made:
        before = made.state()
        first = sum(made.gradients(0, lambda _, index: small_batch(0, index)))
        for step in range(8):
            made.facts()
            made.apply(step)
            losses = made.gradients(step + 1, lambda _, index: small_batch(0, index))
        after = made.state()
    assert sum(losses) < 0.9 * first
    assert all(before[name]["weight"].tobytes() != after[name]["weight"].tobytes() for name in before)


def test_both_sites_of_a_shared_parameter_hold_the_same_value_after_a_step() -> None:
    with pipeline(NETWORK, CUTS["two segments"]) as made:
        assert made.at("a").copies_for() == {"embed.weight": ("b",)}
        assert made.at("b").copies_for() == {"side.weight": ("a",)}
        assert made.at("a").copies_expected() == ("side.weight",)
        assert made.at("b").copies_expected() == ("embed.weight",)
        assert made.at("a").remote_sites_expected() == (("embed.weight", "head.weight"),)
        assert made.at("b").remote_sites_expected() == (("side.weight", "side.weight"),)
        assert "embed.weight" not in made.at("b").owned()
        made.step(0)
        for name in ("embed.weight", "side.weight"):
            here, there = (made.at(pnode).parameter(name) for pnode in ("a", "b"))
            assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("name", ["two segments", "per node on three PNodes"])
def test_evaluation_gives_the_same_loss_on_every_cut_and_draws_no_dropout(name: str) -> None:
    key = RunKey("evaluate", 0, 0)
    with pipeline(NETWORK, WHOLE) as whole, pipeline(NETWORK, CUTS[name]) as cut:
        expected, _ = whole.forward(key, small_batch(0, 0))
        loss, _ = cut.forward(key, small_batch(0, 0))
        trained, _ = whole.forward(RunKey("train", 0, 0), small_batch(0, 0))
    assert loss == expected
    assert trained != expected


@pytest.mark.parametrize("name", ["two segments", "per node on three PNodes"])
def test_generation_gives_the_same_logits_on_every_cut_without_targets(name: str) -> None:
    inputs = {"tokens:0": small_batch(0, 0)["tokens:0"][:1]}
    key = RunKey("generate", 0, 0)
    with pipeline(NETWORK, WHOLE) as whole, pipeline(NETWORK, CUTS[name]) as cut:
        loss, expected = whole.forward(key, inputs)
        _, values = cut.forward(key, inputs)
        assert whole.at("a").live_microbatches() == 0
    assert loss is None
    assert expected["head:0"].shape == (1, 6, 11)
    assert expected["head:0"].tobytes() == values["head:0"].tobytes()


def test_evaluation_keeps_nothing_and_gives_exactly_what_the_segment_gives() -> None:
    with pipeline(NETWORK, CUTS["two segments"]) as made:
        result = made.at("a").forward(0, RunKey("evaluate", 0, 0), small_batch(0, 0))
        assert made.at("a").live_microbatches() == 0
        assert made.at("a").saved_bytes() == 0
    assert set(result.outputs) == {"skip_1:0"}
    assert result.loss_sum is None
