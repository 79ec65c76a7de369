"""What the backend contract's cases do not show: errors, edges, memory bounds, optimizers, randomness."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from dcnr_app.engine.optimizers import OPTIMIZERS, apply_update, make_slots, slot_names
from dcnr_app.engine.reference import ReferenceBackend
from tests.contracts.backend import STEP
from tests.contracts.backend_oracles import scatter_add


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(2)
    yield made
    made.close()


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("bad_id", [-1, 4])
def test_gather_and_scatter_refuse_ids_outside_the_table(backend: ReferenceBackend, bad_id: int) -> None:
    ids = np.array([0, bad_id])
    with pytest.raises(ValueError, match=r"ids in 0\.\.3"):
        backend.gather_rows(normal(4, 2), ids)
    with pytest.raises(ValueError, match=r"ids in 0\.\.3"):
        backend.scatter_add_rows(ids, normal(2, 2), 4)


def test_scatter_adds_rows_in_the_order_in_which_they_stand(backend: ReferenceBackend) -> None:
    rows, ids = normal(700, 33), np.random.default_rng(1).zipf(1.5, 700) % 50
    np.testing.assert_array_equal(backend.scatter_add_rows(ids, rows, 50), scatter_add(ids, rows, 50))


def test_cross_entropy_refuses_a_target_beyond_the_vocabulary(backend: ReferenceBackend) -> None:
    with pytest.raises(ValueError, match="targets below 3"):
        backend.cross_entropy_forward(normal(2, 3), np.array([0, 3]))


def test_cross_entropy_of_ignored_rows_is_zero(backend: ReferenceBackend) -> None:
    logits, targets = normal(3, 4), np.array([-1, -1, -1])
    loss, logsumexp = backend.cross_entropy_forward(logits, targets)
    assert float(loss) == 0.0
    gradient = backend.cross_entropy_backward(logits, targets, logsumexp, np.float32(1.0))
    assert not np.any(gradient)


def test_cross_entropy_of_huge_logits_is_finite(backend: ReferenceBackend) -> None:
    loss, _ = backend.cross_entropy_forward(np.array([[1e30, 0.0]], np.float32), np.array([0]))
    assert float(loss) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.linear_forward(normal(2, 3), normal(4, 5), None),
        lambda b: b.linear_backward(normal(2, 3), normal(4, 3), normal(2, 5), has_bias=False),
        lambda b: b.matmul(normal(2, 3, 4), normal(3, 4, 2)),
        lambda b: b.attention_forward(normal(1, 1, 2, 4), normal(1, 1, 3, 4), normal(1, 1, 3, 4), 1.0),
        lambda b: b.rope(normal(1, 1, 2, 3), 10.0, 0, inverse=False),
        lambda b: b.slice_axis(normal(3), 0, 1, 4),
        lambda b: b.concat([normal(2), normal(2, dtype=np.float64)], 0),
        lambda b: b.accumulate(normal(2), normal(1)),
        lambda b: b.from_host(np.zeros(2, np.uint8)),
        lambda b: b.zeros((1,), "complex64"),
        lambda b: b.dtype_of(b.causal_mask(2, 2)),
        lambda b: b.where(np.ones(2, bool), normal(2), normal(2, dtype=np.float64)),
    ],
)
def test_op_says_what_it_expected(backend: ReferenceBackend, call: object) -> None:
    with pytest.raises(ValueError, match="expect"):
        call(backend)  # type: ignore[operator]


def test_reference_refuses_zero_threads() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        ReferenceBackend(0)


def test_causal_mask_is_true_up_to_the_diagonal(backend: ReferenceBackend) -> None:
    assert backend.causal_mask(2, 3).tolist() == [[True, False, False], [True, True, False]]


def test_attention_of_equal_arrays_has_the_bits_of_copies(backend: ReferenceBackend) -> None:
    x = normal(2, 2, 70, 16)
    same, _ = backend.attention_forward(x, x, x, 0.25)
    apart, _ = backend.attention_forward(x, x.copy(), x.copy(), 0.25)
    np.testing.assert_array_equal(same, apart)


def test_attention_never_holds_a_square_of_tokens(backend: ReferenceBackend) -> None:
    n_tokens, size = 1024, 16
    q, k, v, dout = (normal(1, 1, n_tokens, size) + i for i in range(4))
    tracemalloc.start()
    try:
        out, logsumexp = backend.attention_forward(q, k, v, 0.25)
        backend.attention_backward(q, k, v, out, logsumexp, dout, 0.25)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 0.5 * n_tokens * n_tokens * 4


def test_attention_gradient_of_the_future_is_zero(backend: ReferenceBackend) -> None:
    q, k, v = (normal(1, 1, 100, 8) + i for i in range(3))
    out, logsumexp = backend.attention_forward(q, k, v, 0.3)
    dout = np.zeros_like(q)
    dout[:, :, 40] = 1.0
    for gradient in backend.attention_backward(q, k, v, out, logsumexp, dout, 0.3):
        assert np.any(gradient[:, :, :41])
        assert not np.any(gradient[:, :, 41:])


def test_rope_backwards_undoes_rope(backend: ReferenceBackend) -> None:
    x = normal(2, 3, 9, 8, dtype=np.float64)
    turned = backend.rope(x, 10_000.0, 17, inverse=False)
    np.testing.assert_allclose(backend.rope(turned, 10_000.0, 17, inverse=True), x, atol=1e-14)


def test_random_numbers_are_a_function_of_key_and_index(backend: ReferenceBackend) -> None:
    many = backend.random_uniform((1, 2, 3), (300, 301)).reshape(-1)
    assert many.dtype == np.float32
    np.testing.assert_array_equal(backend.random_uniform((1, 2, 3), (7,)), many[:7])
    with ReferenceOnThreads(3) as other:
        np.testing.assert_array_equal(other.random_uniform((1, 2, 3), (90_300,)), many)
    assert not np.array_equal(backend.random_uniform((1, 2, 4), (7,)), many[:7])
    assert float(many.min()) >= 0.0
    assert float(many.max()) < 1.0
    assert abs(float(many.mean()) - 0.5) < 0.005
    assert abs(float(many.var()) - 1 / 12) < 0.002


class ReferenceOnThreads:
    """A backend for one block of a test."""

    def __init__(self, threads: int) -> None:
        self._backend = ReferenceBackend(threads)

    def __enter__(self) -> ReferenceBackend:
        return self._backend

    def __exit__(self, *exc: object) -> None:
        self._backend.close()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_unscale_finds_what_is_not_finite(backend: ReferenceBackend, bad: float) -> None:
    gradient = normal(400, 400)
    gradient[300, 2] = bad
    assert not backend.unscale(gradient, 4.0).is_finite


def test_unscale_keeps_a_huge_float64_gradient_finite(backend: ReferenceBackend) -> None:
    facts = backend.unscale(np.array([1e200, 1.0]), 1.0)
    assert facts.is_finite
    assert facts.squared_norm == np.inf


def test_unscale_gives_half_gradients_in_float32(backend: ReferenceBackend) -> None:
    facts = backend.unscale(np.ones(3, ml_dtypes.bfloat16), 2.0)
    assert facts.gradient.dtype == np.float32
    assert facts.squared_norm == 0.75


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_every_optimizer_moves_against_the_gradient(backend: ReferenceBackend, kind: str) -> None:
    weight = backend.zeros((5, 3), "float32")
    slots = make_slots(backend, kind, weight)
    assert tuple(slots) == slot_names(kind)
    gradient = normal(5, 3)
    moved, slots = apply_update(backend, kind, weight, gradient.copy(), slots, STEP)
    assert np.all(np.sign(moved) == -np.sign(gradient))
    assert all(np.any(slot) for slot in slots.values())


def test_unknown_optimizer_and_wrong_slots_are_refused(backend: ReferenceBackend) -> None:
    weight = backend.zeros((2,), "float32")
    with pytest.raises(ValueError, match="adamw, sgd"):
        make_slots(backend, "lion", weight)
    with pytest.raises(ValueError, match="slots"):
        apply_update(backend, "sgd", weight, weight, {"m": weight}, STEP)


def test_host_copies_are_out_of_reach_of_later_updates(backend: ReferenceBackend) -> None:
    weight = backend.from_host(normal(300, 300))
    host = backend.to_host(weight)
    kept = host.copy()
    backend.accumulate(weight, weight.copy())
    np.testing.assert_array_equal(host, kept)


def test_casts_round_to_the_nearest_and_back(backend: ReferenceBackend) -> None:
    x = backend.from_host(np.array([1.0, 1e6, 3.14159], np.float32))
    half = backend.cast(x, "float16")
    assert backend.to_host(half).tolist() == [1.0, np.inf, 3.140625]
    assert backend.dtype_of(backend.cast(x, "bfloat16")) == "bfloat16"
    assert backend.cast(x, "float32") is x


def test_a_row_has_the_same_bits_in_any_batch_of_many_tiles(backend: ReferenceBackend) -> None:
    x, w = normal(1025, 64), normal(96, 64)
    whole = backend.linear_forward(x, w, None)
    np.testing.assert_array_equal(backend.linear_forward(x[256:1025].copy(), w, None), whole[256:])
