"""Which machines were heard on the local network, and which of them count as there. Nothing heard is proof.
Pure: the caller says what time it is and who is connected.

A machine that restarts replaces itself. Two machines with one id (a copied key) are told from that by the
older run's being heard again after the newer one began; then both are shown, flagged, and neither is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from dcnr_app.cluster.announcement import Announcement

State = Literal["live", "suspect", "offline"]

SUSPECT_MS: Final = 5_000.0
OFFLINE_MS: Final = 14_000.0
HIDDEN_MS: Final = 600_000.0
"""How long a machine is silent until it is suspect, until it leaves the counts, until it is forgotten. The
second is a second less than the 15 s that are promised, for who looks only now and then."""
OVERLAP_MS: Final = 2_000.0
"""So long after a newer run of the same machine began, a late packet of the older one proves nothing."""
ASK_MS: Final = 3_500.0
ASK_AGAIN_MS: Final = 1_000.0
"""When a silent machine is asked whether it is there: well before it becomes suspect, then every second."""
FAILED_MS: Final = 30_000.0
"""An address that could not be dialled is out until the machine names it again, and so long the last."""
MAX_SERVICES: Final = 256
MAX_RUNS: Final = 4


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that was heard, as of one moment. `addresses` are where to dial it, best first.
    `is_duplicate`: another machine with the same id is there too."""

    announcement: Announcement
    addresses: tuple[str, ...]
    state: State
    silent_ms: float
    is_duplicate: bool = False

    @property
    def machine(self) -> str:
        """Its id."""
        return self.announcement.machine

    @property
    def counts(self) -> bool:
        """Whether it is taken to be there."""
        return self.state != "offline"


class _Entry(msgspec.Struct, kw_only=True):
    """One run of one machine; times of the caller's monotonic clock."""

    announcement: Announcement
    addresses: tuple[str, ...]
    first_ms: float
    heard_ms: float
    asked_ms: float = float("-inf")
    is_gone: bool = False
    failed_ms: dict[str, float] = {}


