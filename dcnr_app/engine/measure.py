"""How fast a device is: matrix products by dtype and row-wise kernels, through the Backend protocol alone.

Knows no plan and no network. What was measured is kept in a file per device class and number of threads, so
another engine, library, processor or number of threads is measured anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import psutil

from dcnr_app.clock import Clock
from dcnr_app.engine.backend import Array, Backend, DType
from dcnr_app.engine.device import device_class
from dcnr_app.errors import StoreError

FORMAT = 1
Timer = Callable[[], float]
DTYPES: tuple[DType, ...] = ("float32", "float16", "bfloat16")
_WIDTH, _HIDDEN = 512, 2048
"""Columns of the products: those of a small transformer's feed-forward part."""
_FIRST_ROWS, _MOST_ROWS = 64, 2048
_LONG_ENOUGH_MS = 15.0
"""A run of this length outweighs what starts and ends it; then no more rows are taken."""
_REPEATS = 3
_FORWARDS = 3
"""Forward and backward together are as much work as three times forward."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a device does per second: FLOP of matrix products by dtype, and bytes of row-wise kernels, read
    and written, forward and backward alike. `wall_ms` is when it was measured, in ms since 1970."""

    device_class: str
    threads: int
    gemm_flops: Mapping[str, float]
    memory_bytes_per_s: float
    wall_ms: int
    took_ms: float = 0.0
    format: int = FORMAT


