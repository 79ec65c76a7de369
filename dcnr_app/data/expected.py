"""What the sample ledger must hold, worked out again without the batch cursor. Pure; knows no tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np


def expected_samples(seed: int, n_windows: int, batch: int, steps: int) -> Iterator[tuple[int, ...]]:
    """The sample ids of steps 1, 2, … `steps`: the endless row of epochs, cut every `batch` samples."""
    row = _endless(seed, n_windows)
    for _ in range(steps):
        yield tuple(islice(row, batch))


def _endless(seed: int, n_windows: int) -> Iterator[int]:
    for epoch in count():
        words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(n_windows).tolist()
        for window in sorted(range(n_windows), key=words.__getitem__):
            yield epoch * n_windows + window