class Neighbours:
    """What was heard of others since the start. `is_connected` says of a machine id whether an authenticated
    stream with it is open: no hint outweighs that."""

    def __init__(self, is_connected: Callable[[str], bool]) -> None:
        self._is_connected = is_connected
        self._own_machine = self._own_instance = ""
        self._started_ms = 0.0
        self._entries: dict[str, _Entry] = {}
        self.n_refused = 0

    def begin(self, own: Announcement, now_ms: float) -> None:
        """This machine begins to announce itself as `own`."""
        self._own_machine, self._own_instance = own.machine, own.instance
        self._started_ms = now_ms

    def heard(self, announcement: Announcement, addresses: Iterable[str], now_ms: float) -> bool:
        """An announcement came in. Returns False where there is no room for one more machine."""
        if announcement.instance == self._own_instance:
            return True
        found = self._entries.get(announcement.instance)
        if found is None:
            if not self._make_room(announcement.machine, now_ms):
                self.n_refused += 1
                return False
            self._entries[announcement.instance] = _Entry(
                announcement=announcement, addresses=tuple(addresses), first_ms=now_ms, heard_ms=now_ms
            )
            return True
        found.announcement, found.addresses = announcement, tuple(addresses)
        found.heard_ms, found.is_gone = now_ms, False
        return True

    def confirmed(self, machine: str, now_ms: float) -> None:
        """The caller heard from this machine over an authenticated stream."""
        found = self._newest(machine)
        if found is not None:
            found.heard_ms, found.is_gone = now_ms, False

    def goodbye(self, instance: str) -> None:
        """Somebody said that this run is ending. Anybody can: a connected machine stays, and the others are
        asked once more."""
        found = self._entries.get(instance)
        if found is not None and not self._is_connected(found.announcement.machine):
            found.is_gone, found.asked_ms = True, float("-inf")

    def failed_dial(self, machine: str, address: str, now_ms: float) -> None:
        """This address did not answer: no candidate for a while, and the machine is asked for its present
        ones."""
        for entry in self._runs(machine):
            if address in entry.addresses:
                entry.failed_ms = {**entry.failed_ms, address: now_ms}
                entry.heard_ms = min(entry.heard_ms, now_ms - ASK_MS)
                entry.asked_ms = float("-inf")

    def expire(self, now_ms: float) -> None:
        """Forget what nobody need see any more."""
        shown = {entry.announcement.instance for entry, _ in self._shown(now_ms)}
        for instance, entry in list(self._entries.items()):
            silent_ms = now_ms - entry.heard_ms
            is_over = silent_ms >= HIDDEN_MS or (instance not in shown and silent_ms >= OFFLINE_MS)
            if is_over and not self._is_connected(entry.announcement.machine):
                del self._entries[instance]

    def to_ask(self, now_ms: float, jitter_ms: float) -> tuple[str, ...]:
        """Instances that should be asked now whether they are there, replaced runs too (they may turn out to
        be second machines); they then count as asked. `jitter_ms` keeps machines from asking at once: the
        answer to the first is heard by all."""
        due = [
            entry
            for entry in self._entries.values()
            if entry.asked_ms + ASK_AGAIN_MS <= now_ms
            and (
                entry.asked_ms == float("-inf")
                if entry.is_gone
                else ASK_MS + jitter_ms <= now_ms - entry.heard_ms < OFFLINE_MS
            )
        ]
        for entry in due:
            entry.asked_ms = now_ms
        return tuple(entry.announcement.instance for entry in due)

    def unanswered(self, now_ms: float) -> tuple[Neighbour, ...]:
        """Those that were asked and did not answer in time; worth asking another way."""
        return tuple(
            n for n in self.snapshot(now_ms) if n.state == "suspect" and n.silent_ms >= ASK_MS + ASK_AGAIN_MS
        )

    def snapshot(self, now_ms: float) -> tuple[Neighbour, ...]:
        """What there is to show, by name. This machine itself only where another has its id."""
        found = [self._neighbour(entry, now_ms, twice=twice) for entry, twice in self._shown(now_ms)]
        return tuple(sorted(found, key=lambda n: (n.announcement.name, n.announcement.instance)))

    def n_counted(self, now_ms: float) -> int:
        """How many other machines are taken to be there."""
        return len({n.machine for n in self.snapshot(now_ms) if n.counts})

    def _neighbour(self, entry: _Entry, now_ms: float, *, twice: bool) -> Neighbour:
        def failed_ms(address: str) -> float:
            return entry.failed_ms.get(address, float("-inf"))

        candidates = [a for a in entry.addresses if entry.heard_ms > failed_ms(a)]
        return Neighbour(
            announcement=entry.announcement,
            addresses=tuple(sorted(candidates, key=lambda a: now_ms - failed_ms(a) < FAILED_MS)),
            state=self._state(entry, now_ms),
            silent_ms=now_ms - entry.heard_ms,
            is_duplicate=twice,
        )

    def _state(self, entry: _Entry, now_ms: float) -> State:
        if self._is_connected(entry.announcement.machine):
            return "live"
        silent_ms = now_ms - entry.heard_ms
        if entry.is_gone or silent_ms >= OFFLINE_MS:
            return "offline"
        return "suspect" if silent_ms >= SUSPECT_MS else "live"

    def _shown(self, now_ms: float) -> list[tuple[_Entry, bool]]:
        """Per machine its newest run, with the older ones that are there beside it; and whether there are
        such."""
        runs: dict[str, list[_Entry]] = {}
        for entry in self._entries.values():
            runs.setdefault(entry.announcement.machine, []).append(entry)
        shown: list[tuple[_Entry, bool]] = []
        for machine, entries in runs.items():
            newest = max(entries, key=lambda entry: entry.first_ms)
            is_own = machine == self._own_machine
            newest_ms = self._started_ms if is_own else newest.first_ms
            beside = [
                entry
                for entry in entries
                if (is_own or entry is not newest)
                and entry.heard_ms >= newest_ms + OVERLAP_MS
                and self._is_there(entry, now_ms)
            ]
            if not is_own:
                shown.append((newest, bool(beside) and self._is_there(newest, now_ms)))
            shown.extend((entry, is_own or self._is_there(newest, now_ms)) for entry in beside)
        return shown

    def _is_there(self, entry: _Entry, now_ms: float) -> bool:
        return not entry.is_gone and now_ms - entry.heard_ms < OFFLINE_MS

    def _runs(self, machine: str) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.announcement.machine == machine]

    def _newest(self, machine: str) -> _Entry | None:
        return max(self._runs(machine), key=lambda entry: entry.first_ms, default=None)

    def _make_room(self, machine: str, now_ms: float) -> bool:
        """Room for one more run: the stalest of too many runs of one machine goes, else one that is not
        there. What is there is never dropped for a newcomer."""
        runs = self._runs(machine)
        if len(runs) >= MAX_RUNS:
            del self._entries[min(runs, key=lambda entry: entry.heard_ms).announcement.instance]
        if len(self._entries) < MAX_SERVICES:
            return True
        gone = [
            entry
            for entry in self._entries.values()
            if self._state(entry, now_ms) == "offline" and not self._is_connected(entry.announcement.machine)
        ]
        if not gone:
            return False
        del self._entries[min(gone, key=lambda entry: entry.heard_ms).announcement.instance]
        return True
