"""The coordinator core's bench: PNodes that are left out for a while, and tried again later. Pure.

Of two that cannot reach each other but do reach the orchestrator, neither is at fault: one sits on the bench
and its process stays. One that is lost again and again is left out when it is back.
"""

from __future__ import annotations

from dcnr_app.cluster.coordinator_state import Bench, CoordinatorState, Loss
from dcnr_app.ids import PNodeId

MAX_LINK_FAILURES = 2
"""Times that one PNode may report the same other one as unreachable, between two committed steps."""
FLAP_MS = 45_000.0
"""A PNode that is lost again sooner than this is left out: each time costs everybody two new plans."""
MAX_DEATHS = 3
"""Losses between two committed steps after which what the lost PNodes had in common is blamed, unless there
is a PNode that has not tried it yet; and the number of PNodes that try it."""
BENCH_MS = 60_000.0
"""How long a PNode is left out at first; twice as long each time that it had to be left out again soon."""
MAX_BENCH_MS = 30 * 60_000.0


def note_failure(state: CoordinatorState, sender: PNodeId, peer: PNodeId) -> PNodeId:
    """Count a report. Returns the PNode that is left out from now on, or an empty id if the way may have
    been broken by chance. `peer` may be the sender itself: it stood still."""
    pair = (sender, peer)
    state.link_failures[pair] = state.link_failures.get(pair, 0) + 1
    if state.link_failures[pair] <= MAX_LINK_FAILURES and not (
        was_benched(state, sender) or was_benched(state, peer)
    ):
        return PNodeId("")
    left_out = max(pair, key=lambda pnode: _blame(state, pnode))
    _bench(state, left_out)
    state.link_failures = {
        known: count for known, count in state.link_failures.items() if left_out not in known
    }
    return left_out


def note_death(state: CoordinatorState, pnode: PNodeId) -> tuple[str, ...]:
    """Count a loss, once per plan. Returns the VNodes to blame, if no PNode is left to try them on."""
    last = state.losses.get(pnode)
    state.losses[pnode] = Loss(state.job.plan.generation, state.now_ms)
    if last is not None and last.generation == state.job.plan.generation:
        return ()
    mine = frozenset(node for node, place in state.job.plan.assignment.items() if place == pnode)
    state.deaths.append((pnode, mine))
    is_flapping = last is not None and state.now_ms - last.at_ms < FLAP_MS
    if is_flapping or was_benched(state, pnode):
        _bench(state, pnode)
    recent = state.deaths[-MAX_DEATHS:]
    shared = frozenset.intersection(*(nodes for _, nodes in recent))
    died = {dead for dead, nodes in state.deaths if nodes & shared}
    is_last = died >= set(state.members) or len(died) >= MAX_DEATHS
    return tuple(sorted(shared)) if len(recent) == MAX_DEATHS and is_last else ()


def _bench(state: CoordinatorState, pnode: PNodeId) -> None:
    length_ms = BENCH_MS
    if was_benched(state, pnode):
        length_ms = min(2.0 * state.benched[pnode].length_ms, MAX_BENCH_MS)
    state.benched[pnode] = Bench(state.now_ms + length_ms, length_ms)


def is_benched(state: CoordinatorState, pnode: PNodeId) -> bool:
    """Whether a PNode is left out at present."""
    bench = state.benched.get(pnode)
    return bench is not None and state.now_ms < bench.until_ms


def back_from_bench(state: CoordinatorState) -> tuple[PNodeId, ...]:
    """PNodes that may be tried again and have no part in the plan."""
    return tuple(
        pnode
        for pnode, bench in state.benched.items()
        if state.now_ms >= bench.until_ms and pnode in state.members and pnode not in state.job.plan.pnodes
    )


def was_benched(state: CoordinatorState, pnode: PNodeId) -> bool:
    """Whether it is no longer ago than it lasted that a PNode was left out."""
    bench = state.benched.get(pnode)
    return bench is not None and state.now_ms - bench.until_ms <= bench.length_ms


def _blame(state: CoordinatorState, pnode: PNodeId) -> tuple[bool, int, int]:
    """Who is left out: who was so before, else who has trouble with most others, else the later one."""
    partners = {other for pair in state.link_failures if pnode in pair for other in pair}
    return was_benched(state, pnode), len(partners), state.order.index(pnode)
