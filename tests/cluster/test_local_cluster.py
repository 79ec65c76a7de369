"""The PNodes of one machine: all start or none is left, and closing ends them together."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster import processes
from dcnr_app.cluster.local_cluster import ClusterSettings, LocalCluster, worker_ids
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import PeerError, first_error
from dcnr_app.nodes.registry import load_registry
from dcnr_app.settings import child_environment
from tests.cluster.test_processes import children, environment
from tests.contracts.transport import Box, run


def cluster(
    tasks: asyncio.TaskGroup, n_workers: int, variables: dict[str, str] | None = None
) -> LocalCluster:
    """With so many worker processes."""
    return LocalCluster(
        ClusterSettings(n_workers=n_workers, threads=1, environment=variables or child_environment()),
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
            addresses = await made.start(Box(), lambda pnode, how: None)
            assert [(a.pnode, a.address) for a in addresses] == [
                ("orchestrator", "memory:orchestrator"),
                ("local", "memory:local"),
            ]
            assert children() == before
            assert await made.killed(0.0) is None
            await made.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


@pytest.mark.e2e
def test_workers_start_side_by_side_and_end_together_without_being_reported() -> None:
    async def test() -> None:
        before, exits = children(), list[str]()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 3)
            addresses = await made.start(Box(), lambda pnode, how: exits.append(pnode))
            assert [a.pnode for a in addresses] == ["orchestrator", "worker-1", "worker-2", "worker-3"]
            assert len({a.fingerprint for a in addresses}) == 4
            assert len(children() - before) == 3
            await made.close()
        assert children() == before
        assert exits == []

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
            await made.start(Box(), lambda pnode, how: None)
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
        exits: list[tuple[str, str]] = []
        before = children()
        async with asyncio.TaskGroup() as tasks:
            made = cluster(tasks, 2)
            await made.start(Box(), lambda pnode, how: exits.append((pnode, how)))
            psutil.Process(max(children() - before)).kill()
            found = await made.killed(5.0)
            assert found is not None
            await asyncio.sleep(0)
            assert exits == [(found.pnode, found.how_it_ended())]
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
                    starting = tasks.create_task(made.start(Box(), lambda pnode, how: None))
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
