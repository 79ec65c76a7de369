"""An orchestrator's and a worker's part in their cluster, over mutual TLS on loopback; without PNodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dcnr_app.cluster.agent_cluster import AgentCluster, ClusterHooks
from dcnr_app.cluster.agent_messages import AgentLeaves, AgentStatus, MembershipUpdate, PNodeReport
from dcnr_app.cluster.agent_pnodes import PNodeSettings
from dcnr_app.cluster.cluster_files import ClusterFiles, OwnCluster
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.identity import agent_id
from dcnr_app.cluster.joining import join_with_code, save_admission
from dcnr_app.cluster.membership import removed, renamed
from dcnr_app.cluster.messages import TensorHeader
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import RefusedError
from dcnr_app.ids import PNodeId
from dcnr_app.settings import Home
from tests.cluster.joining_scene import HOST, Orchestrator, TestClock, joiner_at, machine_at, run
from tests.contracts.transport import applied

REMOVAL_S = 1.0
_POLL_S = 0.02
QUIET = PNodeSettings(environment={}, threads=1, host=HOST)


class Part:
    """One machine's part, and what its agent was told."""

    def __init__(self, home: Home, own: OwnCluster, registrar: Registrar | None, clock: TestClock) -> None:
        self.files = ClusterFiles(home)
        self.clock = clock
        self.removals: list[str] = []
        self.confirmed: list[str] = []
        self.orchestrator_at: tuple[str, ...] = ()
        hooks = ClusterHooks(
            name=lambda: f"the {own.role}",
            hosts=lambda: (HOST,),
            heard_at=lambda _: self.orchestrator_at,
            removed=self.removals.append,
            confirmed=self.confirmed.append,
        )
        alone = msgspec.structs.replace(own, pnodes=())
        self.machine = own.machine
        self.cluster = AgentCluster(alone, self.files, registrar, QUIET, clock, hooks)

    def says(self, sender: str, message: Any) -> None:
        """As if an agent had said it."""
        self.cluster.link.deliver(agent_id(sender), message, {})


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Part, Part]]:
    """(orchestrator, worker), both running."""
    async with Orchestrator(folder) as scene, asyncio.TaskGroup() as tasks:
        code = scene.registrar.new_code().secret
        admission = await join_with_code(scene.target, code, joiner_at(folder, "worker", n_pnodes=1))
        home = machine_at(folder, "worker")[0]
        first = Part(scene.home, scene.own, scene.registrar, scene.clock)
        second = Part(home, save_admission(home, admission), None, scene.clock)
        await first.cluster.start(tasks)
        second.orchestrator_at = (f"{HOST}:{first.cluster.link.port}",)
        await second.cluster.start(tasks)
        try:
            yield first, second
        finally:
            await second.cluster.close()
            await first.cluster.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(_POLL_S)


async def until_live(first: Part, second: Part) -> None:
    now_ms = first.clock.monotonic_ms()  # it stands still
    await until(lambda: first.cluster.machines.presence(second.machine, now_ms) == "live")


def status_of(machine: str, *pnodes: str, facts: bytes = b"") -> AgentStatus:
    reports = tuple(
        PNodeReport(
            pnode=PNodeId(pnode), address="127.0.0.1:1", fingerprint="", pid=1, state="idle", facts=facts
        )
        for pnode in pnodes
    )
    return AgentStatus(machine=machine, name="liar", version="", addresses=(), epoch=1, pnodes=reports)


def test_a_worker_tells_how_it_is_and_hears_of_a_changed_membership_and_keeps_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            status = first.cluster.machines.status(second.machine)
            assert status is not None
            assert status.name == "the worker"
            assert (second.machine in first.confirmed, first.machine in second.confirmed) == (True, True)
            assert second.cluster.trouble == ""
            assert first.cluster.registrar is not None
            fresh = first.cluster.registrar.rename(second.machine, "tower")
            first.cluster.membership_changed()
            await until(lambda: second.cluster.membership.epoch == fresh.epoch)
            await until(lambda: second.files.load_members() == fresh)

    run(test)


def test_a_removed_worker_hears_of_it_and_is_shut_out_within_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            began_s = time.monotonic()
            removing = asyncio.ensure_future(first.cluster.remove(second.machine))
            await until(lambda: bool(second.removals))
            await second.cluster.close(for_good=True)  # what its agent does then
            await removing
            assert time.monotonic() - began_s < REMOVAL_S
            assert "was removed from the cluster 'home'" in second.removals[0]
            assert first.cluster.membership.find(second.machine) is None
            assert first.cluster.machines.status(second.machine) is None

    run(test)


