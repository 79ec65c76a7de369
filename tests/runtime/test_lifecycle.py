"""What a step leaves behind, what is refused, and how state goes in and out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dcnr_app.errors import InvalidError, InvariantError, PeerError
from dcnr_app.nodes.contract import ParamSpec
from dcnr_app.runtime.keys import Decision, RunKey
from dcnr_app.runtime.parameters import initial_value
from tests.runtime.driving import SCALE, Pipeline, pipeline, same_state
from tests.runtime.networks import small_batch, small_gpt
from tests.runtime.plans import cut_at

NETWORK = small_gpt()
KEY = RunKey("train", 0, 0)


@pytest.fixture
def whole() -> Iterator[Pipeline]:
    """One PNode with one segment."""
    with pipeline(NETWORK, cut_at(NETWORK)) as made:
        yield made


@pytest.fixture
def halves() -> Iterator[Pipeline]:
    """Two PNodes with a segment each."""
    with pipeline(NETWORK, cut_at(NETWORK, "norm_2", pnodes=("a", "b"))) as made:
        yield made


def test_a_step_leaves_no_saved_arrays_and_no_buffers_but_parameters(halves: Pipeline) -> None:
    held = {pnode: runtime.live_buffers() for pnode, runtime in halves.runtimes.items()}
    halves.forward(KEY, small_batch(0, 0))
    assert all(runtime.live_microbatches() == 1 for runtime in halves.runtimes.values())
    assert all(runtime.saved_bytes() > 0 for runtime in halves.runtimes.values())
    halves.backward(KEY)
    halves.forward(RunKey("train", 0, 1), small_batch(0, 1))
    halves.backward(RunKey("train", 0, 1))
    halves.facts()
    halves.apply(0)
    for pnode, runtime in halves.runtimes.items():
        assert (runtime.live_microbatches(), runtime.saved_bytes()) == (0, 0)
        assert runtime.live_buffers() == held[pnode]


def test_dropping_a_microbatch_forgets_its_arrays_and_no_others(whole: Pipeline) -> None:
    runtime = whole.at("a")
    whole.forward(KEY, small_batch(0, 0))
    one = runtime.saved_bytes()
    whole.forward(RunKey("train", 0, 1), small_batch(0, 1))
    assert runtime.live_microbatches() == 2
    runtime.drop(KEY)
    assert (runtime.live_microbatches(), runtime.saved_bytes()) == (1, one)
    with pytest.raises(InvariantError, match="without a forward"):
        runtime.backward(0, KEY, {}, 1.0)


def test_a_skip_leaves_parameters_and_slots_as_they_were(halves: Pipeline) -> None:
    halves.step(0)
    before = halves.state()
    halves.gradients(1)
    halves.facts()
    halves.apply(1, skip=True)
    assert same_state(halves.state(), before)
    halves.step(2)
    assert not same_state(halves.state(), before)


def test_weight_decay_shrinks_matrices_and_leaves_gains_and_biases(whole: Pipeline) -> None:
    before = whole.state()
    whole.gradients(0)
    whole.facts()
    whole.at("a").apply(Decision(False, 0.0, 0.5, 1, SCALE))
    after = whole.state()
    for name in ("up.bias", "norm_1.gain"):
        assert after[name]["weight"].tobytes() == before[name]["weight"].tobytes()
    for name in ("up.weight", "embed.weight", "side.weight"):
        np.testing.assert_allclose(after[name]["weight"], 0.95 * before[name]["weight"], rtol=1e-6)


def test_tensors_that_leave_a_segment_are_contiguous() -> None:
    with pipeline(NETWORK, cut_at(NETWORK, "down")) as made:
        outputs = made.at("a").forward(0, KEY, small_batch(0, 0)).outputs
    assert {"parts:0", "parts:2"} <= outputs.keys()
    assert all(array.flags.c_contiguous for array in outputs.values())


def test_state_taken_before_an_update_does_not_change_with_it(whole: Pipeline) -> None:
    state = whole.at("a").state("up.weight")
    kept = {slot: array.copy() for slot, array in state.items()}
    whole.step(0)
    assert set(state) == {"weight", "m", "v"}
    assert all(state[slot].tobytes() == kept[slot].tobytes() for slot in kept)


@pytest.mark.parametrize("firsts", [("norm_2",), ("place", "copies", "norm_3")])
def test_loading_a_state_continues_bit_by_bit_on_another_cut(
    whole: Pipeline, firsts: tuple[str, ...]
) -> None:
    whole.step(0)
    state = whole.state()
    with pipeline(NETWORK, cut_at(NETWORK, *firsts, pnodes=("a", "b"))) as other:
        for runtime in other.runtimes.values():
            for name in runtime.owned():
                runtime.load(name, state[name])
            for name in runtime.copies_expected():
                runtime.load(name, {"weight": state[name]["weight"]})
        assert same_state(dict(sorted(other.state().items())), dict(sorted(state.items())))
        assert other.step(1) == whole.step(1)


def test_loading_does_not_keep_hold_of_the_given_arrays(whole: Pipeline) -> None:
    state = whole.at("a").state("up.weight")
    kept = {slot: array.copy() for slot, array in state.items()}
    whole.at("a").load("up.weight", state)
    whole.step(0)
    assert all(state[slot].tobytes() == kept[slot].tobytes() for slot in kept)


def test_loading_in_the_middle_of_a_step_forgets_its_gradients(whole: Pipeline) -> None:
    runtime = whole.at("a")
    state = whole.state()
    whole.gradients(0)
    whole.facts()
    for name in runtime.owned():
        runtime.load(name, state[name])
    undisturbed = whole.step(0)
    with pipeline(NETWORK, cut_at(NETWORK)) as fresh:
        assert fresh.step(0) == undisturbed


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": np.zeros((32, 8), np.float32)}, "lacks m, v"),
        ({name: np.zeros((8, 32), np.float32) for name in ("weight", "m", "v")}, "does not fit"),
        ({name: np.zeros((32, 8), np.float64) for name in ("weight", "m", "v")}, "does not fit"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    whole: Pipeline, tensors: dict[str, np.ndarray], message: str
) -> None:
    before = whole.state()
    with pytest.raises(InvalidError, match=message):
        whole.at("a").load("up.weight", tensors)
    assert same_state(whole.state(), before)


def test_gradients_out_of_microbatch_order_are_refused(whole: Pipeline) -> None:
    second = RunKey("train", 0, 1)
    whole.forward(KEY, small_batch(0, 0))
    whole.forward(second, small_batch(0, 1))
    with pytest.raises(InvariantError, match="out of order"):
        whole.backward(second)


def test_gradients_of_two_steps_are_not_mixed(whole: Pipeline) -> None:
    other = RunKey("train", 1, 1)
    whole.forward(KEY, small_batch(0, 0))
    whole.backward(KEY)
    whole.forward(other, small_batch(1, 1))
    with pytest.raises(InvariantError, match="out of order"):
        whole.backward(other)


def test_facts_wait_for_all_microbatches_and_come_once(whole: Pipeline) -> None:
    runtime = whole.at("a")
    whole.forward(KEY, small_batch(0, 0))
    whole.backward(KEY)
    with pytest.raises(InvariantError, match="1 of 2 microbatches"):
        runtime.facts({}, SCALE)
    whole.forward(RunKey("train", 0, 1), small_batch(0, 1))
    whole.backward(RunKey("train", 0, 1))
    runtime.facts({}, SCALE)
    with pytest.raises(InvariantError, match="already folded"):
        runtime.facts({}, SCALE)


def test_a_decision_without_facts_is_refused(whole: Pipeline) -> None:
    with pytest.raises(InvariantError, match="cannot be applied"):
        whole.at("a").apply(Decision(False, 1.0, 1e-3, 1, 1.0))


def test_the_owner_asks_for_the_sums_of_other_sites(halves: Pipeline) -> None:
    halves.gradients(0)
    with pytest.raises(InvariantError, match=r"embed\.weight at head\.weight"):
        halves.at("a").facts({}, SCALE)


def test_an_error_inside_a_vnode_names_vnode_segment_step_and_microbatch(whole: Pipeline) -> None:
    held = whole.at("a").live_buffers()
    bad = small_batch(3, 1)
    bad["tokens:0"][0, 0] = 99
    with pytest.raises(PeerError) as caught:
        whole.forward(RunKey("train", 3, 1), bad)
    text = str(caught.value)
    assert all(part in text for part in ("'embed'", "segment 0", "step 3", "microbatch 1", "ValueError"))
    assert isinstance(caught.value.__cause__, ValueError)
    assert whole.at("a").live_buffers() == held
    assert whole.at("a").live_microbatches() == 0


def test_missing_inputs_and_gradients_are_named(halves: Pipeline) -> None:
    with pytest.raises(InvariantError, match="tokens:0 are missing"):
        halves.at("a").forward(0, KEY, {})
    halves.forward(KEY, small_batch(0, 0))
    with pytest.raises(InvariantError, match=r"skip_1:0>skip_2:0 are missing"):
        halves.at("a").backward(0, KEY, {"skip_1:0>norm_2:0": np.zeros(1)}, 1.0)


def test_a_segment_of_another_pnode_is_refused(halves: Pipeline) -> None:
    with pytest.raises(InvariantError, match="does not belong"):
        halves.at("a").forward(1, KEY, {})


def test_running_a_microbatch_twice_is_refused(whole: Pipeline) -> None:
    whole.forward(KEY, small_batch(0, 0))
    with pytest.raises(InvariantError, match="already run"):
        whole.forward(KEY, small_batch(0, 0))


def test_closing_twice_is_safe_and_leaves_nothing(whole: Pipeline) -> None:
    runtime = whole.at("a")
    whole.forward(KEY, small_batch(0, 0))
    runtime.close()
    runtime.close()
    assert (runtime.live_microbatches(), runtime.saved_bytes(), runtime.live_buffers()) == (0, 0, 0)


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    spec = ParamSpec(shape=(64, 32), init="normal", std=0.5)
    value = initial_value(1, "block/0/up.weight", spec)
    assert value.dtype == np.float32
    assert value.tobytes() == initial_value(1, "block/0/up.weight", spec).tobytes()
    assert value.tobytes() != initial_value(2, "block/0/up.weight", spec).tobytes()
    assert value.tobytes() != initial_value(1, "block/1/up.weight", spec).tobytes()
    assert abs(float(value.mean())) < 0.05
    assert float(value.std()) == pytest.approx(0.5, rel=0.05)
    assert (initial_value(1, "gain", ParamSpec(shape=(3,), init="ones")) == 1).all()
    assert not initial_value(1, "bias", ParamSpec(shape=(3,), init="zeros")).any()
