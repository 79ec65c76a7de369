"""Gradient accumulation, unscaling and optimizer updates of the NumPy reference. Knows no other op.

All of these work in place where dtype and layout allow: the caller gives its arrays up for the results.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dcnr_app.engine.backend import AdamWStep, Array, GradientFacts
from dcnr_app.engine.reference_core import ReferenceCore
from dcnr_app.engine.tiles import TILE_ELEMENTS, row_tiles


class UpdateOps(ReferenceCore):
    """What happens to parameters between two steps."""

    def unscale(self, gradient: Array, scale: float) -> GradientFacts:
        """gradient / scale (in place) in the accumulation dtype, its float64 squared norm, and finiteness."""
        wide = self._contiguous(self._wide(gradient))
        flat = wide.reshape(-1)
        tiles = row_tiles(flat.size, TILE_ELEMENTS)
        squares = np.zeros(len(tiles), np.float64)
        index_of = {start: index for index, (start, _) in enumerate(tiles)}

        def work(start: int, stop: int) -> None:
            tile = flat[start:stop]
            if scale != 1.0:
                np.divide(tile, scale, out=tile)
            exact = tile.astype(np.float64)
            squares[index_of[start]] = np.dot(exact, exact)

        self._runner.run([partial(work, *tile) for tile in tiles])
        with np.errstate(all="ignore"):
            squared_norm = float(np.add.reduce(squares))
        # Squares of finite float32 cannot overflow float64; those of float64 can: only then look again.
        is_finite = math.isfinite(squared_norm) or bool(np.isfinite(flat).all())
        return GradientFacts(wide, squared_norm, is_finite)

    def adamw(
        self, weight: Array, gradient: Array, m: Array, v: Array, step: AdamWStep
    ) -> tuple[Array, Array, Array]:
        """g = clip · gradient; w -= lr wd w; m, v = moments of g; w -= lr m̂ / (sqrt(v̂) + eps).

        m̂ = m / (1 - β1^t), v̂ = v / (1 - β2^t) (Loshchilov & Hutter 2019). In place.
        """
        wide = self._contiguous(self._wide(weight))
        wide_gradient = self._contiguous(self._cast(gradient, wide.dtype))
        new_m, new_v = self._contiguous(m), self._contiguous(v)
        first_correction = 1.0 - step.beta1**step.t
        second_correction = 1.0 - step.beta2**step.t

        def work(w_: Array, gradient_: Array, m_: Array, v_: Array) -> None:
            g, change = self._empty(w_.shape, w_.dtype), self._empty(w_.shape, w_.dtype)
            np.multiply(gradient_, step.clip_coefficient, out=g)
            np.multiply(g, 1.0 - step.beta1, out=change)
            np.multiply(m_, step.beta1, out=m_)
            np.add(m_, change, out=m_)
            np.multiply(g, g, out=g)
            np.multiply(g, 1.0 - step.beta2, out=g)
            np.multiply(v_, step.beta2, out=v_)
            np.add(v_, g, out=v_)
            np.divide(v_, second_correction, out=g)
            np.sqrt(g, out=g)
            np.add(g, step.eps, out=g)
            np.multiply(m_, step.learning_rate / first_correction, out=change)
            np.divide(change, g, out=change)
            np.multiply(w_, 1.0 - step.learning_rate * step.weight_decay, out=w_)
            np.subtract(w_, change, out=w_)

        self._map_flat(work, wide, wide_gradient, new_m, new_v)
        return self._cast(wide, weight.dtype), new_m, new_v

    def sgd(self, weight: Array, gradient: Array, velocity: Array, step: AdamWStep) -> tuple[Array, Array]:
        """velocity = β1 velocity + clip · gradient; w -= lr wd w; w -= lr velocity. In place."""
        wide = self._contiguous(self._wide(weight))
        wide_gradient = self._contiguous(self._cast(gradient, wide.dtype))
        new_velocity = self._contiguous(velocity)

        def work(w_: Array, gradient_: Array, velocity_: Array) -> None:
            change = self._empty(w_.shape, w_.dtype)
            np.multiply(gradient_, step.clip_coefficient, out=change)
            np.multiply(velocity_, step.beta1, out=velocity_)
            np.add(velocity_, change, out=velocity_)
            np.multiply(velocity_, step.learning_rate, out=change)
            np.multiply(w_, 1.0 - step.learning_rate * step.weight_decay, out=w_)
            np.subtract(w_, change, out=w_)

        self._map_flat(work, wide, wide_gradient, new_velocity)
        return self._cast(wide, weight.dtype), new_velocity

    def accumulate(self, total: Array, x: Array) -> Array:
        """total + x, in `total`. Raises ValueError for unequal shapes."""
        if total.shape != x.shape:
            raise ValueError(f"accumulate expects equal shapes, got {total.shape} and {x.shape}")
        with np.errstate(all="ignore"):
            return np.add(total, x, out=total, casting="unsafe")
