"""The NumPy reference against the backend contract: values, threads, layouts, arguments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dcnr_app.engine.backend import Array, Backend, DType
from dcnr_app.engine.reference import ReferenceBackend
from tests.contracts.backend import CASES
from tests.contracts.backend_case import FLOAT_DTYPES, OpCase, check_case, run_case

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[int, ReferenceBackend]]:
    made = {threads: ReferenceBackend(threads) for threads in (1, 2, 3)}
    yield made
    for backend in made.values():
        backend.close()


def test_reference_fulfils_the_protocol(backends: dict[int, ReferenceBackend]) -> None:
    backend: Backend = backends[1]
    assert backend.name == "reference"


@BY_NAME
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_op_agrees_with_the_float64_oracle(
    backends: dict[int, ReferenceBackend], case: OpCase, dtype: DType
) -> None:
    check_case(backends[1], case, dtype)


@BY_NAME
def test_thread_count_changes_no_bit(backends: dict[int, ReferenceBackend], case: OpCase) -> None:
    alone = run_case(backends[1], case, "float32")
    for threads in (2, 3):
        for result, expected in zip(run_case(backends[threads], case, "float32"), alone, strict=True):
            np.testing.assert_array_equal(result, expected)


@BY_NAME
def test_op_writes_into_no_argument(backends: dict[int, ReferenceBackend], case: OpCase) -> None:
    if case.gives_up:
        return
    arguments = [backends[1].from_host(x) for x in case.arguments("float32")]
    before = [backends[1].to_host(x) for x in arguments]
    case.run(backends[1], *arguments)
    for argument, kept in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, kept)


@BY_NAME
def test_memory_layout_of_arguments_changes_no_bit(
    backends: dict[int, ReferenceBackend], case: OpCase
) -> None:
    backend = backends[1]
    plain = [backend.from_host(x) for x in case.arguments("float32")]
    expected = [backend.to_host(x) for x in case.run(backend, *plain)]
    for relaid in (_reversed_layout, _padded_rows):
        views = [relaid(x) for x in case.arguments("float32")]
        for result, wanted in zip(case.run(backend, *views), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def _reversed_layout(x: Array) -> Array:
    return np.asfortranarray(x) if x.ndim > 1 else x


def _padded_rows(x: Array) -> Array:
    padded = np.full((*x.shape[:-1], x.shape[-1] + 3), 7, x.dtype)
    padded[..., 1:-2] = x
    return padded[..., 1:-2]
