"""The buffer pool: memory comes back, and never while somebody can see it."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from dcnr_app.engine.pool import POOLED_FROM_BYTES, SLACK_BYTES, BufferPool
from dcnr_app.engine.reference import ReferenceBackend

F32 = np.dtype(np.float32)
SHAPE = (128, 256)
N_BYTES = 128 * 256 * 4


def address(x: np.ndarray) -> int:
    return int(x.__array_interface__["data"][0])


def test_a_dropped_buffer_is_used_again() -> None:
    pool = BufferPool()
    x = pool.empty(SHAPE, F32)
    where = address(x)
    del x
    assert pool.figures().pooled_bytes == N_BYTES
    assert address(pool.empty((256, 128), F32)) == where


def test_a_view_keeps_its_buffer_from_being_used_again() -> None:
    pool = BufferPool()
    x = pool.empty(SHAPE, F32)
    x.fill(3.0)
    view = x.T[5:9].reshape(4, 128)[::2]
    del x
    other = pool.empty(SHAPE, F32)
    other.fill(9.0)
    assert np.all(view == 3.0)
    assert pool.figures().used_bytes == 2 * N_BYTES
    del view
    assert pool.figures() == (N_BYTES, N_BYTES, 2 * N_BYTES)


def test_a_memoryview_or_foreign_wrapper_keeps_its_buffer() -> None:
    pool = BufferPool()
    x = pool.empty(SHAPE, F32)
    wrapped = np.frombuffer(memoryview(x).cast("B"), np.uint8)
    del x
    assert pool.figures().used_bytes == N_BYTES
    del wrapped
    assert pool.figures().used_bytes == 0


def test_buffers_are_aligned_to_cache_lines() -> None:
    pool = BufferPool()
    assert all(address(pool.empty((n, 16384), F32)) % 64 == 0 for n in range(1, 5))


def test_small_arrays_stay_out_of_the_pool() -> None:
    pool = BufferPool()
    assert not pool.owns(pool.empty((POOLED_FROM_BYTES - 1,), np.dtype(np.uint8)))
    assert pool.owns(pool.empty((POOLED_FROM_BYTES,), np.dtype(np.uint8)))
    assert pool.owns(pool.empty(SHAPE, F32)[3:, 2:].T)


def test_a_cycle_of_garbage_gives_its_buffer_back() -> None:
    pool = BufferPool()
    holder: dict[str, object] = {"x": pool.empty(SHAPE, F32)}
    holder["self"] = holder
    del holder
    gc.collect()
    assert pool.figures().used_bytes == 0


def test_sizes_that_are_no_longer_asked_for_are_let_go() -> None:
    pool = BufferPool()
    for n in range(100):
        pool.empty((1024 * 1024 + n * 1024,), F32)
    figures = pool.figures()
    assert figures.pooled_bytes <= figures.peak_bytes + SLACK_BYTES


def test_many_threads_never_share_a_live_buffer() -> None:
    pool = BufferPool()
    clashes: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            x = pool.empty(SHAPE, F32)
            x.fill(mark)
            if not np.all(x == mark):
                clashes.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert pool.figures().used_bytes == 0


@pytest.mark.parametrize("n_releases", [1, 2])
def test_release_however_often_never_hurts_a_live_view(n_releases: int) -> None:
    backend = ReferenceBackend()
    x = backend.full(SHAPE, 3.0, "float32")
    view = backend.slice_axis(x, 0, 4, 9)
    for _ in range(n_releases):
        backend.release(x)
    del x
    others = [backend.full(SHAPE, 9.0, "float32") for _ in range(3)]
    assert np.all(view == 3.0)
    assert len({address(other) for other in others}) == 3
    backend.close()


def test_released_memory_serves_the_next_op() -> None:
    backend = ReferenceBackend()
    x = backend.zeros(SHAPE, "float32")
    where = address(x)
    backend.release(x)
    del x
    y = backend.full(SHAPE, 1.0, "float32")
    assert address(y) == where
    assert backend.memory() == (N_BYTES, 0, N_BYTES)
    backend.close()


def test_repeated_steps_take_no_new_memory() -> None:
    backend = ReferenceBackend(2)
    x, w = backend.full((1024, 64), 0.5, "float32"), backend.full((256, 64), 0.1, "float32")

    def step() -> None:
        hidden = backend.gelu_forward(backend.linear_forward(x, w, None))
        backend.linear_backward(x, w, hidden, has_bias=True)

    step()
    step()
    first = backend.memory()
    for _ in range(5):
        step()
    later = backend.memory()
    assert later.used_bytes == first.used_bytes
    assert later.used_bytes + later.pooled_bytes <= first.used_bytes + first.pooled_bytes + 2 * 1024 * 1024
    backend.close()
