"""The sample ledger's audit: was every sample counted exactly once? Pure; knows no database."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger proves. `lost` and `twice` are sample ids, ascending, once per missing or surplus row.

    A row of a sample that was never expected is surplus, so it stands in `twice`. `skipped` counts rows of
    steps whose decision was to apply nothing: they used up their samples and are neither lost nor repeated.
    """

    samples: int
    lost: tuple[int, ...]
    twice: tuple[int, ...]
    skipped: int

    @property
    def is_exact(self) -> bool:
        """Whether each expected sample was counted once and nothing else was."""
        return not self.lost and not self.twice


def audit(expected: Sequence[int], rows: Sequence[tuple[int, int, bool]]) -> LedgerReport:
    """Compare the samples that the steps should have used with the ledger's (step, sample, is_skipped) rows.

    Both sides are multisets; sorting and walking them together takes O(n log n) time.
    """
    wanted = sorted(expected)
    counted = sorted(sample for _, sample, _ in rows)
    lost: list[int] = []
    twice: list[int] = []
    i = j = 0
    while i < len(wanted) and j < len(counted):
        if wanted[i] == counted[j]:
            i, j = i + 1, j + 1
        elif wanted[i] < counted[j]:
            lost.append(wanted[i])
            i += 1
        else:
            twice.append(counted[j])
            j += 1
    lost += wanted[i:]
    twice += counted[j:]
    return LedgerReport(
        samples=len(counted),
        lost=tuple(lost),
        twice=tuple(twice),
        skipped=sum(is_skipped for _, _, is_skipped in rows),
    )
