"""Time as a value that is passed in: monotonic for deadlines and durations, wall for display."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs time is given."""

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back; for durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for display only."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary start."""
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
