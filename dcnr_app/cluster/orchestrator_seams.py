"""What an orchestrator is given: batches in, durable rows out, someone who watches. Protocols only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dcnr_app.cluster.effects import (
    AppendCommit,
    Progress,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.transport import HostArray

Parts = Mapping[str, Mapping[str, np.ndarray[Any, Any]]]
"""State of parameters: parameter -> slot -> host array."""


class Feed(Protocol):
    """Input tensors by reference for the microbatches of a step or of the validation."""

    def batch(self, step: int) -> tuple[Sequence[Mapping[str, HostArray]], Sequence[int], Sequence[int]]:
        """(tensors per microbatch, target counts, sample ids)."""
        ...

    def validation(self) -> tuple[Sequence[Mapping[str, HostArray]], Sequence[int]]:
        """(tensors per microbatch, target counts)."""
        ...


class Journal(Protocol):
    """What must be durable; blocking. Raises StoreError."""

    def commit(self, effect: AppendCommit) -> None:
        """The commit row and its ledger rows."""
        ...

    def checkpoint(self, effect: WriteCheckpoint, parts: Parts) -> str:
        """A checkpoint; returns its path."""
        ...

    def record(self, effect: Progress | Validated | WorkerReady) -> None:
        """Metrics, kept unless the power fails, and facts of the PNodes."""
        ...


class Observer(Protocol):
    """Who watches: called on the event loop, must return at once."""

    def worker_ready(self, event: WorkerReady) -> None: ...
    def progress(self, event: Progress) -> None: ...
    def validated(self, event: Validated) -> None: ...
