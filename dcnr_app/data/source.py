"""The batch source seam: where microbatches come from. Pure; hands out host arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from dcnr_app.errors import InvariantError

HostArray = np.ndarray[Any, Any]


class CursorState(msgspec.Struct, frozen=True):
    """A place in the stream of samples: how many were handed out since step 1."""

    position: int


class Microbatch(NamedTuple):
    """Token ids and next-token targets (int32, (rows, context)); target -1 is not counted."""

    tokens: HostArray
    targets: HostArray
    samples: tuple[int, ...]
    """Ids of the samples in it: epoch * n_samples + window."""

    target_count: int


class BatchSource(Protocol):
    """Training batches as a pure function of (seed, position), and the fixed validation batches."""

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """The microbatches of a step (from 1). The same step always gives the same samples."""
        ...

    def validation(self) -> tuple[Microbatch, ...]:
        """The validation microbatches; the last one is padded with target -1."""
        ...


class NoBatches:
    """The BatchSource of a session that is only asked to generate."""

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """Raises InvariantError: nothing is left to train."""
        raise InvariantError(f"step {step} was asked for, but there is no dataset")

    def validation(self) -> tuple[Microbatch, ...]:
        """Raises InvariantError: nothing is left to validate."""
        raise InvariantError("a validation was asked for, but there is no dataset")
