"""Keeps a session running in processes of its own, one after the other, and writes down what happens. IO.

Knows no command line, and of faults only what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from dcnr_app.chaos.child import SessionChild, family, strike
from dcnr_app.chaos.lines import Noticed, Over, SessionOrder, Stepped
from dcnr_app.chaos.record import RunRecord
from dcnr_app.clock import Clock

HANG_S = 60.0
"""No step for so long is a hang."""
_POLL_S = 0.2
_MAX_FAILURES = 3


class Stage:
    """Keeps one session running, in process after process, and writes down what happens to it."""

    def __init__(
        self, order: SessionOrder, environment: Mapping[str, str], clock: Clock, told: Callable[[str], None]
    ) -> None:
        self._order = order
        self._environment = environment
        self._clock = clock
        self.told = told
        self._changed = asyncio.Condition()
        self._is_ending = False
        self.record = RunRecord()
        self.child: SessionChild | None = None

    def now_ms(self) -> float:
        """The clock's time, which the record is in."""
        return self._clock.monotonic_ms()

    async def keep(self) -> None:
        """Run the session to its end or a stop; a process that dies before is followed by the next."""
        order = self._order
        while len(self.record.failures) < _MAX_FAILURES:
            self.child = await SessionChild.start(order, self._environment)
            self.record.started(self.now_ms())
            try:
                async for line in self.child.lines():
                    self.record.take(line, self.now_ms())
                    if isinstance(line, Noticed):
                        self.told(f"  noticed: {line.reason}")
                    elif isinstance(line, Over) and line.error:
                        self.told(f"  failed: {line.error}")
                    if not isinstance(line, Stepped) or not line.is_replay:
                        await self._tell_all()
            finally:
                await asyncio.shield(self.child.close())
            if self.record.status in ("finished", "stopped"):
                break
            self.record.died(self.now_ms())
            self.record.status = ""
            if not self.record.session:
                break
            order = msgspec.structs.replace(order, session=self.record.session)
        self._is_ending = True
        await self._tell_all()

    async def watch(self) -> None:
        """Count hangs, and end the process that hangs."""
        while not self._is_ending:
            await asyncio.sleep(1.0)
            if self.record.idle_ms(self.now_ms()) > 1000.0 * HANG_S:
                self.told(f"  no step for {HANG_S:g} s: the session hangs")
                self.record.hung(self.now_ms())
                if self.child is not None:
                    strike(family(self.child.pid), "kill")

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until it holds, the session ends, or the time is over; returns whether it holds."""
        deadline_ms = self.now_ms() + 1000.0 * timeout_s
        while not holds() and not self._is_ending and self.now_ms() < deadline_ms:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_POLL_S, max(0.0, (deadline_ms - self.now_ms()) / 1000.0))):
                    async with self._changed:
                        await self._changed.wait()
        return holds()

    async def _tell_all(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def run_in_peace(
    order: SessionOrder, environment: Mapping[str, str], clock: Clock, told: Callable[[str], None]
) -> RunRecord:
    """The undisturbed run, to its end or `until_step`."""
    stage = Stage(order, environment, clock, told)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(stage.keep())
        watching = tasks.create_task(stage.watch())
        await keeping
        watching.cancel()
    return stage.record
