"""Gradient sums never write into what somebody else still holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import InvariantError
from dcnr_app.runtime.accumulators import Accumulators, site_name
from dcnr_app.runtime.liveness import BufferLedger

SITE = ("up", "weight")


class Made(NamedTuple):
    """Accumulators and the ledger they count in."""

    sums: Accumulators
    ledger: BufferLedger


@pytest.fixture
def made() -> Iterator[Made]:
    """Empty accumulators on the reference backend."""
    backend = ReferenceBackend(threads=1)
    ledger = BufferLedger(backend)
    yield Made(Accumulators(backend, ledger), ledger)
    backend.close()


def _add(made: Made, microbatch: int, array: np.ndarray) -> None:
    made.sums.add(SITE, 0, microbatch, made.ledger.hold(array))


def test_a_first_gradient_that_is_in_use_elsewhere_is_not_written_into(made: Made) -> None:
    shared = np.ones(3, np.float32)
    made.ledger.hold(shared)
    _add(made, 0, shared[:])
    _add(made, 1, np.ones(3, np.float32))
    assert shared.tolist() == [1, 1, 1]
    assert made.sums.fold([(SITE, None)]).tolist() == [2, 2, 2]


def test_a_first_gradient_from_outside_is_not_written_into(made: Made) -> None:
    outside = np.ones(3, np.float32)
    _add(made, 0, np.ones(3, np.float32))
    total = made.sums.fold([(("first", "weight"), outside), (SITE, None)])
    assert outside.tolist() == [1, 1, 1]
    assert total.tolist() == [2, 2, 2]


def test_a_lent_sum_stays_as_it_was_given(made: Made) -> None:
    _add(made, 0, np.ones(3, np.float32))
    lent = made.sums.lend(SITE)
    made.sums.clear()
    assert lent.tolist() == [1, 1, 1]
    assert len(made.ledger) == 0


def test_clearing_lets_the_next_step_begin_at_microbatch_zero(made: Made) -> None:
    _add(made, 0, np.ones(3, np.float32))
    made.sums.clear([SITE])
    made.sums.add(SITE, 1, 0, made.ledger.hold(np.full(3, 5, np.float32)))
    assert made.sums.fold([(SITE, None)]).tolist() == [5, 5, 5]


def test_a_site_that_lacks_a_microbatch_is_named(made: Made) -> None:
    _add(made, 0, np.ones(3, np.float32))
    made.sums.check_complete([SITE], 1)
    with pytest.raises(InvariantError, match=r"up\.weight has 1 of 2"):
        made.sums.check_complete([SITE], 2)
    assert site_name(SITE) == "up.weight"


def test_no_use_site_at_all_is_an_error(made: Made) -> None:
    with pytest.raises(InvariantError, match="without use sites"):
        made.sums.fold([])
