"""The batch cursor: which windows of the token stream make each step's microbatches.

A pure function of (seed, position). Sample id = epoch * n_windows + window. Knows no training.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dcnr_app.data.dataset import Dataset
from dcnr_app.data.shards import TokenStream
from dcnr_app.data.source import CursorState, HostArray, Microbatch
from dcnr_app.errors import UserError


class CursorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences per step (`batch`), equal parts of it, tokens per sequence, validation sequences."""

    seed: int
    batch: int
    microbatches: int
    context: int
    validation_sequences: int


class BatchCursor:
    """Training batches and validation batches of a dataset: a BatchSource.

    Window i is tokens [i T, i T + T] of the stream, T the context: T inputs and their next tokens. Each epoch
    takes every window once, in an order keyed by (seed, epoch).
    """

    def __init__(self, dataset: Dataset, settings: CursorSettings) -> None:
        _check(settings)
        self._train = dataset.train
        self._validation = dataset.validation
        self._settings = settings
        self.n_windows = n_windows(dataset.train, settings.context)
        # the orders of the latest epochs: a batch touches at most two; a cache, never state
        self._orders: dict[int, HostArray] = {}
        if self.n_windows < settings.batch:
            raise UserError(
                f"the training text has {self.n_windows} windows of {settings.context} tokens; "
                f"a batch needs {settings.batch}",
                where=str(dataset.folder),
                fix="give more text, or a smaller batch or context",
            )
        if not n_windows(dataset.validation, settings.context):
            raise UserError(
                f"the validation text has {dataset.validation.n_tokens} tokens; "
                f"one window needs {settings.context + 1}",
                where=str(dataset.folder),
                fix="give more text, a larger validation share, or a smaller context",
            )

    @property
    def rows(self) -> int:
        """Sequences in one microbatch."""
        return self._settings.batch // self._settings.microbatches

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """The microbatches of a step (from 1). The same step always gives the same samples."""
        return self.batch_at(self.state_before(step))[0]

    def batch_at(self, state: CursorState) -> tuple[tuple[Microbatch, ...], CursorState]:
        """The microbatches that begin at `state`, and the state after them."""
        stop = state.position + self._settings.batch
        samples = [self._sample(position) for position in range(state.position, stop)]
        parts = [samples[i : i + self.rows] for i in range(0, len(samples), self.rows)]
        return tuple(self._microbatch(part) for part in parts), CursorState(stop)

    def state_before(self, step: int) -> CursorState:
        """The state from which a step (from 1) takes its samples. Raises UserError for a step below 1."""
        if step < 1:
            raise UserError(f"step {step} does not exist", why="steps count from 1")
        return CursorState((step - 1) * self._settings.batch)

    def validation(self) -> tuple[Microbatch, ...]:
        """Microbatches of fixed windows, spread evenly over the validation text; the last one is padded with
        token 0 and target -1. Their sample ids are window numbers."""
        total = n_windows(self._validation, self._settings.context)
        chosen = min(self._settings.validation_sequences, total)
        windows = [i * total // chosen for i in range(chosen)]
        return tuple(
            _padded(self._validation, windows[i : i + self.rows], self._settings.context, self.rows)
            for i in range(0, chosen, self.rows)
        )

    def _sample(self, position: int) -> int:
        epoch, index = divmod(position, self.n_windows)
        if epoch not in self._orders:
            self._orders = {kept: order for kept, order in self._orders.items() if kept == epoch - 1}
            self._orders[epoch] = epoch_order(self._settings.seed, epoch, self.n_windows)
        return epoch * self.n_windows + int(self._orders[epoch][index])

    def _microbatch(self, samples: Sequence[int]) -> Microbatch:
        windows = [sample % self.n_windows for sample in samples]
        batch = _padded(self._train, windows, self._settings.context, len(windows))
        return batch._replace(samples=tuple(samples))


def n_windows(stream: TokenStream, context: int) -> int:
    """Windows of `context` inputs that the stream holds, each with its next token."""
    return max(stream.n_tokens - 1, 0) // context


def epoch_order(seed: int, epoch: int, n: int) -> HostArray:
    """The order of n windows in an epoch: int64 (n,), a permutation keyed by (seed, epoch).

    Windows sorted by Philox4x64-10 words (Salmon et al. 2011). NumPy keeps the words of a bit generator the
    same for ever, but not `Generator.permutation`.
    """
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(n)
    return np.argsort(words, kind="stable")


def _check(settings: CursorSettings) -> None:
    for name in ("batch", "microbatches", "context", "validation_sequences"):
        if getattr(settings, name) < 1:
            raise UserError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if settings.batch % settings.microbatches:
        raise UserError(
            f"batch {settings.batch} is not divisible by microbatches {settings.microbatches}",
            why="all microbatches have the same shape",
        )


def _padded(stream: TokenStream, windows: Sequence[int], context: int, rows: int) -> Microbatch:
    tokens = np.zeros((rows, context), dtype=np.int32)
    targets = np.full((rows, context), -1, dtype=np.int32)
    for row, window in enumerate(windows):
        start = window * context
        ids = stream.read(start, start + context + 1)
        tokens[row] = ids[:-1]
        targets[row] = ids[1:]
    return Microbatch(tokens, targets, tuple(windows), len(windows) * context)
