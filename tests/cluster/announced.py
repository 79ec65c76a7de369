"""Announcements for tests, and machines that announce themselves on loopback. Holds no test."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from dcnr_app.clock import Clock, SystemClock
from dcnr_app.cluster.announcement import Announcement
from dcnr_app.cluster.discovery import Discovery, DiscoverySettings
from dcnr_app.cluster.neighbours import Neighbour

PATIENCE_S = 10.0


def announcement(name: str, **changes: Any) -> Announcement:
    """A machine whose key is made from its name."""
    fingerprint = hashlib.sha256(changes.pop("key", name).encode()).hexdigest()
    fields: dict[str, Any] = {
        "machine": fingerprint[:16],
        "name": name,
        "fingerprint": fingerprint,
        "front_door_port": 4100,
        "protocol_min": 1,
        "protocol_max": 1,
        "app_version": "0.1.0",
    }
    return Announcement(**{**fields, **changes})


def own_world() -> str:
    """A service type that no other test uses."""
    return f"_dcnr-{secrets.token_hex(4)}._tcp.local."


class ManualClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def monotonic_ms(self) -> float:
        """The time that was set."""
        return self.now_ms

    def wall_ms(self) -> int:
        """The same."""
        return int(self.now_ms)


class Announced:
    """One machine on loopback, with a way to wait for what it sees."""

    def __init__(self, discovery: Discovery, changed: asyncio.Event) -> None:
        self.discovery = discovery
        self._changed = changed

    def state_of(self, name: str) -> str:
        """The state of the machine of that name, empty if it is not known."""
        return next((n.state for n in self.discovery.snapshot() if n.announcement.name == name), "")

    async def told(self) -> None:
        """Wait until it says that something has changed."""
        async with asyncio.timeout(PATIENCE_S):
            await self._changed.wait()
        self._changed.clear()

    async def until(self, holds: Callable[[tuple[Neighbour, ...]], bool]) -> tuple[Neighbour, ...]:
        """Wait until the snapshot is as wanted; it is looked at after each change, and for what is no change,
        such as a silence that ended, now and then."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.discovery.snapshot()):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout=0.05)
                self._changed.clear()
        return self.discovery.snapshot()

    async def sees(self, *names: str) -> tuple[Neighbour, ...]:
        """Wait until just these machines are live."""
        wanted = sorted(names)
        return await self.until(
            lambda seen: sorted(n.announcement.name for n in seen if n.state == "live") == wanted
        )


@asynccontextmanager
async def announced(
    world: str,
    own: Announcement,
    *,
    clock: Clock | None = None,
    is_connected: Callable[[str], bool] = lambda machine: False,
) -> AsyncIterator[Announced]:
    """A machine that announces itself until the block ends, then says goodbye."""
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        discovery = Discovery(
            DiscoverySettings(is_loopback=True, service_type=world),
            tasks,
            clock or SystemClock(),
            changed.set,
            is_connected,
        )
        await discovery.start(own)
        try:
            yield Announced(discovery, changed)
        finally:
            await discovery.close()
