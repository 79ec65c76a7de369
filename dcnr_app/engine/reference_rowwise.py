"""Layer normalisation, GELU and cross-entropy of the NumPy reference. Knows no other op.

Legend: N rows · D width · V vocabulary. Each works over fixed row tiles whose temporaries stay in cache.
"""

from __future__ import annotations

import math

import numpy as np

from dcnr_app.engine.backend import Array, LayerNormSaved
from dcnr_app.engine.reference_core import ReferenceCore
from dcnr_app.engine.tiles import row_tiles, rows_for_width

GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


class RowwiseOps(ReferenceCore):
    """Fused pairs whose output row depends on the same input row only."""

    def layernorm_forward(
        self, x_ND: Array, gain_D: Array, bias_D: Array | None, eps: float
    ) -> tuple[Array, LayerNormSaved]:
        """y = (x - mean) / sqrt(var + eps) * gain + bias, with the biased variance (Ba et al. 2016)."""
        n_rows, width = x_ND.shape
        x = self._contiguous(self._wide(x_ND))
        gain = self._wide(gain_D)
        bias = None if bias_D is None else self._wide(bias_D)
        y = self._empty_like(x)
        mean, inverse_std = np.empty((n_rows, 1), x.dtype), np.empty((n_rows, 1), x.dtype)
        ones = np.ones(width, x.dtype)

        def work(start: int, stop: int) -> None:
            tile, tile_mean, tile_inverse = y[start:stop], mean[start:stop], inverse_std[start:stop]
            np.vecdot(
                x[start:stop], ones, out=tile_mean[:, 0]
            )  # three times as fast as a sum over short rows
            np.divide(tile_mean, width, out=tile_mean)
            np.subtract(x[start:stop], tile_mean, out=tile)
            np.vecdot(tile, tile, out=tile_inverse[:, 0])
            np.divide(tile_inverse, width, out=tile_inverse)
            np.add(tile_inverse, eps, out=tile_inverse)
            np.sqrt(tile_inverse, out=tile_inverse)
            np.divide(1.0, tile_inverse, out=tile_inverse)
            np.multiply(tile, tile_inverse, out=tile)
            np.multiply(tile, gain, out=tile)
            if bias is not None:
                np.add(tile, bias, out=tile)

        self._map_rows(work, n_rows, width)
        return self._cast(y, x_ND.dtype), LayerNormSaved(mean, inverse_std)

    def layernorm_backward(
        self, x_ND: Array, gain_D: Array, saved: LayerNormSaved, dy_ND: Array, *, has_bias: bool
    ) -> tuple[Array, Array, Array | None]:
        """With n = (x - mean) inverse_std and g = dy gain: dx = inverse_std (g - mean_D(g) - n mean_D(g n)),
        dgain = Σ_N dy n, dbias = Σ_N dy."""
        n_rows, width = x_ND.shape
        x, dy = self._contiguous(self._wide(x_ND)), self._contiguous(self._wide(dy_ND))
        gain = self._wide(gain_D)
        mean, inverse_std = saved
        dx = self._empty_like(x)
        tiles = row_tiles(n_rows, rows_for_width(width))
        index_of = {start: index for index, (start, _) in enumerate(tiles)}
        partial_gain = np.zeros((max(len(tiles), 1), width), x.dtype)
        partial_bias = np.zeros_like(partial_gain)

        def work(start: int, stop: int) -> None:
            tile, tile_dy = dx[start:stop], dy[start:stop]
            normal = self._empty(tile.shape, tile.dtype)
            np.subtract(x[start:stop], mean[start:stop], out=normal)
            np.multiply(normal, inverse_std[start:stop], out=normal)
            np.multiply(tile_dy, normal, out=tile)
            np.add.reduce(tile, axis=0, out=partial_gain[index_of[start]])
            if has_bias:
                np.add.reduce(tile_dy, axis=0, out=partial_bias[index_of[start]])
            mean_gn = np.vecdot(tile, gain)[:, None] / width
            mean_g = np.vecdot(tile_dy, gain)[:, None] / width
            np.multiply(tile_dy, gain, out=tile)
            np.subtract(tile, mean_g, out=tile)
            np.multiply(normal, mean_gn, out=normal)
            np.subtract(tile, normal, out=tile)
            np.multiply(tile, inverse_std[start:stop], out=tile)

        self._map_rows(work, n_rows, width)
        dgain = self._cast(np.add.reduce(partial_gain, axis=0), gain_D.dtype)
        dbias = self._cast(np.add.reduce(partial_bias, axis=0), gain_D.dtype) if has_bias else None
        return self._cast(dx, x_ND.dtype), dgain, dbias

    def gelu_forward(self, x: Array) -> Array:
        """0.5 x (1 + tanh(c (x + 0.044715 x³))), c = sqrt(2/π)."""
        wide = self._contiguous(self._wide(x))
        out = self._empty_like(wide)

        def work(x_: Array, y: Array) -> None:
            _gelu_tanh(x_, y)
            np.add(y, 1.0, out=y)
            np.multiply(y, x_, out=y)
            np.multiply(y, 0.5, out=y)

        self._map_flat(work, wide, out)
        return self._cast(out, x.dtype)

    def gelu_backward(self, x: Array, dy: Array) -> Array:
        """dy (1 + t) (½ + ½ x (1 - t) c (1 + 3·0.044715 x²)), t the tanh of the forward formula."""
        wide, wide_dy = self._contiguous(self._wide(x)), self._contiguous(self._wide(dy))
        out = self._empty_like(wide)

        def work(x_: Array, dy_: Array, dx: Array) -> None:
            slope = self._empty(x_.shape, x_.dtype)
            np.multiply(x_, x_, out=slope)
            np.multiply(slope, GELU_SCALE * GELU_CUBIC, out=dx)
            np.add(dx, GELU_SCALE, out=dx)
            np.multiply(dx, x_, out=dx)
            np.tanh(dx, out=dx)
            np.multiply(slope, 1.5 * GELU_CUBIC * GELU_SCALE, out=slope)
            np.add(slope, 0.5 * GELU_SCALE, out=slope)
            np.multiply(slope, x_, out=slope)
            rest = self._empty(x_.shape, x_.dtype)
            np.subtract(1.0, dx, out=rest)
            np.multiply(slope, rest, out=slope)
            np.add(slope, 0.5, out=slope)
            np.add(dx, 1.0, out=dx)
            np.multiply(dx, slope, out=dx)
            np.multiply(dx, dy_, out=dx)

        self._map_flat(work, wide, wide_dy, out)
        return self._cast(out, x.dtype)

    def cross_entropy_forward(self, logits_NV: Array, targets_N: Array) -> tuple[Array, Array]:
        """(Σ over rows with target >= 0 of logsumexp - logit[target], logsumexp_N).

        Raises ValueError for a target of V or more.
        """
        _check_targets(logits_NV, targets_N)
        logits = self._wide(logits_NV)
        n_rows, n_vocabulary = logits.shape
        logsumexp, losses = np.empty(n_rows, logits.dtype), np.empty(n_rows, np.float64)

        def work(start: int, stop: int) -> None:
            tile, targets = logits[start:stop], targets_N[start:stop]
            scratch = self._empty(tile.shape, tile.dtype)
            peak = np.maximum.reduce(tile, axis=1, keepdims=True)
            np.subtract(tile, peak, out=scratch)
            np.exp(scratch, out=scratch)
            total = np.add.reduce(scratch, axis=1)
            np.add(np.log(total), peak[:, 0], out=logsumexp[start:stop])
            chosen = tile[np.arange(stop - start), np.maximum(targets, 0)]
            # The difference of two near numbers is exact enough only if taken about the peak.
            rows = np.log(total) - (chosen - peak[:, 0])
            losses[start:stop] = np.where(targets >= 0, rows, 0.0)

        self._map_rows(work, n_rows, n_vocabulary)
        return np.asarray(np.add.reduce(losses), dtype=logits.dtype), logsumexp

    def cross_entropy_backward(
        self, logits_NV: Array, targets_N: Array, logsumexp_N: Array, dloss: Array
    ) -> Array:
        """(softmax - one_hot(target)) dloss; zero where target < 0."""
        _check_targets(logits_NV, targets_N)
        logits = self._wide(logits_NV)
        n_rows, n_vocabulary = logits.shape
        out = self._empty(logits.shape, logits.dtype)
        scale = np.asarray(dloss, dtype=logits.dtype)

        def work(start: int, stop: int) -> None:
            tile, targets = out[start:stop], targets_N[start:stop]
            np.subtract(logits[start:stop], logsumexp_N[start:stop, None], out=tile)
            np.exp(tile, out=tile)
            np.multiply(tile, scale, out=tile)
            is_counted = targets >= 0
            rows = np.flatnonzero(is_counted)
            tile[rows, targets[rows]] -= scale
            if rows.size < stop - start:
                tile[~is_counted] = 0.0

        self._map_rows(work, n_rows, n_vocabulary)
        return self._cast(out, logits_NV.dtype)


def _gelu_tanh(x: Array, out: Array) -> None:
    np.multiply(x, x, out=out)
    np.multiply(out, GELU_SCALE * GELU_CUBIC, out=out)
    np.add(out, GELU_SCALE, out=out)
    np.multiply(out, x, out=out)
    np.tanh(out, out=out)


def _check_targets(logits_NV: Array, targets_N: Array) -> None:
    if logits_NV.ndim != 2 or targets_N.shape != logits_NV.shape[:1]:
        raise ValueError(
            f"cross_entropy expects (N, V) and (N,), got {logits_NV.shape} and {targets_N.shape}"
        )
    if targets_N.size and int(targets_N.max()) >= logits_NV.shape[1]:
        raise ValueError(
            f"cross_entropy expects targets below {logits_NV.shape[1]}, got {int(targets_N.max())}"
        )
