"""dtype names and their NumPy types. Knows no operation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from dcnr_app.engine.backend import DType

_NUMPY_BY_NAME: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "float32": np.dtype(np.float32),
        "float64": np.dtype(np.float64),
        "float16": np.dtype(np.float16),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "int32": np.dtype(np.int32),
        "int64": np.dtype(np.int64),
    }
)
_NAME_BY_NUMPY: Final = MappingProxyType({dtype: name for name, dtype in _NUMPY_BY_NAME.items()})
_HALVES: Final = frozenset({_NUMPY_BY_NAME["float16"], _NUMPY_BY_NAME["bfloat16"]})


def numpy_dtype(name: DType) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name. Raises ValueError for any other name."""
    found = _NUMPY_BY_NAME.get(name)
    if found is None:
        raise ValueError(f"expected a dtype of {', '.join(_NUMPY_BY_NAME)}; got {name!r}")
    return found


def dtype_name(dtype: np.dtype[Any]) -> DType:
    """The dtype name of a NumPy dtype. Raises ValueError for one that the engine does not hold."""
    found = _NAME_BY_NUMPY.get(dtype)
    if found is None:
        raise ValueError(f"expected a dtype of {', '.join(_NUMPY_BY_NAME)}; got {dtype}")
    return found  # type: ignore[return-value]  # the keys are exactly DType's members


def itemsize(name: DType) -> int:
    """Bytes per element."""
    return numpy_dtype(name).itemsize


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is float16 or bfloat16, which are stored but never accumulated in."""
    return dtype in _HALVES


def accumulation_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for the two half formats, else the dtype itself."""
    return _NUMPY_BY_NAME["float32"] if dtype in _HALVES else dtype
