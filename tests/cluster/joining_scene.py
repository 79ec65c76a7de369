"""An orchestrator with its front door on loopback, and machines that join it: real parts, made short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import msgspec
import pytest

from dcnr_app.cluster.builds import Build, this_build
from dcnr_app.cluster.cluster_files import ClusterFiles
from dcnr_app.cluster.front_door import FrontDoor, FrontDoorSettings
from dcnr_app.cluster.joining import Joiner, Target
from dcnr_app.cluster.joining_talk import DigitsTalk, JoinProgress
from dcnr_app.cluster.machine import Machine, load_machine
from dcnr_app.cluster.membership import Membership
from dcnr_app.cluster.pairing_messages import Info
from dcnr_app.cluster.pending_join import PendingJoin
from dcnr_app.cluster.rate_limit import RateSettings
from dcnr_app.cluster.registrar import Registrar, create_cluster
from dcnr_app.settings import Home

HOST = "127.0.0.1"
needs_loopback_range = pytest.mark.skipif(
    sys.platform == "darwin", reason="macOS has only 127.0.0.1 of the loopback addresses"
)
QUICK = RateSettings(per_s=10_000.0, burst=10_000.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test of this scene; it fails if it takes too long."""

    async def bounded() -> None:
        async with asyncio.timeout(40):
            await test()

    asyncio.run(bounded())


class TestClock:
    """A clock that a test turns."""

    __test__ = False

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


def machine_at(folder: Path, name: str) -> tuple[Home, Machine]:
    """A machine of its own; two of them differ as two real ones do."""
    home = Home(folder / name)
    return home, load_machine(home, binding=lambda: f"id {name}", name=name)


class Orchestrator:
    """A machine with a cluster and an open front door. The front door's handlers."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: FrontDoorSettings | None = None,
        build: Build | None = None,
        name: str = "orchestrator",
    ) -> None:
        self.home, self.machine = machine_at(folder, name)
        self.clock = TestClock()
        self.build = build or this_build()
        self.own = create_cluster(self.home, self.machine, "home", n_pnodes=1, now_ms=self.clock.wall_ms())
        self.registrar = Registrar(ClusterFiles(self.home), self.machine, self.build, self.clock)
        self.door = FrontDoor(settings or FrontDoorSettings(rate=QUICK), self, self.clock)
        self.door.open_cluster(self.registrar)
        self.port = 0
        self.memberships: list[Membership] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Orchestrator:
        self.port = await self.door.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.door.close()

    @property
    def target(self) -> Target:
        return Target((HOST,), self.port)

    def info(self) -> Info:
        return Info(
            machine=self.machine.id,
            name=self.machine.name,
            role="orchestrator",
            cluster=self.own.cluster,
            cluster_name=self.own.name,
            key_fingerprint=self.machine.fingerprint,
            build=self.build,
        )

    def pending_changed(self) -> None:
        self._changed.set()

    def admitted(self, membership: Membership) -> None:
        self.memberships.append(membership)
        self._changed.set()

    async def until_pending(self, holds: Callable[[PendingJoin], bool]) -> PendingJoin:
        """Wait for a machine that waits to join and is as wanted."""
        async with asyncio.timeout(20):
            while True:
                found = [entry for entry in self.door.pending() if holds(entry)]
                if found:
                    return found[0]
                self._changed.clear()
                await self._changed.wait()


class Person(DigitsTalk):
    """A user at a joining machine: keeps what he is shown and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__(self._see)
        self.seen: list[JoinProgress] = []
        self._has_seen = asyncio.Event()

    def _see(self, progress: JoinProgress) -> None:
        self.seen.append(progress)
        self._has_seen.set()

    async def until(self, step: str) -> JoinProgress:
        async with asyncio.timeout(20):
            while True:
                found = [entry for entry in self.seen if entry.step == step]
                if found:
                    return found[0]
                self._has_seen.clear()
                await self._has_seen.wait()


def joiner_at(folder: Path, name: str = "worker", *, n_pnodes: int = 2, build: Build | None = None) -> Joiner:
    """A machine that is ready to join."""
    _, machine = machine_at(folder, name)
    return Joiner(machine=machine, build=build or this_build(), n_pnodes=n_pnodes, device="8 cores")


def changed(build: Build, **fields: object) -> Build:
    """The same build but for these fields."""
    return msgspec.structs.replace(build, **fields)
