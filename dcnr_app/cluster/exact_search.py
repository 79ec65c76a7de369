"""All placements of a small network, but for those that a bound rules out: the best there is. Pure.

VNodes are placed in topological order. A partial placement is given up when no completion can be faster than
the best known: a PNode's or link's work so far, all work shared out evenly, or the way of one microbatch
through what is placed already takes too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcnr_app.cluster.costs import STEP_MS, TASK_MS, CostTables, estimate
from dcnr_app.cluster.search import Search

MOST_NODES, MOST_PLACES = 10, 3
_TOLERANCE = 1e-9


def is_small(tables: CostTables, n_free: int) -> bool:
    """Whether all placements can be gone through."""
    return n_free <= MOST_NODES and tables.n_places <= MOST_PLACES


def improve_exactly(search: Search) -> None:
    """Make `search.best` the best of all assignments, hints kept. Its own best so far is the first bound."""
    _Exact(search).place_from(0)


class _Exact:
    """The placement under construction and running sums over it."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.tables = search.tables
        work, n_places = self.tables.work, self.tables.n_places
        self.n_microbatches = self.tables.settings.microbatches
        self.factors = [3.0 if node.has_backward else 1.0 for node in work.nodes]
        self.entering: list[list[tuple[int, int, int, bool]]] = [[] for _ in work.nodes]
        for use in work.uses:
            self.entering[use.target].append((use.source, use.key, use.n_bytes, use.has_gradient))
        self.places = [0] * work.n_nodes
        self.busy = [0.0] * n_places
        self.sending = [[0.0] * n_places for _ in range(n_places)]
        # One microbatch: when forward of a VNode can end, and how long backward takes from it to the start.
        self.forward_end = [0.0] * work.n_nodes
        self.backward_way = [0.0] * work.n_nodes
        self.seen: set[tuple[int, int]] = set()
        self.least_left = self._least_left()
        self.symmetric = self._is_symmetric()
        self.fixed_ms = STEP_MS + 2 * min(self.tables.control_ms)

    def _least_left(self) -> list[float]:
        """Time that the VNodes from each index on take at least, on whichever place is fastest for each."""
        work = self.tables.work
        left = [0.0] * (work.n_nodes + 1)
        for node in range(work.n_nodes - 1, -1, -1):
            fastest = min(row[node] for row in self.tables.forward_ms)
            left[node] = left[node + 1] + self.n_microbatches * self.factors[node] * fastest
        return left

    def _is_symmetric(self) -> bool:
        """Whether the places can be renamed without a change of any cost."""
        tables, n_places = self.tables, self.tables.n_places
        rates = {tables.links[a][b] for a in range(n_places) for b in range(n_places) if a != b}
        budgets = {pool.budget_bytes for pool in tables.pools}
        covered = [place for pool in tables.pools for place in pool.places]
        return (
            not self.search.hints
            and len(rates) <= 1
            and len(set(tables.forward_ms)) == len(set(tables.update_ms_per_byte)) == 1
            and len(set(tables.control_ms)) == 1
            and (not covered or (len(tables.pools) == n_places and len(budgets) == 1))
        )

    def place_from(self, node: int) -> None:
        """Try every place for `node` and all after it."""
        if node == self.tables.work.n_nodes:
            self._weigh()
            return
        choices: Sequence[int] = range(self.tables.n_places)
        if node in self.search.hints:
            choices = (self.search.hints[node],)
        elif self.symmetric:
            choices = range(min(self.tables.n_places, 1 + max(self.places[:node], default=-1) + 1))
        for place in choices:
            self.places[node] = place
            undo = self._add(node, place)
            if self._bound(node) < self._limit():
                self.place_from(node + 1)
            self._remove(node, place, undo)

    def _weigh(self) -> None:
        places = tuple(self.places)
        search = self.search
        if places in search.scores:
            return
        score = search.score_of(places, estimate(self.tables, places))
        if score < search.scores[search.best]:
            search.scores[places] = score
            search.best = places

    def _limit(self) -> float:
        """Step time that a placement must beat; none while the best known one is not allowed."""
        empty, excess, step_ms, _ = self.search.scores[self.search.best]
        return float("inf") if empty or excess else step_ms - _TOLERANCE

    def _add(self, node: int, place: int) -> list[tuple[int, int]]:
        tables, n_microbatches = self.tables, self.n_microbatches
        forward_ms = tables.forward_ms[place][node]
        self.busy[place] += n_microbatches * self.factors[node] * forward_ms
        start = way = 0.0
        new: list[tuple[int, int]] = []
        for source, key, n_bytes, has_gradient in self.entering[node]:
            there = self.places[source]
            hop = back = 0.0
            if there != place:
                rate, reverse = tables.links[there][place], tables.links[place][there]
                hop = n_bytes * rate.ms_per_byte + rate.delay_ms + TASK_MS
                if (key, place) not in self.seen:
                    self.seen.add((key, place))
                    new.append((key, place))
                    self.sending[there][place] += n_microbatches * n_bytes * rate.ms_per_byte
                if has_gradient:
                    back = n_bytes * reverse.ms_per_byte + reverse.delay_ms
            start = max(start, self.forward_end[source] + hop)
            if has_gradient:
                way = max(way, self.backward_way[source] + back)
        self.forward_end[node] = start + forward_ms
        self.backward_way[node] = way + 2.0 * forward_ms if self.factors[node] > 1.0 else 0.0
        return new

    def _remove(self, node: int, place: int, new: list[tuple[int, int]]) -> None:
        tables, n_microbatches = self.tables, self.n_microbatches
        self.busy[place] -= n_microbatches * self.factors[node] * tables.forward_ms[place][node]
        sizes = {key: (source, n_bytes) for source, key, n_bytes, _ in self.entering[node]}
        for key, at in new:
            self.seen.discard((key, at))
            source, n_bytes = sizes[key]
            there = self.places[source]
            rate = tables.links[there][at]
            self.sending[there][at] -= n_microbatches * n_bytes * rate.ms_per_byte

    def _bound(self, node: int) -> float:
        """What every completion takes at least, VNodes up to `node` being placed."""
        shared_out = (sum(self.busy) + self.least_left[node + 1]) / self.tables.n_places
        most_sent = max(max(row) for row in self.sending)
        way = self.forward_end[node] + self.backward_way[node]
        return self.fixed_ms + max(*self.busy, shared_out, most_sent, way, 0.0) - _TOLERANCE
