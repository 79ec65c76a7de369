"""Memory that a placement needs per PNode, and what is there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dcnr_app.cluster.devices import SHARED_MEMORY_KINDS, ClusterFacts
from dcnr_app.cluster.workload import Groups, Workload
from dcnr_app.nodes.graph.training import TrainingSettings

PROCESS_BYTES = 64 << 20
"""What a PNode's process grows by beside arrays: its pool's slack, messages, threads."""
HEADROOM = 0.10
"""Share of the free memory that a plan leaves alone: other programs need some, and estimates err."""
_SLOTS = {"adamw": 2, "sgd": 1}
_HOP_BUFFERS = 2
"""Copies of what crosses that wait at a PNode to be sent or to be used."""


class Pool(NamedTuple):
    """Places that draw on the same memory, and the bytes that a plan may use of it."""

    places: tuple[int, ...]
    budget_bytes: int

    def excess(self, needs: Sequence[int]) -> int:
        """Bytes by which `needs` of its places exceed the budget; a place that needs 0 is not used."""
        return max(0, sum(needs[place] for place in self.places) - self.budget_bytes)


def pools_of(facts: ClusterFacts) -> tuple[Pool, ...]:
    """One pool per device with memory of its own, one per machine for those that share its memory. Devices
    whose free memory is not known have none."""
    members: dict[tuple[str, ...], list[int]] = {}
    for place, device in enumerate(facts.devices):
        if device.free_memory_bytes is None:
            continue
        is_shared = bool(device.machine) and device.kind in SHARED_MEMORY_KINDS
        key = ("machine", device.machine) if is_shared else ("device", device.pnode)
        members.setdefault(key, []).append(place)
    return tuple(
        Pool(
            tuple(places),
            int((1.0 - HEADROOM) * min(facts.devices[place].free_memory_bytes or 0 for place in places)),
        )
        for places in members.values()
    )


def memory_needs(
    work: Workload, settings: TrainingSettings, groups: Groups, peaks: Sequence[int], n_places: int
) -> tuple[int, ...]:
    """Bytes by place, 0 where nothing runs. `peaks` is of how many microbatches each group keeps arrays.

    A value and a gradient sum per use, on the owner's place the optimizer's slots and the sums that arrive;
    what forward makes of every microbatch under way; what one call holds; what waits at the links.
    """
    of_node, place_of = groups.of_node, groups.places
    needs = [0] * n_places
    for place in set(place_of):
        needs[place] = PROCESS_BYTES
    slots = _SLOTS[settings.optimizer.type]
    for parameter in work.parameters:
        owner = place_of[of_node[parameter.owner]]
        at = [place_of[of_node[site]] for site in parameter.sites]
        for place in set(at):
            needs[place] += parameter.n_bytes * (1 + at.count(place))
        needs[owner] += parameter.n_bytes * (slots + len(at) - at.count(owner))
    largest = [0] * n_places
    for index, members in enumerate(groups.members):
        place = place_of[index]
        made = sum(work.nodes[node].made_bytes for node in members)
        needs[place] += made * max(1, peaks[index])
        needs[place] += sum(work.outside_bytes[node] for node in members) * max(1, peaks[index])
        largest[place] = max(largest[place], *(work.nodes[node].held_bytes for node in members))
    entering: set[tuple[int, int]] = set()
    for source, target, key, n_bytes, has_gradient in work.uses:
        here, there = of_node[source], of_node[target]
        if place_of[here] == place_of[there]:
            continue
        if (key, there) not in entering:
            entering.add((key, there))
            needs[place_of[there]] += n_bytes * (_HOP_BUFFERS + max(1, peaks[there]))
            needs[place_of[here]] += n_bytes * _HOP_BUFFERS
        if has_gradient:
            needs[place_of[here]] += n_bytes * _HOP_BUFFERS
    # Backward holds the gradients of what it goes through, about as much as one call of forward.
    return tuple(need + 2 * most for need, most in zip(needs, largest, strict=True))
