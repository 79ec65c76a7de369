"""An agent keeps its machine's PNode processes up, one after the other, and tells how they are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.agent_messages import RESTING, PNodeReport
from dcnr_app.cluster.agent_pnodes import AgentPNodes, PNodeSettings
from dcnr_app.cluster.registrar import create_cluster
from dcnr_app.errors import InvalidError
from dcnr_app.settings import child_environment
from tests.cluster.joining_scene import HOST, machine_at, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

_POLL_S = 0.02


class Kept:
    """The PNodes, and how often their agent was told of a change."""

    def __init__(self, folder: Path, settings: PNodeSettings, tasks: asyncio.TaskGroup) -> None:
        self.n_changes = 0
        home, machine = machine_at(folder, "desk")
        own = create_cluster(home, machine, "home", n_pnodes=1, now_ms=1)
        self.pnodes = AgentPNodes(own, settings, SystemClock(), tasks, self._changed)
        self.id = own.pnodes[0].pnode

    def _changed(self) -> None:
        self.n_changes += 1

    def report(self) -> PNodeReport:
        (found,) = self.pnodes.reports((HOST,))
        return found

    async def until(self, holds: Callable[[PNodeReport], bool]) -> PNodeReport:
        async with asyncio.timeout(30):
            while not holds(self.report()):
                await asyncio.sleep(_POLL_S)
        return self.report()


@asynccontextmanager
async def kept(folder: Path, settings: PNodeSettings) -> AsyncIterator[Kept]:
    async with asyncio.TaskGroup() as tasks:
        found = Kept(folder, settings, tasks)
        try:
            yield found
        finally:
            await found.pnodes.close()


def test_a_pnode_whose_process_ends_has_another_one_and_the_new_address_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        settings = PNodeSettings(environment=child_environment(), threads=1, host=HOST)
        async with kept(tmp_path, settings) as here:
            first = await here.until(lambda report: report.state == "idle")
            assert first.address.startswith(f"{HOST}:")
            assert first.memory_bytes > 0
            n_changes = here.n_changes
            psutil.Process(first.pid).kill()
            second = await here.until(lambda report: report.pid not in (0, first.pid))
            assert second.address != first.address
            assert here.n_changes >= n_changes + 2, "its end and its new address"
            here.pnodes.restart(here.id, first.pid)
            assert psutil.Process(second.pid).is_running(), "only the process that is named is ended"
            here.pnodes.restart(here.id, second.pid)
            third = await here.until(lambda report: report.pid not in (0, second.pid))
        assert not psutil.pid_exists(third.pid)

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process limit itself so")
def test_a_pnode_keeps_to_what_its_owner_lends(tmp_path: Path) -> None:
    async def test() -> None:
        settings = PNodeSettings(
            environment=child_environment(), threads=1, host=HOST, cores=1, memory_bytes=1 << 30
        )
        async with kept(tmp_path, settings) as here:
            found = await here.until(lambda report: report.state == "idle")
            process = psutil.Process(found.pid)
            assert len(process.cpu_affinity()) == 1
            limit, _ = process.rlimit(psutil.RLIMIT_DATA)
            more = limit - process.memory_info().data
            assert 0 < more < 1 << 30, "its share holds what it had taken when it began to listen"

    run(test)


def test_a_pnode_that_never_starts_says_why_and_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        # An interpreter that ends at once: it does not find its library.
        environment = {**child_environment(), "PYTHONHOME": str(tmp_path / "nowhere")}
        settings = PNodeSettings(environment=environment, threads=1, host=HOST)
        async with kept(tmp_path, settings) as here:
            await here.until(lambda _: here.n_changes >= 4)
            found = await here.until(lambda report: report.state == "failed")
            assert (found.address, found.pid) == ("", 0)
            assert "ended with code 1 before it could be reached" in found.why

    run(test)


def test_a_system_that_starts_no_process_is_told_and_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no such program"))

    async def test() -> None:
        settings = PNodeSettings(environment={}, threads=1, host=HOST)
        async with kept(tmp_path, settings) as here:
            await here.until(lambda _: here.n_changes >= 2)
            assert "no such program" in here.report().why

    run(test)


def test_a_pnode_rests_while_its_owners_wishes_cannot_be_read(tmp_path: Path) -> None:
    def unreadable() -> str:
        raise InvalidError("the owner's limits cannot be read")

    async def test() -> None:
        settings = PNodeSettings(environment=child_environment(), threads=1, host=HOST, may_work=unreadable)
        async with kept(tmp_path, settings) as here:
            found = await here.until(lambda report: report.state not in ("starting", "idle"))
            assert (found.state, found.why) == (RESTING, "the owner's limits cannot be read")

    run(test)
