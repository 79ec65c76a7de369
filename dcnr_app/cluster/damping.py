"""Acts no more often than is worth it: lets what flaps settle, and repeats ever more rarely. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

SETTLE_MS: Final = 1_000.0
MEMORY_MS: Final = 60_000.0
FREE_CHANGES: Final = 3
MAX_SETTLE_MS: Final = 20_000.0

FIRST_REPEAT_MS: Final = 1_000.0
LAST_REPEAT_MS: Final = 60_000.0


class Repeater:
    """When something is to be said again: at once, after FIRST_REPEAT_MS, and then after twice the time of
    before, up to LAST_REPEAT_MS."""

    def __init__(self) -> None:
        self._next_ms = float("-inf")
        self._after_ms = FIRST_REPEAT_MS

    def start_over(self) -> None:
        """Something has changed: it is worth saying at once, and again soon."""
        self._next_ms, self._after_ms = float("-inf"), FIRST_REPEAT_MS

    def is_due(self, now_ms: float) -> bool:
        """Whether it is to be said now; it then counts as said."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._after_ms
        self._after_ms = min(self._after_ms * 2.0, LAST_REPEAT_MS)
        return True


class Damper(Generic[Value]):
    """The value that is in force, and a candidate that must stay the same for a while to replace it.

    The while is SETTLE_MS; beyond FREE_CHANGES within a minute it doubles with each further change, up to
    MAX_SETTLE_MS, so that a cable that comes and goes causes no storm.
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self._candidate = value
        self._since_ms = 0.0
        self._changes_ms: deque[float] = deque()

    def observe(self, value: Value, now_ms: float) -> bool:
        """The value as it is now; returns True when it has just come into force as a new one."""
        if value != self._candidate:
            self._candidate, self._since_ms = value, now_ms
        if value == self.value or now_ms - self._since_ms < self._settle_ms(now_ms):
            return False
        self.value = value
        self._changes_ms.append(now_ms)
        return True

    def _settle_ms(self, now_ms: float) -> float:
        while self._changes_ms and now_ms - self._changes_ms[0] > MEMORY_MS:
            self._changes_ms.popleft()
        excess = max(0, len(self._changes_ms) + 1 - FREE_CHANGES)
        return min(SETTLE_MS * 2.0**excess, MAX_SETTLE_MS)
