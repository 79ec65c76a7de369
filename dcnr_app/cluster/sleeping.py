"""Noticing that this process stood still: a sleeping laptop, a stopped process, a stalled virtual machine.

On wake-up the monotonic clock of Linux and macOS has not advanced, the wall clock has; a stopped process sees
the opposite of a step of the wall clock: both advance. Whichever gap is larger counts, so that a wall clock
which is set back is no gap, and one that is set forward costs a rejoin at most.
"""

from __future__ import annotations

from dcnr_app.clock import Clock

LEASE_MS = 5_000.0
"""A PNode that stood still this long has been replaced by now: it must not go on by itself."""


class SleepWatch:
    """Asked at regular times, it tells how much longer than meant the last pause was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic_ms = clock.monotonic_ms()
        self._wall_ms = clock.wall_ms()

    def gap_ms(self) -> float:
        """Time since the last call, by the clock that advanced most, what was meant to pass included."""
        monotonic_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        gap_ms = max(monotonic_ms - self._monotonic_ms, float(wall_ms - self._wall_ms))
        self._monotonic_ms, self._wall_ms = monotonic_ms, wall_ms
        return gap_ms
