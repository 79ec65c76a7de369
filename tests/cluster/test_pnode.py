"""The PNode driver: which plans it takes up, and what it tells when it cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.inputs import CheckpointWritten, Outcome
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import (
    Address,
    AnyMessage,
    Configure,
    Failed,
    Hop,
    Ready,
    Refused,
    Stop,
    TensorHeader,
)
from dcnr_app.cluster.pnode import PNodeDriver, role_of
from dcnr_app.cluster.transport import Member
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR, PNodeId, SessionId
from dcnr_app.nodes.graph.network import encode_network
from dcnr_app.nodes.registry import load_registry
from tests.cluster.local_run import SETTINGS, spread, tiny_network
from tests.contracts.transport import Box, run

P1, P2 = PNodeId("p1"), PNodeId("p2")
SESSION = SessionId("s")


def configure(generation: int = 1, *, settings_batch: int = SETTINGS.batch) -> Configure:
    """The plan of two PNodes; a larger batch makes larger tensors."""
    settings = msgspec.structs.replace(SETTINGS, batch=settings_batch)
    network = tiny_network(load_registry())
    plan = msgspec.structs.replace(spread(network, settings, 2), generation=generation)
    return Configure(
        session=SESSION,
        generation=generation,
        network=encode_network(network),
        plan=plan,
        settings=settings,
        first_step=1,
        members=tuple(Address(pnode, f"memory:{pnode}") for pnode in (ORCHESTRATOR, P1, P2)),
    )


class Scene:
    """PNode p1 with an orchestrator that is played by the test."""

    def __init__(self, compute: type[Compute] = Compute) -> None:
        registry, hub = load_registry(), MemoryHub()
        self.box = Box()
        self.hub = hub
        self.orchestrator, self.transport = MemoryTransport(hub, ORCHESTRATOR), MemoryTransport(hub, P1)
        self.compute = compute(P1, registry, lambda: ReferenceBackend(1), SystemClock())
        self.driver = PNodeDriver(
            pnode=P1, transport=self.transport, compute=self.compute, registry=registry, clock=SystemClock()
        )

    async def open(self) -> None:
        """Let both know each other."""
        await self.orchestrator.start(self.box)
        await self.transport.start(self.driver)
        members = [Member(pnode=p, address="", fingerprint="", role=role_of(p)) for p in (ORCHESTRATOR, P1)]
        for transport in (self.orchestrator, self.transport):
            transport.set_members(members)

    async def send(self, message: AnyMessage, tensors: Mapping[str, np.ndarray] | None = None) -> None:
        await self.orchestrator.send(P1, message, tensors or {})

    async def next(self) -> AnyMessage:
        """The next message that the PNode sends."""
        await self.box.until_messages(1)
        return self.box.messages.pop(0)[1]


@asynccontextmanager
async def scene(compute: type[Compute] = Compute) -> AsyncIterator[Scene]:
    """A PNode that serves."""
    made = Scene(compute)
    await made.open()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.driver.run())
        await made.driver.started()
        yield made
        made.driver.stop()
        await running
    await made.transport.close()
    await made.orchestrator.close()


@pytest.mark.parametrize("network", [b"no JSON", b"{}", b'{"nodes": 3}', b'{"nodes": [{}]}'])
def test_a_network_that_cannot_be_read_is_refused_and_a_good_one_taken_after_it(network: bytes) -> None:
    async def test() -> None:
        async with scene() as made:
            await made.send(msgspec.structs.replace(configure(), network=network))
            refused = await made.next()
            assert isinstance(refused, Refused)
            assert (refused.tag, refused.generation) == ("configure.v1", 1)
            assert "its network cannot be read" in refused.reason
            await made.send(configure())
            assert isinstance(await made.next(), Ready)

    run(test)


def why_refused(made: Scene, shape: tuple[int, ...]) -> str:
    """Why a hop with a tensor of this shape is refused before it is allocated."""
    slot = "block/0/norm_1:0"
    hop = Hop(
        session=SESSION, generation=2, request=1, phase="train", step=1, microbatch=0, direction="F",
        segment=1, slot=slot,
    )  # fmt: skip
    return made.driver.check(P2, hop, [TensorHeader(slot, "float32", shape)])


def test_a_plan_of_an_older_generation_changes_neither_tensors_nor_members() -> None:
    async def test() -> None:
        async with scene() as made:
            await made.send(configure(2))
            assert isinstance(await made.next(), Ready)
            older = configure(1, settings_batch=16)
            await made.send(msgspec.structs.replace(older, members=older.members[1:]))
            refused = await made.next()
            assert isinstance(refused, Refused)
            assert "generation 1 is older than 2" in refused.reason
            assert why_refused(made, (1, 16, 16)) == ""
            assert "should be float32 [1, 16, 16]" in why_refused(made, (2, 16, 16))
            await made.send(Stop(session=SESSION, generation=2))  # still a member: it is heard

    run(test)


def test_tensors_outside_a_session_are_refused() -> None:
    assert why_refused(Scene(), (1, 16, 16)) == "no tensors are expected here"


class Odd(Compute):
    """Gives an outcome that no worker knows: as a bug in a core would."""

    def execute(self, effect: ComputeEffect) -> Outcome:
        return CheckpointWritten("")


def test_a_bug_in_the_core_is_told_to_the_orchestrator_and_raised() -> None:
    async def test() -> None:
        made = Scene(Odd)
        await made.open()
        running = asyncio.ensure_future(made.driver.run())
        await made.driver.started()
        await made.send(configure())
        failed = await made.next()
        assert isinstance(failed, Failed)
        assert failed.what == "a worker cannot take outcome CheckpointWritten"
        assert failed.where == "PNode p1"
        with pytest.raises(ExceptionGroup) as group:
            await running
        assert isinstance(group.value.exceptions[0], InvariantError)

    run(test)


def test_a_pnode_ends_by_itself_when_its_orchestrator_is_lost() -> None:
    async def test() -> None:
        made = Scene()
        await made.open()
        running = asyncio.ensure_future(made.driver.run())
        await made.driver.started()
        await made.send(configure())
        await made.next()
        made.hub.cut(ORCHESTRATOR, P1)
        await running
        assert len(made.compute.handles) == 0

    run(test)
