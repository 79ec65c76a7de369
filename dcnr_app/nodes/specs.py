"""Checks and small facts about specs that VNode types share. Knows no VNode type and no array library.

Every check raises ValueError that names the type, what it expects and what came.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array, Backend, DType, Shape
from dcnr_app.nodes.contract import TensorSpec

FLOAT_DTYPES: tuple[DType, ...] = ("float32", "float64", "float16", "bfloat16")
INTEGER_DTYPES: tuple[DType, ...] = ("int32", "int64")


def require_positive(tag: str, **sizes: float) -> None:
    """Refuse hyper-parameters that are not above zero."""
    for name, value in sizes.items():
        if not value > 0:
            raise ValueError(f"{tag} expects {name} > 0, got {value}")


def require_not_negative(tag: str, **values: float) -> None:
    """Refuse hyper-parameters below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{tag} expects {name} >= 0, got {value}")


def expect_inputs(tag: str, ins: tuple[TensorSpec, ...], count: int) -> None:
    """Refuse another number of inputs."""
    if len(ins) != count:
        raise ValueError(f"{tag} expects {count} input{'s' if count != 1 else ''}, got {len(ins)}")


def expect_float(tag: str, port: str, spec: TensorSpec) -> None:
    """Refuse an input that is not of a float dtype."""
    if spec.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{tag} expects {port} of a float dtype, got {spec.dtype} {spec.shape}")


def expect_integer(tag: str, port: str, spec: TensorSpec) -> None:
    """Refuse an input that is not of an integer dtype."""
    if spec.dtype not in INTEGER_DTYPES:
        raise ValueError(f"{tag} expects {port} of an integer dtype, got {spec.dtype} {spec.shape}")


def expect_last(tag: str, port: str, spec: TensorSpec, length: int) -> None:
    """Refuse an input whose last axis is not `length` long."""
    if not spec.shape or spec.shape[-1] != length:
        raise ValueError(f"{tag} expects {port} of shape (..., {length}), got {spec.shape}")


def expect_sequences(tag: str, spec: TensorSpec, width: int) -> tuple[int, int]:
    """(B, T) of a float (B, T, width) input; refuses all else."""
    expect_float(tag, "x", spec)
    if len(spec.shape) != 3 or spec.shape[-1] != width:
        raise ValueError(f"{tag} expects x of shape (batch, tokens, {width}), got {spec.shape}")
    return spec.shape[0], spec.shape[1]


def expect_all_equal(tag: str, ins: tuple[TensorSpec, ...]) -> TensorSpec:
    """The one spec that all inputs (at least one) share; refuses differing ones."""
    if not ins:
        raise ValueError(f"{tag} expects at least 1 input, got 0")
    for index, spec in enumerate(ins[1:], start=1):
        if spec != ins[0]:
            raise ValueError(
                f"{tag} expects equal inputs: input 0 is {ins[0].dtype} {ins[0].shape}, "
                f"got input {index} as {spec.dtype} {spec.shape}"
            )
    return ins[0]


def expect_axis(tag: str, axis: int, shape: Shape) -> int:
    """`axis` counted from the front; refuses one that `shape` does not have."""
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"{tag} expects an input with axis {axis}, got shape {shape}")
    return axis % len(shape)


def element_count(shape: Shape) -> int:
    """Number of elements."""
    total = 1
    for length in shape:
        total *= length
    return total


def accumulation_dtype(dtype: DType) -> DType:
    """What sums of `dtype` are kept in: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def length_mark(backend: Backend, length: int) -> Array:
    """A tiny array that carries `length` in its shape.

    `saved` holds arrays only, so that backward can run elsewhere; a shape is read without a copy to the host.
    """
    return backend.zeros((length,), "int32")


def marked_lengths(saved: Mapping[str, Array]) -> tuple[int, ...]:
    """Lengths of the marks that `mark_lengths` made, in order."""
    return tuple(int(saved[f"length_{index}"].shape[0]) for index in range(len(saved)))


def mark_lengths(backend: Backend, lengths: tuple[int, ...]) -> Mapping[str, Array]:
    """One mark per length, as the whole of a `saved`."""
    return {f"length_{index}": length_mark(backend, length) for index, length in enumerate(lengths)}
