"""The PNodes of one machine: all start or none is left, and closing ends them together."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster import local_worker, processes
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.local_cluster import ClusterSettings, LocalCluster, worker_ids
from dcnr_app.cluster.local_worker import RestartDelays
from dcnr_app.cluster.messages import Address
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import PeerError, UnreachableError, first_error
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.registry import load_registry
from dcnr_app.settings import child_environment
from tests.cluster.test_processes import children, environment
from tests.contracts.transport import Box, run


class Told:
    """A Roster that writes down who went."""

    def __init__(self) -> None:
        self.exits: list[tuple[PNodeId, str]] = []
        self.joins: asyncio.Queue[Address] = asyncio.Queue()

    def lost(self, pnode: PNodeId, reason: str) -> None:
        self.exits.append((pnode, reason))

    def joined(self, member: Address, device: DeviceFacts | None = None) -> None:
        del device
        self.joins.put_nowait(member)

    def drain(self, pnode: PNodeId) -> None:
        raise AssertionError(f"{pnode} never leaves here")


def cluster(
    tasks: asyncio.TaskGroup,
    n_workers: int,
    variables: dict[str, str] | None = None,
    *,
    restarts: bool = False,
) -> LocalCluster:
    """With so many worker processes."""
    return LocalCluster(
        ClusterSettings(
            n_workers=n_workers,
            threads=1,
            environment=variables or child_environment(),
            restarts=restarts,
        ),
        registry=load_registry(),
        make_backend=ReferenceBackend,
        clock=SystemClock(),
        tasks=tasks,
    )


def test_ids_are_worker_numbers_or_local() -> None:
    assert worker_ids(0) == ("local",)
    assert worker_ids(3) == ("worker-1", "worker-2", "worker-3")


def test_without_workers_one_pnode_is_in_this_process_and_ends_with_close() -> None:
    async def test() -> None:
        before = children()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 0)
            addresses = await made.start(Box(), Told())
            assert [(a.pnode, a.address) for a in addresses] == [
                ("orchestrator", "memory:orchestrator"),
                ("local", "memory:local"),
            ]
            assert children() == before
            assert await made.how_lost(0.0) is None
            await made.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


@pytest.mark.e2e
def test_workers_start_side_by_side_and_end_together_without_being_reported() -> None:
    async def test() -> None:
        before, told = children(), Told()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 3)
            addresses = await made.start(Box(), told)
            assert [a.pnode for a in addresses] == ["orchestrator", "worker-1", "worker-2", "worker-3"]
            assert len({a.fingerprint for a in addresses}) == 4
            assert len(children() - before) == 3
            await made.close()
        assert children() == before
        assert told.exits == []

    run(test)


@pytest.mark.e2e
def test_stopped_workers_are_killed_at_the_same_time_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_EXIT_S", 1.0)

    async def test() -> None:
        before = children()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 3)
            await made.start(Box(), Told())
            for pid in children() - before:
                psutil.Process(pid).suspend()
            started = time.monotonic()
            await made.close()
            assert time.monotonic() - started < 2.5  # each has one second
        assert children() == before

    run(test)


@pytest.mark.e2e
def test_a_killed_worker_is_found_and_reported() -> None:
    async def test() -> None:
        told = Told()
        before = children()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 2)
            await made.start(Box(), told)
            psutil.Process(max(children() - before)).kill()
            found = await made.how_lost(5.0)
            assert found is not None
            await asyncio.sleep(0)
            assert told.exits == [found]
            await made.close()
        assert children() == before

    run(test)


ONLY_THE_FIRST = """
import os, pathlib
try:
    (pathlib.Path(__file__).parent / "first").touch(exist_ok=False)
except FileExistsError:
    os._exit(5)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_start_that_fails_or_is_cancelled_leaves_no_process(tmp_path: Path, *, is_cancelled: bool) -> None:
    variables = None if is_cancelled else environment(tmp_path, ONLY_THE_FIRST)

    async def test() -> None:
        before = children()
        try:
            async with asyncio.TaskGroup() as tasks:
                made = cluster(tasks, 3, variables)
                try:
                    starting = tasks.create_task(made.start(Box(), Told()))
                    while is_cancelled and len(children() - before) < 3:
                        await asyncio.sleep(0)
                    if is_cancelled:
                        starting.cancel()
                    await asyncio.wait({starting})
                finally:
                    await made.close()
        except* PeerError as group:
            assert "ended with code 5 before it could be reached" in first_error(group).what
            assert not is_cancelled
        assert children() == before

    run(test)


@pytest.mark.e2e
def test_a_killed_worker_is_started_again_with_another_certificate() -> None:
    async def test() -> None:
        told = Told()
        before = children()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 2, restarts=True)
            addresses = {a.pnode: a for a in await made.start(Box(), told)}
            made.evict(PNodeId("worker-2"), "a test")
            async with asyncio.timeout(20):
                again = await told.joins.get()
            assert again.pnode == "worker-2"
            assert again.fingerprint != addresses[again.pnode].fingerprint
            assert [pnode for pnode, _ in told.exits] == ["worker-2"]
            assert len(children() - before) == 2
            await made.close()
        assert children() == before

    run(test)


@pytest.mark.e2e
def test_the_last_worker_that_never_stays_ends_the_run_instead_of_leaving_it_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_worker, "_LONGEST_DELAY_S", 0.01)

    async def test() -> None:
        told = Told()
        before = children()
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as tasks:
                made = cluster(tasks, 1, restarts=True)
                await made.start(Box(), told)
                try:
                    while True:
                        made.evict(PNodeId("worker-1"), "a test")
                        async with asyncio.timeout(20):
                            await told.joins.get()
                finally:
                    await made.close()
        error = first_error(caught.value)
        assert isinstance(error, UnreachableError)
        assert "lost PNode worker-1: its process" in error.what
        assert "never stayed" in error.why
        assert len(told.exits) == 9
        assert children() == before

    run(test)


def test_a_process_that_never_stays_is_given_up_and_one_that_stayed_starts_over() -> None:
    delays = RestartDelays()
    waits = [delays.after(100.0) for _ in range(9)]
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert waits[-1] is None
    assert delays.after(60_000.0) == 0.05
