"""What happened in a run under chaos: faults, when they were noticed and got over, commits. Pure."""

from __future__ import annotations

import msgspec

from dcnr_app.chaos.faults import FORGIVEN, Kind
from dcnr_app.chaos.lines import Began, Line, Noticed, Over, Planned, PNodeReady, Stepped

SETTLED_MS = 4_000.0
"""So long after a pause it can still be mistaken for a death."""


class Fault(msgspec.Struct, kw_only=True):
    """One process that was hit. Times are the monotonic clock's; None: it did not happen."""

    kind: Kind
    pnode: str
    pid: int
    step: int
    injected_ms: float
    resumed_ms: float | None = None
    noticed_ms: float | None = None
    recovered_ms: float | None = None
    renewed_ms: float | None = None
    """The first step that was new, after all replayed ones."""


class RunRecord:
    """One run, over all its processes. Every method is told what time it is."""

    def __init__(self) -> None:
        self.session = ""
        self.checkpoint_every = 0
        self.status = ""
        self.step = 0
        self.n_commits = 0
        self.faults: list[Fault] = []
        self.recoveries: list[str] = []
        self.failures: list[str] = []
        self.hangs = 0
        self.first_ms = 0.0
        self.last_ms = 0.0
        self.pids: dict[str, int] = {}
        self._plan: tuple[str, ...] = ()
        self._tokens = 0
        self._first_tokens = 0
        self._has_stepped = False
        self._moved_ms = 0.0

    def take(self, line: Line, now_ms: float) -> None:
        """What the session's process said."""
        match line:
            case Began(session, checkpoint_every):
                self.session, self.checkpoint_every = session, checkpoint_every
            case Planned(pnodes, _):
                self._plan, self.pids, self._has_stepped = pnodes, {}, False
            case PNodeReady(pnode, pid):
                self.pids[pnode] = pid
            case Stepped():
                self._stepped(line, now_ms)
            case Noticed(reason):
                self.recoveries.append(reason)
                self._noticed(now_ms)
            case Over(status, error):
                self.status = status
                if error:
                    self.failures.append(error)

    def started(self, now_ms: float) -> None:
        """A process was started for the session."""
        self._moved_ms = now_ms

    def died(self, now_ms: float) -> None:
        """The session's process ended without having said that the run is over."""
        self.pids = {}
        self._noticed(now_ms)

    def hung(self, now_ms: float) -> None:
        """There was no step for too long."""
        self.hangs += 1
        self._moved_ms = now_ms

    def injected(self, fault: Fault) -> None:
        """A process was hit."""
        self.faults.append(fault)

    def resumed(self, now_ms: float) -> None:
        """The processes that stood still go on."""
        for fault in self._open(now_ms):
            if fault.kind in FORGIVEN and fault.resumed_ms is None:
                fault.resumed_ms = now_ms

    # ---- questions

    def is_calm(self, now_ms: float) -> bool:
        """Whether all PNodes of the plan work and no fault is still to be got over."""
        is_whole = bool(self._plan) and set(self._plan) == set(self.pids)
        return is_whole and self._has_stepped and not self._open(now_ms)

    def idle_ms(self, now_ms: float) -> float:
        """How long there was no step, committed or replayed."""
        return now_ms - self._moved_ms if self._moved_ms else 0.0

    def tokens_per_s(self, end_ms: float = 0.0) -> float:
        """Committed tokens over the time from the first commit to the last, or to `end_ms`."""
        elapsed_ms = (end_ms or self.last_ms) - self.first_ms
        return 1000.0 * (self._tokens - self._first_tokens) / elapsed_ms if elapsed_ms > 0 else 0.0

    def stalled_ms(self) -> float:
        """Time from faults to the first new steps after them: what all of them cost at most."""
        until = {fault.injected_ms: fault.renewed_ms or self.last_ms for fault in self.faults}
        return sum(renewed_ms - injected_ms for injected_ms, renewed_ms in until.items())

    def _open(self, now_ms: float) -> list[Fault]:
        return [fault for fault in self.faults if _is_open(fault, now_ms)]

    # ---- what lines mean

    def _stepped(self, line: Stepped, now_ms: float) -> None:
        self._has_stepped, self._moved_ms = True, now_ms
        for fault in self._open(now_ms):
            is_waited_for = fault.resumed_ms if fault.kind in FORGIVEN else fault.noticed_ms
            if is_waited_for is not None and fault.recovered_ms is None:
                fault.recovered_ms = now_ms
        if line.is_replay:
            return
        for fault in self.faults:
            if fault.recovered_ms is not None and fault.renewed_ms is None:
                fault.renewed_ms = now_ms
        if not self.n_commits:
            self.first_ms, self._first_tokens = now_ms, line.tokens
        self.step, self.last_ms = line.step, now_ms
        self.n_commits += 1
        self._tokens += line.tokens

    def _noticed(self, now_ms: float) -> None:
        for fault in self._open(now_ms):
            if fault.noticed_ms is None:
                fault.noticed_ms, fault.recovered_ms, fault.renewed_ms = now_ms, None, None


def _is_open(fault: Fault, now_ms: float) -> bool:
    if fault.recovered_ms is None:
        return True
    is_settled = fault.resumed_ms is None or now_ms - fault.resumed_ms >= SETTLED_MS
    return fault.kind in FORGIVEN and fault.noticed_ms is None and not is_settled
