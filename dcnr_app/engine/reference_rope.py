"""Rotary position embedding of the NumPy reference. Knows no other op.

Legend: B batch · H heads · T tokens · D head size.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np

from dcnr_app.engine.backend import Array
from dcnr_app.engine.reference_core import ReferenceCore
from dcnr_app.engine.tiles import TILE_ELEMENTS

MAX_TABLES = 8
TableKey = tuple[int, int, float, int, str]


class RopeOps(ReferenceCore):
    """Rotation by position, with a few cosine and sine tables kept."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self._tables: dict[TableKey, tuple[Array, Array]] = {}
        self._tables_lock = threading.Lock()

    def rope(self, x_BHTD: Array, base: float, first_position: int, *, inverse: bool) -> Array:
        """(a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of D (Su et al. 2021).

        The angle of element i at position p is p base^(-2i/D). Raises ValueError for an odd D.
        """
        if x_BHTD.ndim != 4 or x_BHTD.shape[3] % 2:
            raise ValueError(f"rope expects (B, H, T, D) with an even D, got {x_BHTD.shape}")
        x = self._wide(x_BHTD)
        n_batch, n_heads, n_tokens, size = x.shape
        cos_TD, sin_TD = self._rotation(n_tokens, size, base, first_position, x.dtype)
        # Sequences per tile, as many as make the work of one tile worth a thread.
        step = max(1, TILE_ELEMENTS // max(n_heads * n_tokens * size, 1))
        out = self._empty((n_batch, n_tokens, n_heads, size), x.dtype).transpose(0, 2, 1, 3)

        def work(start: int, stop: int) -> None:
            tile, out_tile = x[start:stop], out[start:stop]
            crossed = self._empty((stop - start, n_tokens, n_heads, size), x.dtype).transpose(0, 2, 1, 3)
            np.multiply(_swap_halves(tile), _halves(sin_TD), out=_halves(crossed))
            np.multiply(tile, cos_TD, out=out_tile)
            (np.subtract if inverse else np.add)(out_tile, crossed, out=out_tile)

        starts = range(0, n_batch, step)
        self._runner.run([partial(work, start, min(start + step, n_batch)) for start in starts])
        return self._cast(out.transpose(0, 2, 1, 3), x_BHTD.dtype).transpose(0, 2, 1, 3)

    def _rotation(
        self, n_tokens: int, size: int, base: float, first_position: int, dtype: np.dtype[Any]
    ) -> tuple[Array, Array]:
        """cos and signed sin (- for the first half), (T, D) each, computed in float64."""
        key = (n_tokens, size, base, first_position, dtype.name)
        with self._tables_lock:
            found = self._tables.get(key)
            if found is None:
                if len(self._tables) >= MAX_TABLES:
                    del self._tables[next(iter(self._tables))]
                found = self._tables[key] = _make_tables(n_tokens, size, base, first_position, dtype)
            return found


def _halves(x: Array) -> Array:
    """A view (..., 2, D/2) of (..., D)."""
    return x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)


def _swap_halves(x: Array) -> Array:
    """A view (..., 2, D/2) with the second half first."""
    return _halves(x)[..., ::-1, :]


def _make_tables(
    n_tokens: int, size: int, base: float, first_position: int, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    positions = np.arange(first_position, first_position + n_tokens, dtype=np.float64)
    rates = base ** (-2.0 * np.arange(size // 2, dtype=np.float64) / size)
    angles = positions[:, None] * rates
    cos, sin = np.cos(angles), np.sin(angles)
    return np.hstack((cos, cos)).astype(dtype), np.hstack((-sin, sin)).astype(dtype)
