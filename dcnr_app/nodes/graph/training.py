"""Training settings: the YAML's `training:` section and the resolved values that a Session stores. Pure.

Not part of the Network: the same Network can be trained in many ways.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_MOST = 2**31 - 1  # what fits in 32 bits is enough for any count here, and JSON and msgpack can carry it
PositiveInt = Annotated[int, Meta(ge=1, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Fraction = Annotated[float, Meta(ge=0.0, lt=1.0)]
_LARGEST = 1e30  # also keeps infinity out, which JSON cannot carry
Positive = Annotated[float, Meta(gt=0.0, le=_LARGEST)]
NonNegative = Annotated[float, Meta(ge=0.0, le=_LARGEST)]


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW (Loshchilov & Hutter 2019) or SGD with momentum `beta1`."""

    type: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Positive = 3e-4
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.1


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Learning rate over updates: linear warm-up, then cosine decay to `final_fraction` of the peak, or
    constant."""

    type: Literal["cosine", "constant"] = "cosine"
    warmup_steps: Count = 20
    final_fraction: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1


class TrainingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides the numbers besides Network, dataset and device class.

    `batch` is sequences per step, split into `microbatches` equal parts. `in_flight` caps microbatches under
    way (0: a figure fit for the plan's depth). It changes no result.
    """

    steps: PositiveInt = 200
    batch: PositiveInt = 32
    microbatches: PositiveInt = 4
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    precision: Literal["float32"] = "float32"
    clip_norm: NonNegative = 1.0
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    validate_every: PositiveInt = 100
    validation_sequences: PositiveInt = 64
    checkpoint_every: PositiveInt = 10
    keep_last: PositiveInt = 3
    in_flight: Count = 0

    @property
    def rows(self) -> int:
        """Sequences in one microbatch."""
        return self.batch // self.microbatches


def check_training(settings: TrainingSettings) -> TrainingSettings:
    """`settings` if its fields fit each other. Raises ValueError otherwise."""
    if settings.batch % settings.microbatches:
        raise ValueError(
            f"batch {settings.batch} is not divisible by microbatches {settings.microbatches}: "
            "all microbatches have the same shape"
        )
    return settings


def settings_form(settings: TrainingSettings) -> dict[str, Any]:
    """The plain mapping of all settings, defaults included, as it is stored with the session."""
    form: dict[str, Any] = msgspec.to_builtins(settings)
    for name in ("optimizer", "schedule"):
        section = getattr(settings, name)
        form[name] = {field.name: getattr(section, field.name) for field in msgspec.structs.fields(section)}
    for field in msgspec.structs.fields(settings):
        form.setdefault(field.name, getattr(settings, field.name))
    return form
