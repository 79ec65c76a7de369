"""The sample ledger's audit against multiset arithmetic."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.store.ledger import audit

samples = st.lists(st.integers(0, 12), max_size=30)
rows = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), max_size=30)


@given(samples, rows)
def test_audit_agrees_with_multiset_difference(
    expected: list[int], found: list[tuple[int, int, bool]]
) -> None:
    counted = Counter(sample for _, sample, _ in found)
    report = audit(expected, found)
    assert Counter(report.lost) == Counter(expected) - counted
    assert Counter(report.twice) == counted - Counter(expected)
    assert list(report.lost) == sorted(report.lost)
    assert list(report.twice) == sorted(report.twice)
    assert report.samples == len(found)
    assert report.skipped == len([row for row in found if row[2]])
    assert report.is_exact == (Counter(expected) == counted)


@given(st.permutations(list(range(20))))
def test_order_does_not_matter(order: list[int]) -> None:
    report = audit(range(20), [(1 + i, sample, False) for i, sample in enumerate(order)])
    assert report.is_exact


def test_one_lost_one_doubled_and_one_stranger_are_named() -> None:
    report = audit([1, 2, 3], [(1, 1, False), (1, 3, False), (2, 3, True), (2, 8, True)])
    assert (report.samples, report.lost, report.twice, report.skipped) == (4, (2,), (3, 8), 2)
    assert not report.is_exact