class MemoryNow(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's memory: what a program can still take, and all of it."""

    free_bytes: int
    total_bytes: int


def memory_now() -> MemoryNow:
    """The machine's memory at this moment."""
    found = psutil.virtual_memory()
    return MemoryNow(free_bytes=int(found.available), total_bytes=int(found.total))


def precise_ms() -> float:
    """A timer for short durations: the monotonic clock of some systems ticks every 15 ms only."""
    return time.perf_counter() * 1e3


def measure(backend: Backend, threads: int, clock: Clock, timer_ms: Timer = precise_ms) -> Measurement:
    """Measure a device for a few hundred ms on the calling thread; the best of several runs counts."""
    began_ms = timer_ms()
    gemm_flops: dict[str, float] = {dtype: _gemm_flops(backend, timer_ms, dtype) for dtype in DTYPES}
    rate = _row_bytes_per_s(backend, timer_ms)
    return Measurement(
        device_class=device_class(backend.device_class()),
        threads=threads,
        gemm_flops=gemm_flops,
        memory_bytes_per_s=rate,
        wall_ms=clock.wall_ms(),
        took_ms=timer_ms() - began_ms,
    )


def measured(folder: Path, backend: Backend, threads: int, clock: Clock) -> Measurement:
    """The measurement kept in `folder` for this device class and number of threads; made and kept if there is
    none that can be read. Raises StoreError if it cannot be kept."""
    kind = device_class(backend.device_class())
    found = _read(_path(folder, kind, threads))
    if found is not None and (found.device_class, found.threads) == (kind, threads):
        return found
    made = measure(backend, threads, clock)
    _keep(_path(folder, kind, threads), msgspec.json.encode(made))
    return made


def kept_measurement(folder: Path, kind: str, threads: int) -> Measurement | None:
    """What is kept for this device class; for another number of threads than any that was measured, the
    nearest one's figures in proportion, with `wall_ms` 0. None if there is nothing that can be read."""
    every = [_read(path) for path in sorted(folder.glob(f"device-{kind}-*.json"))]
    known = [found for found in every if found is not None and found.device_class == kind]
    nearest = min(known, key=lambda found: abs(found.threads - threads), default=None)
    if nearest is None or nearest.threads == threads:
        return nearest
    factor = threads / nearest.threads
    return msgspec.structs.replace(
        nearest,
        threads=threads,
        gemm_flops={dtype: factor * flops for dtype, flops in nearest.gemm_flops.items()},
        memory_bytes_per_s=factor * nearest.memory_bytes_per_s,
        wall_ms=0,
    )


def _path(folder: Path, kind: str, threads: int) -> Path:
    return folder / f"device-{kind}-{threads}.json"


def _read(path: Path) -> Measurement | None:
    """A kept measurement of this format, or None: it can be made anew."""
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode(path.read_bytes(), type=Measurement)
        if found.format == FORMAT:
            return found
    return None


def _keep(path: Path, raw: bytes) -> None:
    """Write a whole file or none: PNodes of one machine may measure at the same time."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_bytes(raw)
        part.replace(path)
    except OSError as error:
        raise StoreError(
            "the device's measurement cannot be kept", where=str(path), why=error.strerror or str(error)
        ) from error


def _gemm_flops(backend: Backend, timer_ms: Timer, dtype: DType) -> float:
    """FLOP/s of an affine map's forward and backward, on as many rows as it takes to be long enough."""
    weight = _random(backend, (_HIDDEN, _WIDTH), dtype)

    def run(n_rows: int) -> tuple[Callable[[], None], float]:
        x, dy = _random(backend, (n_rows, _WIDTH), dtype), _random(backend, (n_rows, _HIDDEN), dtype)

        def once() -> None:
            backend.release(backend.linear_forward(x, weight, None))
            for made in backend.linear_backward(x, weight, dy, has_bias=False):
                if made is not None:
                    backend.release(made)

        return once, _FORWARDS * 2.0 * n_rows * _WIDTH * _HIDDEN

    return _best_rate(backend, timer_ms, run)


def _row_bytes_per_s(backend: Backend, timer_ms: Timer) -> float:
    """Bytes per second of the two row-wise kernels that a transformer spends most time in."""
    gain = backend.full((_WIDTH,), 1.0, "float32")

    def run(n_rows: int) -> tuple[Callable[[], None], float]:
        x, wide = (
            _random(backend, (n_rows, _WIDTH), "float32"),
            _random(backend, (n_rows, _HIDDEN), "float32"),
        )

        def once() -> None:
            y, saved = backend.layernorm_forward(x, gain, gain, 1e-5)
            backend.layernorm_backward(x, gain, saved, y, has_bias=True)
            backend.gelu_backward(wide, backend.gelu_forward(wide))

        return once, _FORWARDS * 2.0 * 4.0 * n_rows * (_WIDTH + _HIDDEN)

    return _best_rate(backend, timer_ms, run)


def _best_rate(
    backend: Backend, timer_ms: Timer, make: Callable[[int], tuple[Callable[[], None], float]]
) -> float:
    """Work per second: rows are doubled until one run is long enough, then the best of several counts.

    The first run of each size is not counted: it makes buffers and compiles kernels.
    """
    n_rows = _FIRST_ROWS
    while True:
        once, work = make(n_rows)
        _time_ms(backend, timer_ms, once)
        took_ms = _time_ms(backend, timer_ms, once)
        if took_ms >= _LONG_ENOUGH_MS or n_rows >= _MOST_ROWS:
            break
        n_rows = min(_MOST_ROWS, n_rows * (2 if took_ms > _LONG_ENOUGH_MS / 4 else 8))
    best_ms = min([took_ms, *(_time_ms(backend, timer_ms, once) for _ in range(_REPEATS - 1))])
    return work * 1e3 / max(best_ms, 1e-6)


def _time_ms(backend: Backend, timer_ms: Timer, once: Callable[[], None]) -> float:
    backend.synchronize()
    began_ms = timer_ms()
    once()
    backend.synchronize()
    return timer_ms() - began_ms


def _random(backend: Backend, shape: tuple[int, ...], dtype: DType) -> Array:
    """Values as activations have them: zeros and denormals would be faster or slower."""
    host = np.random.default_rng(0).standard_normal(shape, np.float32)
    return backend.cast(backend.from_host(host), dtype)
