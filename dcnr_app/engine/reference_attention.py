"""Tiled causal attention of the NumPy reference (FlashAttention-2, Dao 2023). Knows no other op.

Legend: B batch · H heads · T tokens · D head size. A tile is some query rows of some heads of some sequences,
with the keys up to its last row: so the upper part is never computed, and no T x T matrix is held.
Results are (B,H,T,D) views of (B,T,H,D) memory: what follows wants the heads of a token side by side.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from dcnr_app.engine.backend import Array, Shape
from dcnr_app.engine.reference_core import ReferenceCore
from dcnr_app.engine.tiles import Tile, row_tiles

QUERY_ROWS = 64
SCORE_ELEMENTS = 128 * 1024
"""Scores per tile: 512 KiB of float32, so that each NumPy call is long enough to share out over threads."""


class AttentionOps(ReferenceCore):
    """Attention forward and backward."""

    def attention_forward(
        self, q_BHTD: Array, k_BHTD: Array, v_BHTD: Array, scale: float
    ) -> tuple[Array, Array]:
        """softmax(scale q kᵀ + causal mask) v, and the logsumexp of each query row's scores."""
        _check_shapes("attention_forward", q_BHTD, k_BHTD, v_BHTD)
        q, k, v = (self._operand(x, *x.shape[2:]) for x in (q_BHTD, k_BHTD, v_BHTD))
        q = self._apart(q, k)
        out = self._heads_last(q.shape, q.dtype)
        logsumexp = np.empty(q.shape[:3], q.dtype)
        n_tokens = q.shape[2]
        mask = _causal_penalty(n_tokens, q.dtype)

        def work(rows: Tile, heads: Tile, queries: Tile) -> None:
            at = (slice(*rows), slice(*heads), slice(*queries))
            keys = (slice(*rows), slice(*heads), slice(queries[1]))
            scores = self._scores(q[at] * scale, k[keys], mask, n_tokens)
            peak = np.maximum.reduce(scores, axis=-2, keepdims=True)
            np.subtract(scores, peak, out=scores)
            np.exp(scores, out=scores)
            total = np.add.reduce(scores, axis=-2)
            tile = np.matmul(scores.swapaxes(-1, -2), v[keys])
            np.divide(tile, total[..., None], out=out[at])
            np.add(np.log(total), peak[..., 0, :], out=logsumexp[at])

        self._runner.run(
            [
                partial(work, rows, heads, queries)
                for rows, heads in _sequence_tiles(*q.shape[:3])
                for queries in reversed(row_tiles(n_tokens, QUERY_ROWS))
            ]
        )
        return self._cast_heads(out, q_BHTD.dtype), logsumexp

    def attention_backward(
        self,
        q_BHTD: Array,
        k_BHTD: Array,
        v_BHTD: Array,
        out_BHTD: Array,
        logsumexp_BHT: Array,
        dout_BHTD: Array,
        scale: float,
    ) -> tuple[Array, Array, Array]:
        """dv = Pᵀ dout, dS = P (dout vᵀ - rowsum(dout out)), dq = scale dS k, dk = scale dSᵀ q."""
        _check_shapes("attention_backward", q_BHTD, k_BHTD, v_BHTD, out_BHTD, dout_BHTD)
        operands = (q_BHTD, k_BHTD, v_BHTD, out_BHTD, dout_BHTD)
        q, k, v, out, dout = (self._operand(x, *x.shape[2:]) for x in operands)
        q, v = self._apart(q, k), self._apart(v, dout)
        dq, dk, dv = (self._heads_last(q.shape, q.dtype) for _ in range(3))
        n_tokens = q.shape[2]
        mask = _causal_penalty(n_tokens, q.dtype)

        def work(rows: Tile, heads: Tile) -> None:
            # From the last query tile to the first: the last one meets every key and so fills dk and dv.
            for start, stop in reversed(row_tiles(n_tokens, QUERY_ROWS)):
                at = (slice(*rows), slice(*heads), slice(start, stop))
                keys = (slice(*rows), slice(*heads), slice(stop))
                scaled_q, dout_tile = q[at] * scale, dout[at]
                weights = self._scores(scaled_q, k[keys], mask, n_tokens)
                np.subtract(weights, logsumexp_BHT[at][..., None, :], out=weights)
                np.exp(weights, out=weights)
                delta = np.vecdot(dout_tile, out[at])[..., None, :]
                dscores = self._scratch(scaled_q, stop, n_tokens)
                np.matmul(v[keys], dout_tile.swapaxes(-1, -2), out=dscores)
                np.subtract(dscores, delta, out=dscores)
                np.multiply(dscores, weights, out=dscores)
                np.multiply(np.matmul(dscores.swapaxes(-1, -2), k[keys]), scale, out=dq[at])
                _accumulate_product(weights, dout_tile, dv[keys], is_first=stop == n_tokens)
                _accumulate_product(dscores, scaled_q, dk[keys], is_first=stop == n_tokens)

        self._runner.run([partial(work, rows, heads) for rows, heads in _sequence_tiles(*q.shape[:3])])
        return (
            self._cast_heads(dq, q_BHTD.dtype),
            self._cast_heads(dk, k_BHTD.dtype),
            self._cast_heads(dv, v_BHTD.dtype),
        )

    def _scores(self, scaled_q: Array, k: Array, mask: Array, n_tokens: int) -> Array:
        """k scaled_qᵀ, (..., keys, queries), of queries at the last keys; -inf where a key follows its query.

        Keys lie along rows so that maximum and sum over keys run along whole vectors of queries.
        """
        n_rows, n_keys = scaled_q.shape[-2], k.shape[-2]
        scores = self._scratch(scaled_q, n_keys, n_tokens)
        np.matmul(k, scaled_q.swapaxes(-1, -2), out=scores)
        diagonal = scores[..., n_keys - n_rows :, :]
        np.add(diagonal, mask[:n_rows, :n_rows], out=diagonal)
        return scores

    def _scratch(self, q: Array, n_keys: int, n_tokens: int) -> Array:
        """Room for the scores of a query tile, cut from a buffer that fits the widest tile.

        One size for all tiles: the pool would else keep a buffer for every number of keys, T x T / 2 in all.
        """
        shape = (*q.shape[:2], n_keys, q.shape[2])
        widest = math.prod(q.shape[:2]) * min(QUERY_ROWS + 1, n_tokens) * n_tokens
        return self._empty((widest,), q.dtype)[: math.prod(shape)].reshape(shape)

    def _heads_last(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        n_batch, n_heads, n_tokens, size = shape
        return self._empty((n_batch, n_tokens, n_heads, size), dtype).transpose(0, 2, 1, 3)

    def _cast_heads(self, x_BHTD: Array, dtype: np.dtype[Any]) -> Array:
        return self._cast(x_BHTD.transpose(0, 2, 1, 3), dtype).transpose(0, 2, 1, 3)


def _sequence_tiles(n_batch: int, n_heads: int, n_tokens: int) -> list[tuple[Tile, Tile]]:
    """(sequences, heads) of each tile: some heads of one sequence, or all heads of some sequences, as many as
    keep the widest query tile's scores within SCORE_ELEMENTS."""
    per_head = min(QUERY_ROWS, n_tokens) * n_tokens
    n_fitting = max(1, SCORE_ELEMENTS // max(per_head, 1))
    head_step = min(n_heads, n_fitting)
    row_step = max(1, n_fitting // max(n_heads, 1))
    return [
        ((row, min(row + row_step, n_batch)), (head, min(head + head_step, n_heads)))
        for row in range(0, n_batch, row_step)
        for head in range(0, n_heads, head_step)
    ]


def _causal_penalty(n_tokens: int, dtype: np.dtype[Any]) -> Array:
    """(key, query): 0 where key <= query, else -inf. Fits the largest query tile, which one row may join."""
    n_rows = min(QUERY_ROWS + 1, n_tokens)
    return np.tril(np.full((n_rows, n_rows), -np.inf, dtype), k=-1)


def _accumulate_product(a: Array, b: Array, total: Array, *, is_first: bool) -> None:
    """total = a b, or total += a b."""
    product = np.matmul(a, b)
    if is_first:
        total[...] = product
    else:
        np.add(total, product, out=total)


def _check_shapes(name: str, *xs: Array) -> None:
    shapes = [x.shape for x in xs]
    if len(shapes[0]) != 4 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"{name} expects equal shapes (B, H, T, D), got {', '.join(map(str, shapes))}")
