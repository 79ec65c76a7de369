"""Cuts work into tiles that depend on shape alone, and runs them on threads. Knows no operation.

The number of threads decides only who computes a tile, never what a tile is: so results do not depend on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

Tile = tuple[int, int]
Task = Callable[[], None]

LINEAR_ROWS = 256
"""Rows per tile of a matrix product: 94 of 102 GFLOP/s at 128 columns, and four tiles at 1024 rows."""
TILE_ELEMENTS = 128 * 1024
"""Elements per tile of element-wise and row-wise work: 512 KiB of float32. Smaller tiles fit the L2 cache
but pass the interpreter lock so often that a second thread gains nothing (32 Ki: 10 % slower on one, too)."""
MAX_TILE_ROWS = 1024


def row_tiles(n_rows: int, rows: int) -> list[Tile]:
    """[start, stop) of each tile. A remainder of one row joins the tile before it: BLAS computes a single row
    with another kernel (GEMV), so it would differ from the same row among others."""
    if n_rows <= rows + 1:
        return [(0, n_rows)] if n_rows else []
    starts = list(range(0, n_rows, rows))
    if n_rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], n_rows], strict=True))


def rows_for_width(width: int) -> int:
    """Rows per tile of row-wise work whose rows have `width` elements."""
    return max(8, min(MAX_TILE_ROWS, TILE_ELEMENTS // max(width, 1)))


def output_rows(n_outputs: int) -> int:
    """Output rows per tile of a weight gradient: small enough to share out, large enough for full speed."""
    if n_outputs < 256:
        return 64
    return 128 if n_outputs < 2048 else 256


class BlasLimit:
    """Holds the process's BLAS at one thread while any instance is open, then restores what was set before.

    The thread count of a BLAS library belongs to the process, so the count of its holders does too.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _holders: ClassVar[int] = 0
    _limits: ClassVar[threadpool_limits | None] = None

    def __init__(self) -> None:
        self._is_open = True
        with BlasLimit._lock:
            if BlasLimit._holders == 0:
                BlasLimit._limits = threadpool_limits(1, user_api="blas")
            BlasLimit._holders += 1

    def close(self) -> None:
        """Stop holding; safe to call twice."""
        with BlasLimit._lock:
            if not self._is_open:
                return
            self._is_open = False
            BlasLimit._holders -= 1
            if BlasLimit._holders == 0 and BlasLimit._limits is not None:
                BlasLimit._limits.restore_original_limits()
                BlasLimit._limits = None


class TileRunner:
    """Runs tasks that write to disjoint places; the calling thread works too. Tasks start no tasks."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"expected at least one thread; got {threads}")
        self._n_helpers = threads - 1
        self._helpers: ThreadPoolExecutor | None = None
        if threads > 1:
            self._helpers = ThreadPoolExecutor(self._n_helpers, thread_name_prefix="dcnr-tile")

    def run(self, tasks: Sequence[Task]) -> None:
        """Do all tasks; returns when the last has ended. Raises what a task raised."""
        pending = deque(tasks)
        futures: list[Future[None]] = []
        if self._helpers is not None:
            for _ in range(min(self._n_helpers, len(tasks) - 1)):
                futures.append(self._helpers.submit(_drain, pending))
        try:
            _drain(pending)
        finally:
            # A helper that has not started yet has nothing left to do.
            failures = [future.exception() for future in futures if not future.cancel()]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        """End the threads."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)


def _drain(pending: deque[Task]) -> None:
    # Infinities and NaN are values here (the loss scaler looks for them), not warnings.
    with np.errstate(all="ignore"):
        while True:
            try:
                task = pending.popleft()
            except IndexError:
                return
            task()
