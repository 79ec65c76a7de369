"""Tensor files in the safetensors format, checked before anything is allocated. Knows no checkpoint.

The safetensors library accepts duplicate keys, a header of 99 MB of blanks and 200 000 empty tensors (0.5 GB
of memory). A file that came over a wire must not cost that, so the header is read here first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from dcnr_app.engine.backend import DType, Shape
from dcnr_app.engine.dtypes import dtype_name, itemsize
from dcnr_app.errors import StoreError

MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_TENSORS = 10_000
MAX_AXES = 8
LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"
_NAME_BY_CODE: Final[Mapping[str, DType]] = MappingProxyType(
    {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "I64": "int64"}
)


class TensorEntry(msgspec.Struct, frozen=True):
    """Shape and dtype of a tensor in a file."""

    shape: Shape
    dtype: DType


class TensorFile(NamedTuple):
    """Tensors by name, and the file's metadata."""

    tensors: Mapping[str, np.ndarray[Any, Any]]
    metadata: Mapping[str, str]


class TensorHeader(NamedTuple):
    """What a file says that it holds."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's header entry as the format writes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a tensor file; its bytes are on the disk on return. Raises StoreError if that fails.

    The file is written in place: whoever needs it to appear at once writes elsewhere and renames.
    """
    if len(tensors) > MAX_TENSORS:
        raise _bad(path, f"{len(tensors)} tensors are more than {MAX_TENSORS}")
    try:
        for tensor in tensors.values():
            dtype_name(tensor.dtype)
        # The library writes memory as it lies, so a view of another order must be laid out first.
        laid_out = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        data = save(laid_out, dict(metadata or {}))
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError("the tensor file could not be written", where=str(path), why=str(error)) from error


def read_tensors(path: Path, expected: Mapping[str, TensorEntry] | None = None) -> TensorFile:
    """Tensors and metadata of a file. Raises StoreError for a bad one, or one that is not what is expected.

    `expected` gives the names, shapes and dtypes that the file must have, no more and no less.
    """
    header = read_header(path)
    if expected is not None:
        _check_expected(path, header.entries, expected)
    try:
        return TensorFile(load_file(path), header.metadata)
    except (OSError, ValueError, SafetensorError) as error:
        raise _bad(path, str(error)) from error


def read_header(path: Path) -> TensorHeader:
    """What the file holds, without reading a tensor. Raises StoreError for a bad file."""
    try:
        n_file_bytes = path.stat().st_size
        with path.open("rb") as file:
            n_header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if n_file_bytes < LENGTH_BYTES or n_header_bytes > min(
                MAX_HEADER_BYTES, n_file_bytes - LENGTH_BYTES
            ):
                raise _bad(path, f"a header of {n_header_bytes} bytes in a file of {n_file_bytes}")
            raw = file.read(n_header_bytes)
    except OSError as error:
        raise StoreError("the tensor file could not be read", where=str(path), why=str(error)) from error
    try:
        form = json.loads(raw, object_pairs_hook=_without_duplicates)
        if not isinstance(form, dict):
            raise ValueError("the header is no mapping")
        metadata = msgspec.convert(form.pop(METADATA_KEY, {}), dict[str, str])
        if len(form) > MAX_TENSORS:
            raise ValueError(f"{len(form)} tensors are more than {MAX_TENSORS}")
        n_data_bytes = n_file_bytes - LENGTH_BYTES - n_header_bytes
        entries = {name: _checked_entry(name, entry, n_data_bytes) for name, entry in form.items()}
    except (ValueError, RecursionError) as error:  # msgspec, JSON and Unicode errors are ValueErrors
        raise _bad(path, str(error)) from error
    return TensorHeader(entries, metadata)


def _checked_entry(name: str, form: object, n_data_bytes: int) -> TensorEntry:
    entry = msgspec.convert(form, _Entry)
    dtype = _NAME_BY_CODE.get(entry.dtype)
    if dtype is None:
        raise ValueError(f"tensor {name!r} has the dtype {entry.dtype}")
    if len(entry.shape) > MAX_AXES or any(length < 0 for length in entry.shape):
        raise ValueError(f"tensor {name!r} has the shape {entry.shape}")
    start, stop = entry.data_offsets
    n_bytes = math.prod(entry.shape) * itemsize(dtype)
    if not 0 <= start <= stop <= n_data_bytes or stop - start != n_bytes:
        raise ValueError(
            f"tensor {name!r} lies at {start}..{stop} of {n_data_bytes} bytes, needing {n_bytes}"
        )
    return TensorEntry(entry.shape, dtype)


def _check_expected(
    path: Path, entries: Mapping[str, TensorEntry], expected: Mapping[str, TensorEntry]
) -> None:
    missing, extra = sorted(expected.keys() - entries.keys()), sorted(entries.keys() - expected.keys())
    if missing or extra:
        raise _bad(path, f"tensors missing: {missing[:5] or 'none'}; not expected: {extra[:5] or 'none'}")
    for name, wanted in expected.items():
        if entries[name] != wanted:
            raise _bad(path, f"tensor {name!r} is {_text(entries[name])}, expected {_text(wanted)}")


def _text(entry: TensorEntry) -> str:
    return f"{entry.dtype} {entry.shape}"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) != len(pairs):
        raise ValueError("the header names a tensor twice")
    return form


def _bad(path: Path, why: str) -> StoreError:
    return StoreError(
        "this is not a sound tensor file",
        where=str(path),
        why=why,
        fix="use another copy or an older checkpoint",
    )
