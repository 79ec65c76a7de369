"""VNodes that stand side by side, as a layer's heads, and their spread over places. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr_app.cluster.costs import CostTables
from dcnr_app.cluster.workload import Workload


def families(work: Workload) -> list[tuple[int, ...]]:
    """VNodes of one type side by side: the same VNodes before and after, as the heads of a layer."""
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for use in work.uses:
        before.setdefault(use.target, set()).add(use.source)
        after.setdefault(use.source, set()).add(use.target)
    found: dict[tuple[str, frozenset[int], frozenset[int]], list[int]] = {}
    for index, node in enumerate(work.nodes):
        sides = (frozenset(before.get(index, ())), frozenset(after.get(index, ())))
        if sides[0] and sides[1]:
            found.setdefault((node.type, *sides), []).append(index)
    return [tuple(members) for members in found.values() if len(members) > 1]


def shares_of(tables: CostTables, family: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """A place for each member, in runs proportional to speed; whatever the number of members."""
    speeds = [1.0 / sum(tables.forward_ms[place][index] for index in family) for place in chosen]
    counts = [0] * len(chosen)
    for _ in family:  # each goes where it is done first
        first = min(range(len(chosen)), key=lambda k: ((counts[k] + 1) / speeds[k], k))
        counts[first] += 1
    return [place for place, count in zip(chosen, counts, strict=True) for _ in range(count)]
