"""A message may carry the tensors that its session has, and nothing else, before a byte is allocated."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.expectations import Expectations, expectations_of, why_unexpected
from dcnr_app.cluster.messages import (
    AnyMessage,
    Commit,
    Configure,
    EvalRequest,
    GenerateRequest,
    GenerateResponse,
    Hop,
    LoadState,
    ParameterCopy,
    Ready,
    SiteGradient,
    StatePart,
    TensorHeader,
    TrainRequest,
)
from dcnr_app.engine.optimizers import slot_names
from dcnr_app.nodes.graph.training import Optimizer
from tests.sim.samples import SETTINGS, job_for, plan_for, tiny, with_settings

IDS = {"session": "s", "generation": 1}
EXPECTED = expectations_of(tiny(), SETTINGS, slot_names(SETTINGS.optimizer.type))
BATCH = ((2, 8), "int32")
WIDE = ((2, 8, 8), "float32")
HOP = {"request": 1, "phase": "train", "step": 1, "microbatch": 0, "segment": 0}
EDGE = "block/0/residual_1:0>block/0/residual_2:0"
REQUEST = {"request": 1, "step": 1}

GOOD: dict[str, tuple[AnyMessage, str, tuple[int, ...], str]] = {
    "train": (
        TrainRequest(**IDS, **REQUEST, microbatch=0, loss_scale=1.0, target_count=1),
        "targets:0",
        *BATCH,
    ),
    "evaluate": (EvalRequest(**IDS, **REQUEST, index=0), "tokenizer:0", *BATCH),
    "generate": (GenerateRequest(**IDS, **REQUEST, index=0, row=0), "tokenizer:0", *BATCH),
    "hop": (
        Hop(**IDS, **HOP, direction="F", slot="block/0/residual_1:0"),
        "block/0/residual_1:0",
        *WIDE,
    ),
    "hop back": (Hop(**IDS, **HOP, direction="B", slot=EDGE), EDGE, *WIDE),
    "logits": (GenerateResponse(**IDS, **REQUEST, index=0), "logits", (1, 1, 16), "float32"),
    "site": (
        SiteGradient(**IDS, step=1, parameter="embed.weight", site="head.weight"),
        "gradient",
        (16, 8),
        "float32",
    ),
    "copy": (ParameterCopy(**IDS, step=1, parameter="embed.weight"), "weight", (16, 8), "float32"),
    "load": (LoadState(**IDS, parameter="block/0/up.weight"), "m", (32, 8), "float32"),
    "state": (StatePart(**IDS, step=1, parameter="block/0/up.bias"), "v", (32,), "float32"),
}


def why(
    message: AnyMessage,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    expected: Expectations | None = EXPECTED,
) -> str:
    """The refusal of a message with one tensor."""
    return why_unexpected(expected, message, [TensorHeader(name, dtype, shape)])


@pytest.mark.parametrize("kind", GOOD)
def test_what_the_session_has_is_accepted(kind: str) -> None:
    assert why(*GOOD[kind]) == ""


@pytest.mark.parametrize("kind", GOOD)
def test_another_shape_is_refused_with_both(kind: str) -> None:
    message, name, shape, dtype = GOOD[kind]
    for other in ((*shape, 1), shape[:-1], (*shape[:-1], shape[-1] + 1)):
        reason = why(message, name, other, dtype)
        assert str(list(shape)) in reason
        assert str(list(other)) in reason


@pytest.mark.parametrize("kind", GOOD)
def test_another_dtype_is_refused(kind: str) -> None:
    message, name, shape, dtype = GOOD[kind]
    assert f"should be {dtype}" in why(message, name, shape, "float64")


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("name", ["", "weights", "tokens", "embed:1", EDGE + "0", "velocity"])
def test_another_name_is_refused(kind: str, name: str) -> None:
    message, _, shape, dtype = GOOD[kind]
    assert "is not expected in" in why(message, name, shape, dtype)


@pytest.mark.parametrize("kind", GOOD)
def test_one_bad_tensor_among_good_ones_is_enough(kind: str) -> None:
    message, name, shape, dtype = GOOD[kind]
    headers = [TensorHeader(name, dtype, shape), TensorHeader("other", dtype, shape)]
    assert "'other'" in why_unexpected(EXPECTED, message, headers)


@pytest.mark.parametrize("kind", GOOD)
def test_outside_a_session_no_tensor_is_expected(kind: str) -> None:
    assert why(*GOOD[kind], expected=None) == "no tensors are expected here"


@pytest.mark.parametrize("kind", ["site", "copy", "load", "state"])
def test_a_parameter_that_the_network_lacks_is_refused(kind: str) -> None:
    message, name, shape, dtype = GOOD[kind]
    assert why(msgspec.structs.replace(message, parameter="nobody.weight"), name, shape, dtype)


def test_a_hop_carries_the_tensor_of_its_slot_and_no_other() -> None:
    message, _, shape, dtype = GOOD["hop"]
    assert "not expected" in why(message, "block/0/norm_1:0", shape, dtype)
    backward = GOOD["hop back"][0]
    assert "not expected" in why(backward, "block/0/residual_1:0", shape, dtype)


def test_messages_without_tensors_pass_and_with_one_do_not() -> None:
    job = job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, 1))
    configure = Configure(
        **IDS, network=job.network, plan=job.plan, settings=SETTINGS, first_step=1, members=()
    )
    commit = Commit(**IDS, step=1, skip=False, clip_coefficient=1.0, learning_rate=0.1, t=1, loss_scale=1.0)
    ready = Ready(**IDS, device_class="x", pid=1)
    for message in (configure, commit, ready, *(good[0] for good in GOOD.values())):
        assert why_unexpected(EXPECTED, message, []) == ""
        assert why_unexpected(None, message, []) == ""
    for message in (configure, commit, ready):
        assert why(message, "weight", (16, 8), "float32")


def test_the_slots_are_the_optimizers() -> None:
    sgd = expectations_of(tiny(), with_settings(optimizer=Optimizer(type="sgd")), slot_names("sgd"))
    load = GOOD["load"][0]
    assert why(load, "velocity", (32, 8), "float32", sgd) == ""
    assert why(load, "m", (32, 8), "float32", sgd)
    assert why(load, "weight", (32, 8), "float32", sgd) == ""


def test_a_network_without_logits_expects_no_answer() -> None:
    silent = msgspec.structs.replace(tiny(), outputs={"loss": "loss:0"})
    assert why(
        *GOOD["logits"], expected=expectations_of(silent, SETTINGS, slot_names(SETTINGS.optimizer.type))
    )
