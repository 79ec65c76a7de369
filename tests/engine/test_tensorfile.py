"""Tensor files: what is written comes back, and what is not sound is refused before it costs anything."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from dcnr_app.engine.tensorfile import TensorEntry, read_header, read_tensors, write_tensors
from dcnr_app.errors import StoreError

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64)


def write_raw(path: Path, header: object, data: bytes = b"", *, text: str | None = None) -> Path:
    raw = (json.dumps(header) if text is None else text).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_tensors_come_back_bit_for_bit(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.safetensors"
    x = np.asarray(np.random.default_rng(2).standard_normal(shape) * 100).astype(dtype)
    write_tensors(path, {"x": x, "turned": x.T}, {"step": "3"})
    tensors, metadata = read_tensors(path)
    assert metadata == {"step": "3"}
    for name, wanted in (("x", x), ("turned", x.T)):
        assert tensors[name].dtype == wanted.dtype
        assert tensors[name].shape == wanted.shape
        assert tensors[name].tobytes() == wanted.tobytes()


def test_other_programs_can_load_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T}, {})
    assert load_file(path)["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_expected_tensors_must_be_there_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"w": np.zeros((2, 3), np.float32)}, {})
    right = {"w": TensorEntry((2, 3), "float32")}
    assert set(read_tensors(path, right).tensors) == {"w"}
    for wrong, message in (
        ({"w": TensorEntry((3, 2), "float32")}, "expected float32"),
        ({"w": TensorEntry((2, 3), "float16")}, "expected float16"),
        ({}, "not expected: \\['w'\\]"),
        ({**right, "b": TensorEntry((2,), "float32")}, "missing: \\['b'\\]"),
    ):
        with pytest.raises(StoreError, match=message):
            read_tensors(path, wrong)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"x": entry(offsets=(0, 2**62))}, "lies at"),
        ({"x": entry(offsets=(0, 8))}, "lies at"),
        ({"x": entry(shape=(2**40,))}, "lies at"),
        ({"x": entry(shape=(-1,))}, "shape"),
        ({"x": entry(shape=(True,))}, "int"),
        ({"x": entry(shape=(1,) * 9)}, "shape"),
        ({"x": entry(dtype="U8")}, "dtype U8"),
        ({"x": {**entry(), "more": 1}}, "more"),
        ({"x": entry(offsets=(4, 0))}, "lies at"),
        ({"__metadata__": {"a": 1}}, "str"),
        ({f"t{i}": entry(shape=(0,), offsets=(0, 0)) for i in range(10_001)}, "more than 10000"),
        ([], "no mapping"),
    ],
)
def test_an_unsound_header_is_refused(tmp_path: Path, header: object, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        read_tensors(write_raw(tmp_path / "x.safetensors", header, b"\0" * 4))


@pytest.mark.parametrize("text", ["{", '{"x":' * 20_000, '{"x": NaN}', "\x00"])
def test_a_header_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreError, match="not a sound tensor file"):
        read_header(write_raw(tmp_path / "x.safetensors", None, text=text))


def test_a_tensor_named_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry())
    path = write_raw(tmp_path / "x.safetensors", None, b"\0" * 4, text=f'{{"x": {one}, "x": {one}}}')
    with pytest.raises(StoreError, match="twice"):
        read_tensors(path)


def test_a_header_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", None, text="{}" + " " * (8 * 1024 * 1024))
    with pytest.raises(StoreError, match="a header of"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<Q", 2**63), b"\x80\x04pickle.."])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a sound tensor file"):
        read_tensors(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(
    tmp_path: Path, position: int, flip: int, cut: bool
) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": np.ones((3, 4), np.float32), "b": np.ones(5, np.int64)}, {"k": "v"})
    data = bytearray(path.read_bytes())
    position %= len(data)
    data[position] ^= flip
    path.write_bytes(data[:position] if cut else data)
    try:
        read_tensors(path)
    except StoreError as error:
        assert str(path) in str(error)


def test_a_missing_file_and_a_folder_that_is_none_are_store_errors(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="could not be read"):
        read_tensors(tmp_path / "none.safetensors")
    with pytest.raises(StoreError, match="could not be written"):
        write_tensors(tmp_path / "none" / "x.safetensors", {}, {})


def test_a_tensor_of_a_strange_dtype_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="uint8"):
        write_tensors(tmp_path / "x.safetensors", {"x": np.zeros(1, np.uint8)}, {})
