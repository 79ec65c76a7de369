"""A pool of large buffers: memory comes back when the last array over it is gone. Knows no operation.

Why a pool: fresh pages halve the speed of a matrix product (the kernel zeroes each page at first touch).
Why reclaimed by lifetime and not by a call: an array and its views share memory, and only the death of all of
them proves that nobody can see a later writer.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from dcnr_app.engine.backend import MemoryFigures, Shape

POOLED_FROM_BYTES = 64 * 1024
ALIGNMENT_BYTES = 64
SLACK_BYTES = 64 * 1024 * 1024
"""Free buffers of sizes that are no longer asked for are let go beyond this much over the peak use."""


class _Block(np.ndarray[Any, Any]):
    """Raw bytes that the pool owns. A type of its own: NumPy collapses a view's base through equal types."""


class _Lease(np.ndarray[Any, Any]):
    """One loan of a block. Every array over the block keeps this object alive; its end returns the block."""

    pool: BufferPool | None = None
    block: _Block

    def __del__(self) -> None:
        """Give the block back; a view of a lease has no pool and returns nothing."""
        if self.pool is not None:
            self.pool._take_back(self.block)


class BufferPool:
    """Free blocks by exact size. Safe to use from many threads."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end a lease while this thread is inside the lock.
        self._lock = threading.RLock()
        self._free: dict[int, list[_Block]] = {}
        self._used_bytes = 0
        self._pooled_bytes = 0
        self._peak_bytes = 0

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised C-contiguous array; from the pool if it has at least 64 KiB."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < POOLED_FROM_BYTES:
            return np.empty(shape, dtype)
        block = self._lend(n_bytes)
        lease = block.view(_Lease)
        lease.block = block
        lease.pool = self
        return np.ndarray(shape, dtype, buffer=lease)

    def owns(self, x: np.ndarray[Any, Any]) -> bool:
        """Whether the memory of `x` is on loan from this pool."""
        base = x.base
        while base is not None:
            if isinstance(base, _Lease):
                return base.pool is self
            base = getattr(base, "base", None)
        return False

    def figures(self) -> MemoryFigures:
        """Bytes on loan, bytes free in the pool, and the most that was ever on loan at once."""
        with self._lock:
            return MemoryFigures(self._used_bytes, self._pooled_bytes, self._peak_bytes)

    def clear(self) -> None:
        """Let go of all free blocks."""
        with self._lock:
            self._free.clear()
            self._pooled_bytes = 0

    def _lend(self, n_bytes: int) -> _Block:
        with self._lock:
            free = self._free.get(n_bytes)
            if free:
                self._pooled_bytes -= n_bytes
                self._count_loan(n_bytes)
                return free.pop()
        block = _new_block(n_bytes)
        with self._lock:
            self._count_loan(n_bytes)
            self._trim()
        return block

    def _count_loan(self, n_bytes: int) -> None:
        self._used_bytes += n_bytes
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)

    def _take_back(self, block: _Block) -> None:
        with self._lock:
            self._free.setdefault(block.nbytes, []).append(block)
            self._used_bytes -= block.nbytes
            self._pooled_bytes += block.nbytes

    def _trim(self) -> None:
        """Drop free blocks, oldest size first, while loans and pool together pass peak use plus slack."""
        for n_bytes in list(self._free):
            free = self._free[n_bytes]
            while free and self._used_bytes + self._pooled_bytes > self._peak_bytes + SLACK_BYTES:
                free.pop()
                self._pooled_bytes -= n_bytes
            if not free:
                del self._free[n_bytes]


def _new_block(n_bytes: int) -> _Block:
    raw = np.empty(n_bytes + ALIGNMENT_BYTES, np.uint8)
    skip = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return raw[skip : skip + n_bytes].view(_Block)
