"""Matrix products of the NumPy reference: matmul and the affine map. Knows no other op.

Legend: N rows · I in · O out · G batch.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dcnr_app.engine.backend import Array
from dcnr_app.engine.reference_core import ReferenceCore
from dcnr_app.engine.tiles import LINEAR_ROWS, TILE_ELEMENTS, Task, output_rows, row_tiles


class LinearOps(ReferenceCore):
    """Products over fixed row tiles (y, dx) and fixed output tiles with all rows (dw)."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Batched product over the last two axes. Raises ValueError unless the other axes are equal."""
        if a.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"matmul expects (..., M, K) and (..., K, N), got {a.shape} and {b.shape}")
        lengths = (*a.shape[-2:], b.shape[-1])
        wide_a, wide_b = self._operand(a, *lengths), self._operand(b, *lengths)
        wide_b = self._apart(wide_b, wide_a)
        out = self._empty((*a.shape[:-1], b.shape[-1]), wide_a.dtype)
        tasks: list[Task]
        if a.ndim == 2:
            tasks = [
                partial(np.matmul, wide_a[start:stop], wide_b, out[start:stop])
                for start, stop in row_tiles(a.shape[0], LINEAR_ROWS)
            ]
        else:
            a_GMK, b_GKN, out_GMN = (x.reshape(-1, *x.shape[-2:]) for x in (wide_a, wide_b, out))
            per_tile = max(1, TILE_ELEMENTS // max(math.prod(out.shape[-2:]), 1))
            tasks = [
                partial(np.matmul, a_GMK[start:stop], b_GKN[start:stop], out_GMN[start:stop])
                for start, stop in row_tiles(out_GMN.shape[0], per_tile)
            ]
        self._runner.run(tasks)
        return self._cast(out, a.dtype)

    def linear_forward(self, x_NI: Array, w_OI: Array, b_O: Array | None) -> Array:
        """y_NO = x_NI Wᵀ + b."""
        if x_NI.ndim != 2 or w_OI.ndim != 2 or x_NI.shape[1] != w_OI.shape[1]:
            raise ValueError(f"linear_forward expects (N, I) and (O, I), got {x_NI.shape} and {w_OI.shape}")
        lengths = (*x_NI.shape, w_OI.shape[0])
        x = self._operand(x_NI, *lengths)
        w_IO = self._apart(self._operand(w_OI, *lengths), x).T
        bias = None if b_O is None else self._wide(b_O)
        y = self._empty((x_NI.shape[0], w_OI.shape[0]), x.dtype)

        def work(start: int, stop: int) -> None:
            tile = y[start:stop]
            np.matmul(x[start:stop], w_IO, out=tile)
            if bias is not None:
                np.add(tile, bias, out=tile)

        self._runner.run([partial(work, *tile) for tile in row_tiles(y.shape[0], LINEAR_ROWS)])
        return self._cast(y, x_NI.dtype)

    def linear_backward(
        self, x_NI: Array, w_OI: Array, dy_NO: Array, *, has_bias: bool
    ) -> tuple[Array, Array, Array | None]:
        """dx = dy W, dW = dyᵀ x, db = Σ_N dy."""
        if dy_NO.shape != (x_NI.shape[0], w_OI.shape[0]) or x_NI.shape[1] != w_OI.shape[1]:
            shapes = f"{x_NI.shape}, {w_OI.shape}, {dy_NO.shape}"
            raise ValueError(f"linear_backward expects (N, I), (O, I), (N, O), got {shapes}")
        lengths = (*x_NI.shape, w_OI.shape[0])
        dy = self._operand(dy_NO, *lengths)
        x = self._apart(self._operand(x_NI, *lengths), dy)
        w = self._apart(self._operand(w_OI, *lengths), dy)
        dx, dw = self._empty_like(x), self._empty_like(w)
        db = self._empty((w.shape[0],), w.dtype) if has_bias else None
        n_outputs = w.shape[0]
        # The longest tasks first: the last to end then ends soonest.
        tasks: list[Task] = [
            partial(np.matmul, dy[:, start:stop].T, x, dw[start:stop])
            for start, stop in row_tiles(n_outputs, output_rows(n_outputs))
        ]
        tasks += [
            partial(np.matmul, dy[start:stop], w, dx[start:stop])
            for start, stop in row_tiles(dy.shape[0], LINEAR_ROWS)
        ]
        if db is not None:
            tasks.append(partial(self._column_sums, dy, db))
        self._runner.run(tasks)
        wide_db = None if db is None else self._cast(db, w_OI.dtype)
        return self._cast(dx, x_NI.dtype), self._cast(dw, w_OI.dtype), wide_db
