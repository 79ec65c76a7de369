"""What a backend case is and how one is checked against its float64 oracle. Knows no op and no backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from dcnr_app.engine.backend import Array, Backend, DType

FLOAT_DTYPES: tuple[DType, ...] = ("float64", "float32", "float16", "bfloat16")
TOLERANCES: dict[str, float] = {"float64": 1e-11, "float32": 3e-5, "float16": 8e-3, "bfloat16": 6e-2}
"""Largest error over the largest value of the oracle: a few roundings of the stored format."""
NUMPY_TYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
Run = Callable[..., Sequence[Array]]
Oracle = Callable[..., Sequence[Any]]


class OpCase(NamedTuple):
    """One op at one set of shapes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    run: Run
    oracle: Oracle
    ids: tuple[tuple[tuple[int, ...], int, int], ...] = ()
    """Integer arguments that follow the float ones: (shape, lowest, end)."""
    is_positive: bool = False
    gives_up: bool = False
    """Whether the op may write into its arguments, as the protocol says of optimizer ops."""

    def arguments(self, dtype: DType) -> list[np.ndarray]:
        """Host arrays: floats of `dtype`, then integers; the same at every call."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        floats = [rng.standard_normal(shape) for shape in self.shapes]
        if self.is_positive:
            floats = [np.abs(x) + 0.1 for x in floats]
        integers = [rng.integers(low, end, shape).astype(np.int32) for shape, low, end in self.ids]
        return [x.astype(NUMPY_TYPES[dtype]) for x in floats] + integers


def run_case(backend: Backend, case: OpCase, dtype: DType) -> list[np.ndarray]:
    """The op's results on the host."""
    arguments = [backend.from_host(x) for x in case.arguments(dtype)]
    return [backend.to_host(x) for x in case.run(backend, *arguments)]


def check_case(backend: Backend, case: OpCase, dtype: DType) -> None:
    """Assert that results have the oracle's shapes, the dtype's width and values within tolerance."""
    arguments = case.arguments(dtype)
    wide = [x if np.issubdtype(x.dtype, np.integer) else x.astype(np.float64) for x in arguments]
    results = run_case(backend, case, dtype)
    expected = case.oracle(*wide)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        wanted_array = np.asarray(wanted)
        assert result.shape == wanted_array.shape
        if wanted_array.dtype == bool:
            np.testing.assert_array_equal(result, wanted_array)
            continue
        limit = TOLERANCES[dtype] * max(1.0, float(np.abs(wanted_array).max(initial=0.0)))
        error = float(np.abs(result.astype(np.float64) - wanted_array).max(initial=0.0))
        assert error <= limit, f"{case.name} {dtype}: error {error:.3g} over {limit:.3g}"
