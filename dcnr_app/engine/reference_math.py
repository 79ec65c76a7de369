"""Construction, shapes, arithmetic, gather and scatter of the NumPy reference. Knows no fused op.

Legend: V table rows · D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dcnr_app.engine.backend import Array, DType, Shape
from dcnr_app.engine.dtypes import dtype_name, is_half, numpy_dtype
from dcnr_app.engine.philox import fold_key, uniform_blocks
from dcnr_app.engine.reference_core import ReferenceCore, n_elements

RANDOM_ELEMENTS = 32 * 1024


class MathOps(ReferenceCore):
    """Everything that is not a matrix product, a fused pair or an optimizer step."""

    def zeros(self, shape: Shape, dtype: DType) -> Array:
        """All zeros."""
        return self.full(shape, 0.0, dtype)

    def full(self, shape: Shape, value: float, dtype: DType) -> Array:
        """All `value`."""
        out = self._empty(shape, numpy_dtype(dtype))
        out.fill(value)
        return out

    def from_host(self, host: np.ndarray[Any, Any]) -> Array:
        """A copy of a host array. Raises ValueError for a dtype that the engine does not hold."""
        dtype_name(host.dtype)
        return self.copy(host)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        """A C-contiguous copy, which no later op changes."""
        return np.array(x, order="C", copy=True)

    def dtype_of(self, x: Array) -> DType:
        """The dtype's name. Raises ValueError for a boolean array."""
        return dtype_name(x.dtype)

    def cast(self, x: Array, dtype: DType) -> Array:
        """`x` in another dtype; `x` itself if it has it already."""
        return self._cast(x, numpy_dtype(dtype))

    def copy(self, x: Array) -> Array:
        """A C-contiguous copy."""
        out = self._empty_like(x)
        np.copyto(out, x)
        return out

    def contiguous(self, x: Array) -> Array:
        """`x` itself if its memory is C-contiguous, else a copy that is."""
        return self._contiguous(x)

    def reshape(self, x: Array, shape: Shape) -> Array:
        """A view if the memory allows it, else a copy. One length may be -1."""
        if x.flags.c_contiguous:
            return x.reshape(shape)
        view = x.view()
        try:
            view.shape = shape
        except AttributeError:  # NumPy's word for "not without a copy"
            return self.copy(x).reshape(shape)
        return view

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """A view with permuted axes."""
        return x.transpose(tuple(axes))

    def slice_axis(self, x: Array, axis: int, start: int, stop: int) -> Array:
        """A view of [start, stop) along one axis. Raises ValueError outside 0 <= start <= stop <= length."""
        if not 0 <= start <= stop <= x.shape[axis]:
            raise ValueError(f"slice_axis expects 0 <= start <= stop <= {x.shape[axis]}, got {start}, {stop}")
        index = [slice(None)] * x.ndim
        index[axis] = slice(start, stop)
        return x[tuple(index)]

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        """Arrays of one dtype joined along an axis."""
        if len({x.dtype for x in xs}) != 1:
            raise ValueError(f"concat expects arrays of one dtype, got {[str(x.dtype) for x in xs]}")
        lengths = list(xs[0].shape)
        lengths[axis] = sum(x.shape[axis] for x in xs)
        out = self._empty(tuple(lengths), xs[0].dtype)
        return np.concatenate(xs, axis=axis, out=out)

    def sum(self, x: Array, axis: int | None, *, keepdims: bool = False) -> Array:
        """Sum along an axis, or of all. Integers keep their dtype."""
        wide = self._contiguous(self._wide(x))
        with np.errstate(all="ignore"):
            total = np.asarray(np.sum(wide, axis=axis, dtype=wide.dtype, keepdims=keepdims))
        return self._cast(total, x.dtype)

    def max(self, x: Array, axis: int, *, keepdims: bool = False) -> Array:
        """Largest value along an axis; NaN if there is one."""
        return np.asarray(np.max(x, axis=axis, keepdims=keepdims))

    def maximum(self, a: Array, b: Array | float) -> Array:
        """The larger of each pair."""
        other = np.asarray(b, dtype=a.dtype)
        out = self._empty(np.broadcast_shapes(a.shape, other.shape), a.dtype)
        return np.maximum(a, other, out=out)

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        """`a` where the condition holds, else `b`; the dtype is that of the arrays, or float32."""
        arrays = [x for x in (a, b) if isinstance(x, np.ndarray | np.generic)]
        dtype = arrays[0].dtype if arrays else np.dtype(np.float32)
        if any(x.dtype != dtype for x in arrays):
            raise ValueError(f"where expects one dtype, got {[str(x.dtype) for x in arrays]}")
        chosen, other = np.asarray(a, dtype=dtype), np.asarray(b, dtype=dtype)
        out = self._empty(np.broadcast_shapes(condition.shape, chosen.shape, other.shape), dtype)
        np.copyto(out, other)
        np.copyto(out, chosen, where=condition)
        return out

    def greater(self, a: Array, b: Array | float) -> Array:
        """Boolean a > b."""
        return np.asarray(np.greater(a, np.asarray(b, dtype=a.dtype)))

    def equal(self, a: Array, b: Array | float) -> Array:
        """Boolean a == b."""
        return np.asarray(np.equal(a, np.asarray(b, dtype=a.dtype)))

    def exp(self, x: Array) -> Array:
        """e^x."""
        return self._unary(np.exp, x)

    def log(self, x: Array) -> Array:
        """Natural logarithm; -inf at 0, NaN below."""
        return self._unary(np.log, x)

    def sqrt(self, x: Array) -> Array:
        """Square root; NaN below 0."""
        return self._unary(np.sqrt, x)

    def tanh(self, x: Array) -> Array:
        """Hyperbolic tangent."""
        return self._unary(np.tanh, x)

    def softmax(self, x: Array) -> Array:
        """exp(x - max) / sum over the last axis."""
        wide = self._contiguous(self._wide(x))
        out = self._empty_like(wide)
        width = x.shape[-1]
        rows, out_rows = wide.reshape(-1, width), out.reshape(-1, width)

        def work(start: int, stop: int) -> None:
            tile = out_rows[start:stop]
            np.subtract(
                rows[start:stop], np.maximum.reduce(rows[start:stop], axis=1, keepdims=True), out=tile
            )
            np.exp(tile, out=tile)
            np.divide(tile, np.add.reduce(tile, axis=1, keepdims=True), out=tile)

        self._map_rows(work, rows.shape[0], width)
        return self._cast(out, x.dtype)

    def causal_mask(self, n_rows: int, n_columns: int) -> Array:
        """Boolean (n_rows, n_columns), true where column <= row."""
        return np.tri(n_rows, n_columns, dtype=np.bool_)

    def gather_rows(self, table_VD: Array, ids: Array) -> Array:
        """`table_VD[ids]`. Raises ValueError for an id outside 0..V-1."""
        _check_ids("gather_rows", ids, table_VD.shape[0])
        out = self._empty((*ids.shape, table_VD.shape[1]), table_VD.dtype)
        # "clip" lets NumPy write into `out` without a buffer; the ids were checked above.
        return np.take(table_VD, ids, axis=0, out=out, mode="clip")

    def scatter_add_rows(self, ids: Array, rows: Array, n_rows: int) -> Array:
        """Sums of the rows that share an id, in the order in which they stand.

        Sorted segments: all segments of one length are summed together, so there are at most sqrt(2N) sums.
        Raises ValueError for an id outside 0..n_rows-1.
        """
        _check_ids("scatter_add_rows", ids, n_rows)
        width = rows.shape[-1]
        flat = self._wide(self.reshape(rows, (-1, width)))
        out = self._empty((n_rows, width), flat.dtype)
        out.fill(0)
        order = np.argsort(ids.reshape(-1), kind="stable")
        unique, starts, counts = np.unique(ids.reshape(-1)[order], return_index=True, return_counts=True)
        with np.errstate(all="ignore"):
            for count in np.unique(counts):
                chosen = np.flatnonzero(counts == count)
                members = order[starts[chosen] + np.arange(count)[:, None]]
                out[unique[chosen]] = np.add.reduce(flat[members], axis=0)
        return self._cast(out, rows.dtype)

    def random_uniform(self, key: Sequence[int], shape: Shape) -> Array:
        """float32 in [0, 1): element i is a pure function of (key, i)."""
        folded = fold_key(key)
        out = self._empty(shape, np.dtype(np.float32))
        flat = out.reshape(-1)

        def work(start: int) -> None:
            stop = min(start + RANDOM_ELEMENTS, flat.size)
            flat[start:stop] = uniform_blocks(folded, start // 4, -(-(stop - start) // 4))[: stop - start]

        self._runner.run([partial(work, start) for start in range(0, n_elements(shape), RANDOM_ELEMENTS)])
        return out

    def _unary(self, operation: np.ufunc, x: Array) -> Array:
        wide = self._contiguous(self._wide(x))
        out = self._empty_like(wide)
        self._map_flat(lambda x_, y: operation(x_, out=y), wide, out)
        return self._cast(out, x.dtype) if is_half(x.dtype) else out


def _check_ids(name: str, ids: Array, n_rows: int) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= n_rows):
        raise ValueError(f"{name} expects ids in 0..{n_rows - 1}, got {int(ids.min())}..{int(ids.max())}")
