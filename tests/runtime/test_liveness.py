"""A buffer goes back once, after its last use, and only if nobody outside holds it."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import InvariantError
from dcnr_app.runtime.liveness import BufferLedger, buffer_bytes


class _Recording(ReferenceBackend):
    """The reference backend, which also notes what was released."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.released: list[np.ndarray] = []

    def release(self, x: np.ndarray) -> None:
        """Note and release."""
        self.released.append(x)
        super().release(x)


@pytest.fixture
def backend() -> _Recording:
    """A backend that notes releases."""
    return _Recording()


def test_a_view_keeps_the_buffer_until_the_last_use_ends(backend: _Recording) -> None:
    ledger = BufferLedger(backend)
    array = np.zeros((4, 3))
    view = array.reshape(12)[3:9]
    ledger.hold(array)
    ledger.hold(view)
    assert not ledger.is_sole(array)
    ledger.drop(array)
    assert not backend.released
    assert ledger.is_sole(view)
    ledger.drop(view)
    assert len(backend.released) == 1
    assert len(ledger) == 0


def test_a_buffer_that_was_given_out_is_never_released(backend: _Recording) -> None:
    ledger = BufferLedger(backend)
    array = np.zeros(4)
    ledger.hold(array)
    saved = ledger.hold(array[:2])
    assert ledger.disown(array) is array
    assert not ledger.is_sole(saved)
    ledger.drop(saved)
    assert not backend.released
    assert len(ledger) == 0


def test_giving_up_needs_a_sole_use_and_releases_nothing(backend: _Recording) -> None:
    ledger = BufferLedger(backend)
    array = ledger.hold(np.zeros(4))
    ledger.hold(array)
    with pytest.raises(InvariantError, match="others still use"):
        ledger.surrender(array)
    ledger.drop(array)
    assert ledger.surrender(array) is array
    assert not backend.released


def test_letting_go_once_too_often_is_an_error(backend: _Recording) -> None:
    ledger = BufferLedger(backend)
    array = ledger.hold(np.zeros(4))
    ledger.drop(array)
    with pytest.raises(InvariantError, match="more often"):
        ledger.drop(array)


def test_shared_buffers_count_once_in_bytes() -> None:
    array = np.zeros(10, np.float32)
    assert buffer_bytes([array, array[:3], array.reshape(2, 5), np.zeros(2, np.float64)]) == 40 + 16
