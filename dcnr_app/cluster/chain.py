"""Cuts of a chain of VNodes into parts by FLOPs, each with parameters, for PNodes taken as equal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

_BALANCE_SLACK = (
    0.05  # a part may exceed the best possible largest part by this much, to cut at a cheaper edge
)


class Chain:
    """Nodes in a row, cut anywhere: the cost of a part, and whether it may stand alone."""

    def __init__(self, costs: Sequence[int], has_parameters: Sequence[bool]) -> None:
        self.n = len(costs)
        self._costs = [0, *accumulate(costs)]
        self._counts = [0, *accumulate(int(has) for has in has_parameters)]

    def cost(self, start: int, stop: int) -> int:
        """FLOPs of nodes start..stop-1."""
        return self._costs[stop] - self._costs[start]

    def fits(self, start: int, stop: int, *, wants_parameters: bool) -> bool:
        """Whether nodes start..stop-1 can be a part: some node, one with parameters where they are wanted."""
        return stop > start and (not wants_parameters or self._counts[stop] > self._counts[start])


def cut_chain(chain: Chain, crossing: Sequence[int], wants: Sequence[bool]) -> list[tuple[int, int]]:
    """Ranges of a cut into one part per entry of `wants`: near-least largest part, then least crossing.

    `wants` says which parts need parameters; where that cannot be, no part does, and the caller finds out.
    """
    bottleneck = _least_bottleneck(chain, wants)
    if bottleneck == inf:
        wants = [False] * len(wants)
        bottleneck = _least_bottleneck(chain, wants)
    limit = bottleneck * (1.0 + _BALANCE_SLACK)
    n, n_parts = chain.n, len(wants)
    best = [[inf] * (n + 1) for _ in range(n_parts + 1)]
    choice = [[0] * (n + 1) for _ in range(n_parts + 1)]
    best[0][0] = 0.0
    for part in range(1, n_parts + 1):
        for stop in range(part, n + 1):
            for start in range(stop - 1, part - 2, -1):
                if chain.cost(start, stop) > limit:
                    break
                if not chain.fits(start, stop, wants_parameters=wants[part - 1]):
                    continue
                total = best[part - 1][start] + (crossing[start] if start else 0)
                if total < best[part][stop]:
                    best[part][stop], choice[part][stop] = total, start
    ranges: list[tuple[int, int]] = []
    stop = n
    for part in range(n_parts, 0, -1):
        ranges.append((choice[part][stop], stop))
        stop = choice[part][stop]
    return ranges[::-1]


def _least_bottleneck(chain: Chain, wants: Sequence[bool]) -> float:
    """The smallest possible largest part (linear partition by dynamic programming); infinite if none is."""
    least = [0.0] + [inf] * chain.n
    for wants_parameters in wants:
        before = least
        least = [inf] * (chain.n + 1)
        for stop in range(1, chain.n + 1):
            for start in range(stop):
                if chain.fits(start, stop, wants_parameters=wants_parameters):
                    least[stop] = min(least[stop], max(before[start], chain.cost(start, stop)))
    return least[chain.n]