def test_a_worker_that_says_nothing_to_its_removal_is_shut_out_within_a_second_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            began_s = time.monotonic()
            await first.cluster.remove(second.machine)
            assert time.monotonic() - began_s < REMOVAL_S
            await until(lambda: "not a member" in second.cluster.trouble)

    run(test)


def test_a_worker_that_leaves_for_good_is_a_member_no_more_and_one_that_ends_stays_one(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            first.says(second.machine, AgentLeaves(machine=second.machine, for_good=False))
            assert first.cluster.machines.status(second.machine) is None
            await until_live(first, second)
            assert first.cluster.membership.find(second.machine) is not None
            await second.cluster.close(for_good=True)
            await until(lambda: first.cluster.membership.find(second.machine) is None)
            assert first.cluster.membership.was_removed(second.machine)

    run(test)


def test_the_others_are_told_when_the_orchestrator_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            await first.cluster.disband()
            assert second.removals
            assert [record.machine for record in first.cluster.membership.members] == [first.machine]

    run(test)


def test_nobody_speaks_for_another_machine_or_of_pnodes_that_it_has_no_certificate_for(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            before = first.cluster.machines.status(first.machine)
            first.says(second.machine, status_of(first.machine))
            assert first.cluster.machines.status(first.machine) is before
            first.says("f" * 16, status_of("f" * 16))
            assert first.cluster.machines.status("f" * 16) is None
            certified, stolen = f"{second.machine}-0", f"{first.machine}-0"
            first.says(second.machine, status_of(second.machine, certified, stolen))
            found = first.cluster.machines.status(second.machine)
            assert found is not None
            assert [report.pnode for report in found.pnodes] == [certified]

    run(test)


def test_device_facts_that_cannot_be_reckoned_with_are_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            pnode = f"{second.machine}-0"
            good = msgspec.json.encode(DeviceFacts(pnode=PNodeId(pnode), gemm_flops={"float32": 1e9}))
            bad = (
                b"{", b"[]", b"\xff", b"[" * 50_000, b'{"unknown":' + b"[" * 50_000,
                good.replace(pnode.encode(), b"another-0"),
                good.replace(b"1000000000.0", b"-1"), good.replace(b"1000000000.0", b"1e999"),
            )  # fmt: skip
            for facts, is_kept in (*((facts, False) for facts in bad), (good, True)):
                first.says(second.machine, status_of(second.machine, pnode, facts=facts))
                found = first.cluster.machines.status(second.machine)
                assert found is not None
                assert found.pnodes[0].facts == (facts if is_kept else b""), facts[:80]

    run(test)


def test_a_worker_takes_the_membership_from_its_orchestrator_only_and_never_an_older_one(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            await until_live(first, second)
            held = second.cluster.membership
            without = msgspec.json.encode(removed(held, second.machine))
            second.says("f" * 16, MembershipUpdate(membership=without))
            first.says(second.machine, MembershipUpdate(membership=without))
            deep = b'{"unknown":' + b"[" * 50_000
            for garbage in (
                b"",
                b"{}",
                b"[" * 50_000,
                deep,
                without.replace(held.cluster.encode(), b"0" * 16),
            ):
                second.says(first.machine, MembershipUpdate(membership=garbage))
            assert (second.removals, second.cluster.membership) == ([], held)
            newer = renamed(renamed(held, second.machine, "a"), second.machine, "b")
            second.says(first.machine, MembershipUpdate(membership=msgspec.json.encode(newer)))
            second.says(first.machine, MembershipUpdate(membership=msgspec.json.encode(held)))
            assert second.cluster.membership == newer

    run(test)


def test_an_agent_takes_no_tensors_and_only_what_agents_say(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            link = first.cluster.link
            sender = agent_id(second.machine)
            leaves = AgentLeaves(machine=second.machine, for_good=False)
            header = TensorHeader("x", "float32", (1,))
            assert link.check(sender, leaves, ()) == ""
            assert link.check(sender, leaves, (header,))
            assert link.check(sender, applied(0), ())

    run(test)


def test_a_worker_neither_removes_nor_drains_machines(tmp_path: Path) -> None:
    async def test() -> None:
        async with pair(tmp_path) as (first, second):
            with pytest.raises(RefusedError, match="only the cluster's orchestrator removes"):
                await second.cluster.remove(first.machine)
            with pytest.raises(RefusedError, match="only the cluster's orchestrator drains"):
                await second.cluster.drain(first.machine)
            with pytest.raises(RefusedError, match="it is the cluster"):
                await first.cluster.remove(first.machine)

    run(test)
