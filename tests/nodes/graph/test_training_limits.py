"""Numbers that no training can use are refused before anything starts."""

from __future__ import annotations

import math

import pytest

from dcnr_app.errors import UserError
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.graph.training_form import resolve_training


@pytest.mark.parametrize(
    "name", ["learning_rate", "eps", "weight_decay", "clip_norm", "beta1", "final_fraction"]
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_setting_is_infinite_or_no_number(name: str, value: float) -> None:
    with pytest.raises(UserError):
        resolve_training(TrainingSettings(), **{name: value})


@pytest.mark.parametrize("name", ["steps", "batch", "checkpoint_every", "warmup_steps", "in_flight", "seed"])
def test_no_count_is_too_large_for_the_wire(name: str) -> None:
    with pytest.raises(UserError):
        resolve_training(TrainingSettings(), **{name: 2**64})
