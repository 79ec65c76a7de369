"""What the parts of the NumPy reference share: buffers, threads, casts, layouts. Knows no op."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from dcnr_app.engine.backend import Array, Shape
from dcnr_app.engine.dtypes import accumulation_dtype
from dcnr_app.engine.pool import BufferPool
from dcnr_app.engine.tiles import TILE_ELEMENTS, BlasLimit, Task, TileRunner, row_tiles, rows_for_width


class ReferenceCore:
    """Owns the buffer pool, the threads and the BLAS limit."""

    def __init__(self, threads: int = 1) -> None:
        self._runner = TileRunner(threads)
        self._pool = BufferPool()
        self._blas = BlasLimit()

    def _empty(self, shape: Shape, dtype: np.dtype[np.generic]) -> Array:
        return self._pool.empty(shape, dtype)

    def _empty_like(self, x: Array) -> Array:
        return self._pool.empty(x.shape, x.dtype)

    def _wide(self, x: Array) -> Array:
        """`x` in its accumulation dtype: itself unless it is float16 or bfloat16."""
        return self._cast(x, accumulation_dtype(x.dtype))

    def _cast(self, x: Array, dtype: np.dtype[np.generic]) -> Array:
        """`x` itself if it has the dtype, else a cast copy."""
        if x.dtype == dtype:
            return x
        out = self._empty(x.shape, dtype)
        with np.errstate(all="ignore"):
            np.copyto(out, x, casting="unsafe")
        return out

    def _contiguous(self, x: Array) -> Array:
        """`x` itself if its memory is C-contiguous, else a copy that is."""
        if x.flags.c_contiguous:
            return x
        out = self._empty_like(x)
        np.copyto(out, x)
        return out

    def _operand(self, x: Array, *lengths: int) -> Array:
        """`x` in the accumulation dtype and in a layout that gives a product of these lengths its usual bits.

        OpenBLAS has other kernels for transposed small matrices, and for padded rows where a product
        degenerates to matrix times vector, with other rounding. So operands have rows, whatever view the
        caller holds, and these may be padded only where no length is 1.
        """
        wide = self._wide(x)
        strides, itemsize = wide.strides, wide.itemsize
        is_rows = strides[-1] == itemsize and strides[-2] >= itemsize * wide.shape[-1]
        if is_rows and 1 not in lengths and not strides[-2] % itemsize:
            return wide
        return self._contiguous(wide)

    def _apart(self, x: Array, other: Array) -> Array:
        """`x`, or a copy if it starts where `other` does: NumPy computes A Aᵀ with a kernel of its own."""
        if x.__array_interface__["data"][0] != other.__array_interface__["data"][0]:
            return x
        out = self._empty_like(x)
        np.copyto(out, x)
        return out

    def _map_flat(self, work: Callable[..., None], *arrays: Array) -> None:
        """Call `work` on equal flat stretches of C-contiguous arrays of one size."""
        flats = [x.reshape(-1) for x in arrays]
        tasks: list[Task] = [
            partial(work, *(flat[start:stop] for flat in flats))
            for start, stop in row_tiles(flats[0].size, TILE_ELEMENTS)
        ]
        self._runner.run(tasks)

    def _map_rows(self, work: Callable[[int, int], None], n_rows: int, width: int) -> None:
        """Call `work(start, stop)` over the fixed row tiles of rows with `width` elements."""
        tiles = row_tiles(n_rows, rows_for_width(width))
        self._runner.run([partial(work, start, stop) for start, stop in tiles])

    def _column_sums(self, x_NC: Array, out_C: Array) -> None:
        """Sum over rows as a fixed tree: rows in order within a tile, then the tiles in order."""
        n_rows, n_columns = x_NC.shape
        tiles = row_tiles(n_rows, rows_for_width(n_columns))
        partials = np.zeros((max(len(tiles), 1), n_columns), x_NC.dtype)
        for index, (start, stop) in enumerate(tiles):
            np.add.reduce(x_NC[start:stop], axis=0, out=partials[index])
        np.add.reduce(partials, axis=0, out=out_C)


def n_elements(shape: Shape) -> int:
    """Product of the lengths."""
    return math.prod(shape)
