"""Rates are work over time, the best run counts, and only a change of the device is measured anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.engine.measure import Measurement, kept_measurement, measure, measured, memory_now
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import StoreError

FLOPS_PER_MS, BYTES_PER_MS = 4e6, 2e5
_LAG = 1.7


class Clockwork(ReferenceBackend):
    """A backend whose every op takes a fixed time on a clock of its own; each third run is slowed down."""

    def __init__(self) -> None:
        super().__init__(1)
        self.now_ms = 0.0
        self.n_ops = 0

    def timer_ms(self) -> float:
        """The time that ops have taken."""
        return self.now_ms

    def _spend(self, ms: float) -> None:
        self.n_ops += 1
        self.now_ms += ms * (_LAG if self.n_ops % 3 == 0 else 1.0)

    def linear_forward(self, x_NI: Any, w_OI: Any, b_O: Any) -> Any:
        self._spend(2 * x_NI.shape[0] * w_OI.size / FLOPS_PER_MS)
        return super().linear_forward(x_NI[:1], w_OI, b_O)

    def linear_backward(self, x_NI: Any, w_OI: Any, dy_NO: Any, *, has_bias: bool) -> Any:
        self._spend(4 * x_NI.shape[0] * w_OI.size / FLOPS_PER_MS)
        return super().linear_backward(x_NI[:1], w_OI, dy_NO[:1], has_bias=has_bias)

    def layernorm_forward(self, x_ND: Any, *rest: Any) -> Any:
        self._spend(8 * x_ND.size / BYTES_PER_MS)
        return super().layernorm_forward(x_ND[:1], *rest)

    def layernorm_backward(self, x_ND: Any, *rest: Any, has_bias: bool) -> Any:
        self._spend(16 * x_ND.size / BYTES_PER_MS)
        gain, saved, dy_ND = rest
        return super().layernorm_backward(x_ND[:1], gain, saved, dy_ND, has_bias=has_bias)

    def gelu_forward(self, x: Any) -> Any:
        self._spend(8 * x.size / BYTES_PER_MS)
        return super().gelu_forward(x[:1])

    def gelu_backward(self, x: Any, dy: Any) -> Any:
        self._spend(16 * x.size / BYTES_PER_MS)
        return super().gelu_backward(x[:1], dy)


@pytest.fixture
def clockwork() -> Iterator[Clockwork]:
    """A backend of known speed."""
    made = Clockwork()
    yield made
    made.close()


def test_rates_are_what_the_device_does_per_second(clockwork: Clockwork) -> None:
    found = measure(clockwork, 1, SystemClock(), clockwork.timer_ms)
    assert set(found.gemm_flops) == {"float32", "float16", "bfloat16"}
    for flops in found.gemm_flops.values():
        assert 1e3 * FLOPS_PER_MS / _LAG <= flops <= 1.001e3 * FLOPS_PER_MS
    assert 1e3 * BYTES_PER_MS / _LAG <= found.memory_bytes_per_s <= 1.001e3 * BYTES_PER_MS
    assert max(found.gemm_flops.values()) == pytest.approx(1e3 * FLOPS_PER_MS)
    assert found.took_ms == clockwork.now_ms


def test_a_real_device_is_measured_in_a_few_seconds_at_most() -> None:
    backend = ReferenceBackend(1)
    found = measure(backend, 1, SystemClock())
    backend.close()
    assert found.gemm_flops["float32"] > 1e7
    assert found.memory_bytes_per_s > 1e7
    assert found.took_ms < 20_000


class Changed(Clockwork):
    """The same device with another library."""

    def device_class(self) -> Mapping[str, str]:
        return {**super().device_class(), "blas": "another"}


def kept(folder: Path) -> list[Measurement]:
    """All measurements in a folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Measurement) for path in folder.iterdir()]


def test_it_is_measured_once_per_class_and_number_of_threads(tmp_path: Path, clockwork: Clockwork) -> None:
    folder = tmp_path / "measured"
    first = measured(folder, clockwork, 1, SystemClock())
    n_ops = clockwork.n_ops
    assert measured(folder, clockwork, 1, SystemClock()) == first
    assert clockwork.n_ops == n_ops
    assert measured(folder, clockwork, 2, SystemClock()).threads == 2
    assert clockwork.n_ops > n_ops
    other = Changed()
    assert measured(folder, other, 1, SystemClock()).device_class != first.device_class
    other.close()
    assert len(kept(folder)) == 3


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[1]", b'{"device_class": 3}', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_written_anew(
    tmp_path: Path, clockwork: Clockwork, rubbish: bytes
) -> None:
    measured(tmp_path, clockwork, 1, SystemClock())
    (path,) = tmp_path.iterdir()
    path.write_bytes(rubbish)
    found = measured(tmp_path, clockwork, 1, SystemClock())
    assert kept(tmp_path) == [found]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, clockwork: Clockwork) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be kept"):
        measured(tmp_path / "file", clockwork, 1, SystemClock())


def test_memory_is_the_machines() -> None:
    found = memory_now()
    assert 0 < found.free_bytes <= found.total_bytes == psutil.virtual_memory().total


def test_another_number_of_threads_is_reckoned_from_the_nearest_measured(
    tmp_path: Path, clockwork: Clockwork
) -> None:
    two = measured(tmp_path, clockwork, 2, SystemClock())
    assert kept_measurement(tmp_path, two.device_class, 2) == two
    six = kept_measurement(tmp_path, two.device_class, 6)
    assert six is not None
    assert six.gemm_flops["float32"] == pytest.approx(3 * two.gemm_flops["float32"])
    assert six.memory_bytes_per_s == pytest.approx(3 * two.memory_bytes_per_s)
    assert (six.threads, six.wall_ms) == (6, 0)
    assert kept_measurement(tmp_path, "another", 2) is None
    assert kept_measurement(tmp_path / "nothing", two.device_class, 2) is None
