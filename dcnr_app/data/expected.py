"""What the sample ledger must hold, worked out again without the batch cursor. Pure; knows no tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np

from dcnr_app.errors import UserError


def expected_samples(seed: int, n_windows: int, batch: int, steps: int) -> Iterator[tuple[int, ...]]:
    """The sample ids of steps 1, 2, … `steps`: the endless row of epochs, cut every `batch` samples.

    Raises UserError, at once, if there is no window or the batch is empty: epochs of nothing have no sample.
    """
    if n_windows < 1 or batch < 1:
        raise UserError(
            f"no step can have samples: {n_windows} windows of training text, {batch} in a batch",
            why="both must be at least 1",
            fix="use the dataset and the settings with which the session was trained",
        )
    row = _endless(seed, n_windows)
    return (tuple(islice(row, batch)) for _ in range(steps))


def _endless(seed: int, n_windows: int) -> Iterator[int]:
    for epoch in count():
        words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(n_windows).tolist()
        for window in sorted(range(n_windows), key=words.__getitem__):
            yield epoch * n_windows + window
