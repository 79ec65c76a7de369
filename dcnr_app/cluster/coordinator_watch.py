"""The coordinator core's watchdog: a session that makes no progress is told apart from a slow one. Pure."""

from __future__ import annotations

from dcnr_app.cluster import coordinator_bench as bench
from dcnr_app.cluster import coordinator_recovery as recovery
from dcnr_app.cluster.coordinator_state import CoordinatorState
from dcnr_app.cluster.effects import CoordinatorEffect
from dcnr_app.cluster.messages import Status
from dcnr_app.ids import PNodeId

_WATCHED = ("configuring", "loading", "training", "settling", "validating", "handing-over")
_TIMES_LONGEST = 20.0
"""A compute effect this many times longer than the longest so far is taken for stuck."""
_MAX_STALLS = 3


def note(state: CoordinatorState, sender: PNodeId, status: Status) -> None:
    """A PNode says how far it is: progress is another place than before, or more bytes that came to it."""
    before = state.statuses.get(sender)
    state.statuses[sender] = status
    has_moved = before is None or _place(before) != _place(status)
    if before is None or has_moved or before.received_bytes != status.received_bytes:
        state.progress_ms = state.now_ms
    if before is not None and has_moved:
        state.longest_ms = max(state.longest_ms, before.running_ms)


def tick(state: CoordinatorState, out: list[CoordinatorEffect]) -> None:
    """Time has passed: go on with a recovery that waited, or end a generation that stands still."""
    if state.job.recovery is None or state.is_over:
        return
    if state.stage == "recovering":
        recovery.advance(state, out)
        return
    if not state.handover and (back := bench.back_from_bench(state)):
        state.handover = f"PNode {back[0]} is tried again"
    limit_ms = max(state.job.recovery.stall_ms, _TIMES_LONGEST * state.longest_ms)
    # The last state may still be gathered when training is over.
    is_gathering = state.stage == "trained" and state.capture is not None and not state.capture_effect
    is_watched = state.stage in _WATCHED or is_gathering
    if not is_watched or state.now_ms - state.progress_ms <= limit_ms:
        return
    why = f"no progress for {(state.now_ms - state.progress_ms) / 1000.0:.0f} s"
    stuck = [(s.running_ms, p) for p, s in state.statuses.items() if s.running_ms > limit_ms / 2]
    if stuck:
        running_ms, pnode = max(stuck)
        where = state.statuses[pnode].where
        recovery.lose(state, out, pnode, f"{why}: {where} has been running for {running_ms / 1000.0:.0f} s")
        return
    state.stalls += 1
    if state.stalls >= _MAX_STALLS:
        recovery.fail(state, out, f"{why}, after {_MAX_STALLS} attempts", f"step {state.step}", "failed")
        return
    recovery.begin(state, out, why, PNodeId(""))


def _place(status: Status) -> tuple[int, int, str, str]:
    return status.step, status.tasks_done, status.stage, status.where
