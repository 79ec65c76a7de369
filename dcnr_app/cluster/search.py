"""The search for a placement: candidates, then small changes for as long as one helps. Pure, no clock.

The order of everything is fixed, and the effort is counted in work done, not in time: equal inputs give equal
placements on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from dcnr_app.cluster.costs import CostTables, Estimate, estimate
from dcnr_app.cluster.families import families, shares_of
from dcnr_app.cluster.memory_needs import PROCESS_BYTES
from dcnr_app.cluster.partition import Row, cheapest_cut, least_limit, make_row

Places = tuple[int, ...]
Score = tuple[int, int, float, int]
"""Less is better: places left empty that must not be, bytes too many, milliseconds, places in use."""

_SLACKS = (0.0, 0.05, 0.25)
"""A part may take so much longer than the best possible largest one, to cut at a cheaper edge."""
_MOST_FOR_ALL_SUBSETS = 4
_EFFORT = 450_000
"""VNodes, tensors and tasks gone through, all estimates together: about a second."""
_SHIFTS = (1, 2, 4, 8, 16, 32)
_STARTS = 16
_TRIED_PER_PLACE = 32


class Search:
    """Every estimate made so far, the best one, and what effort is left."""

    def __init__(self, tables: CostTables, *, uses_all: bool = False) -> None:
        self.tables = tables
        self.uses_all = uses_all
        n_places = tables.n_places
        self.hints = {
            index: node.hint % n_places
            for index, node in enumerate(tables.work.nodes)
            if node.hint is not None
        }
        self.free = [index for index in range(tables.work.n_nodes) if index not in self.hints]
        self.scores: dict[Places, Score] = {}
        self.best: Places = ()
        self.effort_left = _EFFORT

    def score(self, places: Places) -> Score:
        """The score of one assignment; the best is kept."""
        known = self.scores.get(places)
        if known is not None:
            return known
        found = estimate(self.tables, places)
        self.effort_left -= (
            len(places)
            + len(self.tables.work.uses)
            + 2 * len(found.timeline.order)
            + 8 * self.tables.n_places
        )
        score = self.score_of(places, found)
        self.scores[places] = score
        if not self.best or score < self.scores[self.best]:
            self.best = places
        return score

    def score_of(self, places: Sequence[int], found: Estimate) -> Score:
        """The score of an estimate."""
        n_used = len(set(places))
        empty = self.tables.n_places - n_used if self.uses_all else 0
        return empty, found.excess_bytes, found.step_ms, n_used

    def with_hints(self, rest: Sequence[int]) -> Places:
        """An assignment from the places of the free VNodes, in their order."""
        places = [0] * self.tables.work.n_nodes
        for index, place in self.hints.items():
            places[index] = place
        for index, place in zip(self.free, rest, strict=True):
            places[index] = place
        return tuple(places)

    def starts(self) -> list[Places]:
        """The best assignments so far, from which to go on."""
        return sorted(self.scores, key=lambda places: (self.scores[places], places))[:_STARTS]


def search(tables: CostTables, *, uses_all: bool = False) -> Search:
    """Search with the heuristics; `best` of the result is the best assignment found."""
    found = Search(tables, uses_all=uses_all)
    n_places = tables.n_places
    for place in range(n_places):
        found.score(found.with_hints([place] * len(found.free)))
    for places in _cuts(found):
        found.score(places)
    for places in list(_spreads(found)):
        found.score(places)
    if uses_all:
        _fill(found)
    for start in found.starts():
        _improve(found, start)
    return found


def _fill(search: Search) -> None:
    """From the best assignment on, give each place that is still empty the VNode that costs least there."""
    stride = max(1, len(search.free) // _TRIED_PER_PLACE)
    for place in range(search.tables.n_places):
        now = search.best
        if place in now:
            continue
        movable = [index for index in search.free if now.count(now[index]) > 1][::stride]
        tried = [_moved(now, (index,), place) for index in movable]
        if tried:
            search.score(min(tried, key=lambda places: (search.score(places), places)))


def subsets(n_places: int, speeds: Sequence[float], machines: Sequence[str]) -> list[tuple[int, ...]]:
    """Sets of at least two places worth weighing: all of a few, else the fastest k, and each machine's."""
    if n_places <= _MOST_FOR_ALL_SUBSETS:
        return [chosen for k in range(2, n_places + 1) for chosen in combinations(range(n_places), k)]
    fastest = sorted(range(n_places), key=lambda place: (-speeds[place], place))
    found = [tuple(sorted(fastest[:k])) for k in range(2, n_places + 1)]
    for machine in sorted({name for name in machines if name}):
        here = tuple(place for place in range(n_places) if machines[place] == machine)
        if len(here) > 1:
            found.append(here)
    return list(dict.fromkeys(found))


def _subsets(tables: CostTables) -> list[tuple[int, ...]]:
    speeds = [1.0 / sum(row) for row in tables.forward_ms]
    return subsets(tables.n_places, speeds, [device.machine for device in tables.facts.devices])


def _cuts(search: Search) -> Iterator[Places]:
    """Contiguous cuts of the free VNodes over each set of places, cautious and bold about memory."""
    if not search.free:
        return
    for chosen in _subsets(search.tables):
        for n_kept in sorted({1, len(chosen), search.tables.settings.microbatches}):
            row = _row(search, n_kept)
            found = least_limit(row, chosen)
            if found is None:
                continue
            limit, order = found
            for slack in _SLACKS:
                ranges = cheapest_cut(row, order, limit * (1.0 + slack))
                if ranges is not None:
                    rest = [p for p, (a, b) in zip(order, ranges, strict=True) for _ in range(a, b)]
                    yield search.with_hints(rest)


