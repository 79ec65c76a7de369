"""A removed machine, over real mutual TLS: its streams end on both sides, its certificate opens nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from dcnr_app.cluster.cluster_files import OwnCluster
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import Credentials, agent_id
from dcnr_app.cluster.joining import join_with_code, save_admission
from dcnr_app.cluster.membership import Membership, agent_members, relocated
from dcnr_app.errors import PeerError
from dcnr_app.ids import PNodeId
from tests.cluster.joining_scene import Orchestrator, joiner_at, machine_at, run
from tests.contracts.transport import Box, applied, hop

STREAMS_END_S = 1.0


class Agent:
    """One machine's agent, as far as its streams go."""

    def __init__(self, machine: str, credentials: Credentials, cluster: str) -> None:
        self.pnode = agent_id(machine)
        self.transport = GrpcTransport(self.pnode, credentials, cluster)
        self.box = Box()
        self.address = ""

    async def start(self) -> None:
        self.address = await self.transport.start(self.box)


async def joined(folder: Path, orchestrator: Orchestrator, name: str) -> OwnCluster:
    code = orchestrator.registrar.new_code().secret
    accepted = await join_with_code(orchestrator.target, code, joiner_at(folder, name, n_pnodes=1))
    return save_admission(machine_at(folder, name)[0], accepted)


def at(membership: Membership, *agents: Agent) -> Membership:
    for agent in agents:
        machine = agent.pnode.removeprefix("agent-")
        if membership.find(machine) is not None:
            membership = relocated(membership, machine, [agent.address])
    return membership


def test_removal_ends_live_streams_on_both_sides_and_shuts_the_machine_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            own = await joined(tmp_path, orchestrator, "worker")
            here = Agent(orchestrator.machine.id, orchestrator.own.agent, own.cluster)
            there = Agent(own.machine, own.agent, own.cluster)
            for agent in (here, there):
                await agent.start()
            try:
                everyone = agent_members(at(orchestrator.registrar.membership, here, there))
                for agent in (here, there):
                    agent.transport.set_members(everyone)
                # Live streams in both directions and on both channels.
                await here.transport.send(there.pnode, applied(0), {})
                await there.transport.send(here.pnode, hop(0), {"x": np.ones(1, np.float32)})
                await there.box.until_messages(1)
                await here.box.until_messages(1)

                left = orchestrator.registrar.remove(own.machine)
                began_s = time.monotonic()
                here.transport.set_members(agent_members(at(left, here)))
                await there.box.until_lost()
                assert time.monotonic() - began_s < STREAMS_END_S
                with pytest.raises(PeerError, match="not a member"):
                    await here.transport.send(there.pnode, applied(1), {})
                with pytest.raises(PeerError, match="is not a member of this cluster"):
                    await there.transport.send(here.pnode, applied(1), {})
                assert len(here.box.messages) == 1
            finally:
                for agent in (here, there):
                    await agent.transport.close()

    run(test)


def test_machine_that_joins_again_comes_in_with_its_new_certificate_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            old = await joined(tmp_path, orchestrator, "worker")
            orchestrator.registrar.remove(old.machine)
            new = await joined(tmp_path, orchestrator, "worker")
            assert new.machine == old.machine
            here = Agent(orchestrator.machine.id, orchestrator.own.agent, new.cluster)
            before, after = (Agent(own.machine, own.agent, own.cluster) for own in (old, new))
            for agent in (here, before, after):
                await agent.start()
            try:
                members = agent_members(at(orchestrator.registrar.membership, here))
                for agent in (here, before, after):
                    agent.transport.set_members(members)
                await after.transport.send(here.pnode, applied(0), {})
                await here.box.until_messages(1)
                with pytest.raises(PeerError, match="another certificate"):
                    await before.transport.send(here.pnode, applied(1), {})
            finally:
                for agent in (here, before, after):
                    await agent.transport.close()

    run(test)


def test_pnode_certificate_does_not_speak_for_an_agent(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            own = await joined(tmp_path, orchestrator, "worker")
            here = Agent(orchestrator.machine.id, orchestrator.own.agent, own.cluster)
            (secret,) = own.pnodes
            pnode = GrpcTransport(PNodeId(secret.pnode), secret.credentials, own.cluster)
            await here.start()
            await pnode.start(Box())
            try:
                members = agent_members(at(orchestrator.registrar.membership, here))
                here.transport.set_members(members)
                pnode.set_members(members)
                with pytest.raises(PeerError, match="is not a member of this cluster"):
                    await pnode.send(here.pnode, applied(0), {})
            finally:
                await pnode.close()
                await here.transport.close()

    run(test)


def test_member_of_another_cluster_is_a_stranger(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as one, Orchestrator(tmp_path, name="other") as other:
            here = Agent(one.machine.id, one.own.agent, one.own.cluster)
            there = Agent(other.machine.id, other.own.agent, other.own.cluster)
            for agent in (here, there):
                await agent.start()
            try:
                here.transport.set_members(agent_members(at(one.registrar.membership, here)))
                there.transport.set_members(agent_members(at(one.registrar.membership, here)))
                async with asyncio.timeout(20):
                    with pytest.raises(PeerError):
                        await there.transport.send(here.pnode, applied(0), {})
                assert here.box.messages == []
            finally:
                for agent in (here, there):
                    await agent.transport.close()

    run(test)
