"""Training settings from files and from flags."""

from __future__ import annotations

import pytest

from dcnr_app.errors import UserError
from dcnr_app.nodes.graph.training import Optimizer, Schedule, TrainingSettings
from dcnr_app.nodes.graph.training_form import resolve_training
from tests.nodes.graph.samples import SMALL, load, replaced


def test_what_the_file_leaves_out_has_its_default() -> None:
    assert load(SMALL).training == TrainingSettings(
        steps=10, batch=8, microbatches=2, optimizer=Optimizer(learning_rate=1e-3)
    )


def test_a_file_without_training_has_all_defaults() -> None:
    assert load(SMALL[: SMALL.index("training:")]).training == TrainingSettings()


def test_training_values_may_be_expressions() -> None:
    text = replaced("steps: 10", "steps: ${width * 5}\n  schedule: {warmup_steps: $width}")
    training = load(text).training
    assert (training.steps, training.schedule.warmup_steps) == (40, 8)


def test_flags_override_by_plain_names_and_none_means_not_given() -> None:
    found = resolve_training(
        TrainingSettings(),
        steps=7,
        batch=None,
        learning_rate=0.5,
        warmup_steps=3,
        optimizer="sgd",
        schedule="constant",
    )
    assert found == TrainingSettings(
        steps=7,
        optimizer=Optimizer(type="sgd", learning_rate=0.5),
        schedule=Schedule(type="constant", warmup_steps=3),
    )


def test_no_flags_change_nothing() -> None:
    settings = TrainingSettings(steps=3, optimizer=Optimizer(type="sgd"), in_flight=2)
    assert resolve_training(settings) == settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"step": 1}, "no training setting 'step'"),
        ({"steps": 0}, "Expected `int` >= 1"),
        ({"steps": "3"}, "Expected `int`, got `str`"),
        ({"microbatches": 3}, "batch 32 is not divisible by microbatches 3"),
        ({"optimizer": "adam"}, "Invalid enum value 'adam'"),
        ({"learning_rate": float("nan")}, "Expected `float` > 0.0"),
    ],
)
def test_flags_that_do_not_fit_are_the_users_error(flags: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_training(TrainingSettings(), **flags)
    assert message in caught.value.what