def _row(search: Search, n_kept: int) -> Row:
    """The free VNodes in a row, if arrays of `n_kept` microbatches are kept."""
    tables = search.tables
    nodes = tables.work.nodes
    factors = [3.0 if nodes[index].has_backward else 1.0 for index in search.free]
    slots = 1 if tables.settings.optimizer.type == "sgd" else 2
    memory = [nodes[index].made_bytes * n_kept for index in range(tables.work.n_nodes)]
    for parameter in tables.work.parameters:
        for site in set(parameter.sites):
            memory[site] += 2 * parameter.n_bytes
        memory[parameter.owner] += slots * parameter.n_bytes
    budgets: list[int | None] = [None] * tables.n_places
    for pool in tables.pools:
        for place in pool.places:
            taken = sum(memory[index] for index, at in search.hints.items() if at == place)
            budgets[place] = max(0, pool.budget_bytes - PROCESS_BYTES - taken)
    return make_row(
        [
            [row[i] * factor for i, factor in zip(search.free, factors, strict=True)]
            for row in tables.forward_ms
        ],
        [memory[index] for index in search.free],
        budgets,
        _cut_ms(tables, search.free),
    )


def _cut_ms(tables: CostTables, free: Sequence[int]) -> list[float]:
    """What a cut before each position of the row costs, by the mean link: its bytes forward and back."""
    n_places = tables.n_places
    rates = [tables.links[a][b] for a in range(n_places) for b in range(n_places) if a != b]
    ms_per_byte = sum(rate.ms_per_byte for rate in rates) / max(1, len(rates))
    position = {node: index for index, node in enumerate(free)}
    last_use: dict[int, tuple[int, int, int]] = {}
    for source, target, key, n_bytes, has_gradient in tables.work.uses:
        if source in position and target in position:
            last = max(last_use.get(key, (0, 0, 0))[0], position[target])
            last_use[key] = (last, position[source], n_bytes * (2 if has_gradient else 1))
    change = [0.0] * (len(free) + 2)
    for last, first, n_bytes in last_use.values():
        change[first + 1] += n_bytes
        change[last + 1] -= n_bytes
    total, cuts = 0.0, []
    for delta in change[: len(free) + 1]:
        total += delta
        cuts.append(total * ms_per_byte)
    return cuts


def _spreads(search: Search) -> Iterator[Places]:
    """The best assignments so far with the heads of every layer spread over a set of places by speed."""
    free = set(search.free)
    groups = [tuple(index for index in family if index in free) for family in families(search.tables.work)]
    groups = [family for family in groups if len(family) > 1]
    if not groups:
        return
    for start in search.starts():
        for chosen in _subsets(search.tables):
            places = list(start)
            for family in groups:
                for index, place in zip(family, shares_of(search.tables, family, chosen), strict=True):
                    places[index] = place
            yield tuple(places)


def _improve(search: Search, start: Places) -> None:
    """Take the first change that helps, again and again, until none does or the effort is used up."""
    now, score = start, search.score(start)
    is_better = True
    while is_better and search.effort_left > 0:
        is_better = False
        for places in _changes(search, now):
            if search.effort_left <= 0:
                return
            if places not in search.scores and search.score(places) < score:
                now, score, is_better = places, search.scores[places], True
                break


def _changes(search: Search, now: Places) -> Iterator[Places]:
    """Neighbours of an assignment: ends of parts moved, VNodes at a cut, whole parts, heads, two places
    swapped."""
    free, work = search.free, search.tables.work
    rest = [now[index] for index in free]
    for at in range(1, len(free)):
        left, right = rest[at - 1], rest[at]
        if left == right:
            continue
        for shift in _SHIFTS:
            if at + shift <= len(free):
                yield search.with_hints([*rest[:at], *[left] * shift, *rest[at + shift :]])
            if at - shift >= 0:
                yield search.with_hints([*rest[: at - shift], *[right] * shift, *rest[at:]])
    is_free = set(free)
    for use in work.uses:
        if now[use.source] != now[use.target]:
            if use.source in is_free:
                yield _moved(now, (use.source,), now[use.target])
            if use.target in is_free:
                yield _moved(now, (use.target,), now[use.source])
    yield from _wholes(search, now)


def _wholes(search: Search, now: Places) -> Iterator[Places]:
    """Changes of many VNodes at once."""
    free, n_places = search.free, search.tables.n_places
    used = sorted({now[index] for index in free})
    for source in used:
        members = tuple(index for index in free if now[index] == source)
        for target in range(n_places):
            if target == source:
                continue
            yield _moved(now, members, target)
            if target in used and source < target:
                others = tuple(index for index in free if now[index] == target)
                yield _moved(_moved(now, members, target), others, source)
    groups = [tuple(i for i in family if i not in search.hints) for family in families(search.tables.work)]
    for rank in range(max((len(family) for family in groups), default=0)):
        same_rank = tuple(family[rank] for family in groups if rank < len(family))
        for target in range(n_places):
            yield _moved(now, same_rank, target)


def _moved(now: Places, nodes: Iterable[int], place: int) -> Places:
    places = list(now)
    for index in nodes:
        places[index] = place
    return tuple(places)
