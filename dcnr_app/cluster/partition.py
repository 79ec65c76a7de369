"""Cuts of a row of VNodes into one contiguous part per PNode, balanced by what each PNode takes for it. Pure.

A row is the VNodes without a hint in topological order, so neighbours in it mostly are neighbours in the
network. Parts may be empty: fewer PNodes are then used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

_MOST_SUBSETS = 8
"""Up to so many PNodes every order of them is weighed (2^8 sets); beyond, the given order alone."""
_HALVINGS = 40


class Row(NamedTuple):
    """VNodes in a row on some PNodes: time of the first k VNodes at each place, memory likewise, and what a
    cut before each position costs."""

    time_ms: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[int, ...]
    budgets: tuple[int | None, ...]
    cut_ms: tuple[float, ...]

    @property
    def n_nodes(self) -> int:
        """VNodes in the row."""
        return len(self.memory_bytes) - 1

    def reach(self, place: int, start: int, limit_ms: float) -> int:
        """The largest stop for which nodes start..stop-1 take no longer than `limit_ms` there, and fit."""
        times = self.time_ms[place]
        stop = bisect_right(times, times[start] + limit_ms, lo=start) - 1
        budget = self.budgets[place]
        if budget is not None:
            sizes = self.memory_bytes
            stop = min(stop, bisect_right(sizes, sizes[start] + budget, lo=start) - 1)
        return max(start, stop)


def make_row(
    times_ms: Sequence[Sequence[float]],
    memory_bytes: Sequence[int],
    budgets: Sequence[int | None],
    cut_ms: Sequence[float],
) -> Row:
    """A row from each VNode's time by place and its memory; `cut_ms` has one entry more than VNodes."""
    return Row(
        time_ms=tuple((0.0, *accumulate(row)) for row in times_ms),
        memory_bytes=(0, *accumulate(memory_bytes)),
        budgets=tuple(budgets),
        cut_ms=tuple(cut_ms),
    )


def least_limit(row: Row, places: Sequence[int]) -> tuple[float, tuple[int, ...]] | None:
    """(largest part's least possible time, order of the places that reaches it); None if nothing fits."""
    low, high = 0.0, max(row.time_ms[place][-1] for place in places)
    order = _order_within(row, places, high)
    if order is None:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _order_within(row, places, middle)
        if found is None:
            low = middle
        else:
            high, order = middle, found
    return high, order


def _order_within(row: Row, places: Sequence[int], limit_ms: float) -> tuple[int, ...] | None:
    """An order of the places in which parts of at most `limit_ms` cover the row, or None.

    The furthest position that a set of places can reach, each taking as much as it may: reaching further is
    never worse, so one number per set is enough.
    """
    if len(places) > _MOST_SUBSETS:
        at = 0
        for place in places:
            at = row.reach(place, at, limit_ms)
        return tuple(places) if at == row.n_nodes else None
    n_sets = 1 << len(places)
    reached, last = [-1] * n_sets, [-1] * n_sets
    reached[0] = 0
    for chosen in range(n_sets):
        for index, place in enumerate(places):
            if chosen >> index & 1:
                continue
            bigger = chosen | 1 << index
            stop = row.reach(place, reached[chosen], limit_ms)
            if stop > reached[bigger]:
                reached[bigger], last[bigger] = stop, index
    if reached[-1] < row.n_nodes:
        return None
    order: list[int] = []
    chosen = n_sets - 1
    while chosen:
        order.append(places[last[chosen]])
        chosen ^= 1 << last[chosen]
    return tuple(order[::-1])


def cheapest_cut(row: Row, order: Sequence[int], limit_ms: float) -> list[tuple[int, int]] | None:
    """The part (start, stop) of each place in `order`: none longer than `limit_ms`, and among those the cuts
    that cost least; None if there are none."""
    n_nodes, n_parts = row.n_nodes, len(order)
    best = [[inf] * (n_nodes + 1) for _ in range(n_parts + 1)]
    choice = [[0] * (n_nodes + 1) for _ in range(n_parts + 1)]
    best[0][0] = 0.0
    for part, place in enumerate(order, start=1):
        before, now = best[part - 1], best[part]
        for start in range(n_nodes + 1):
            if before[start] == inf:
                continue
            for stop in range(start, row.reach(place, start, limit_ms) + 1):
                is_cut = 0 < start < n_nodes and stop > start
                total = before[start] + (row.cut_ms[start] if is_cut else 0.0)
                if total < now[stop]:
                    now[stop], choice[part][stop] = total, start
    if best[n_parts][n_nodes] == inf:
        return None
    ranges: list[tuple[int, int]] = []
    stop = n_nodes
    for part in range(n_parts, 0, -1):
        ranges.append((choice[part][stop], stop))
        stop = choice[part][stop]
    return ranges[::-1]
