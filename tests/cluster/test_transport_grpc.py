"""The gRPC transport over real mutual TLS on loopback: the contract, and what only connections show."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, Credentials, fingerprint
from dcnr_app.cluster.transport import PeerTransport
from dcnr_app.errors import PeerError, UserError
from dcnr_app.ids import PNodeId
from tests.contracts.transport import A, B, Box, C, Cluster, TransportContract, applied, hop, run

CLUSTER = "home"


def grpc_cluster(authority: ClusterAuthority, *pnodes: PNodeId) -> tuple[Cluster, dict[PNodeId, Credentials]]:
    """A cluster, and its members' credentials, which a restart keeps."""
    credentials: dict[PNodeId, Credentials] = {}

    def make(pnode: PNodeId) -> tuple[PeerTransport, str]:
        own = credentials.setdefault(pnode, authority.issue(pnode, CLUSTER, "worker"))
        return GrpcTransport(pnode, own, CLUSTER), fingerprint(own.cert_pem)

    return Cluster(make, *pnodes), credentials


class TestGrpcTransport(TransportContract):
    """The contract over TLS."""

    def cluster(self, *pnodes: PNodeId) -> Cluster:
        return grpc_cluster(ClusterAuthority.create(CLUSTER), *pnodes)[0]


def test_control_overtakes_bulk_that_is_being_sent() -> None:
    async def test() -> None:
        async with grpc_cluster(ClusterAuthority.create(CLUSTER), A, B)[0] as cluster:
            await cluster.transports[A].send(B, applied(0), {})
            await cluster.transports[A].send(B, hop(0), {"x": np.ones(1, np.float32)})
            await cluster.boxes[B].until_messages(2)
            bulk = asyncio.create_task(
                cluster.transports[A].send(B, hop(1), {"x": np.ones(32 << 20, np.float32)})
            )
            await asyncio.sleep(0)
            await cluster.transports[A].send(B, applied(1), {})
            await cluster.boxes[B].until_messages(3)
            assert cluster.boxes[B].messages[2][1] == applied(1)
            assert not bulk.done()
            await bulk

    run(test)


def test_member_with_a_new_certificate_loses_its_old_streams() -> None:
    async def test() -> None:
        authority = ClusterAuthority.create(CLUSTER)
        cluster, _ = grpc_cluster(authority, A, B)
        async with cluster:
            await cluster.transports[B].send(A, applied(0), {})
            await cluster.boxes[A].until_messages(1)
            renewed = fingerprint(authority.issue(B, CLUSTER, "worker").cert_pem)
            old = cluster.members[B]
            new = type(old)(pnode=B, address=old.address, fingerprint=renewed, role=old.role)
            cluster.transports[A].set_members([cluster.members[A], new])
            await cluster.boxes[B].until_lost()
            with pytest.raises(PeerError, match="another certificate"):
                await cluster.transports[B].send(A, applied(1), {})

    run(test)


def test_peer_at_a_wrong_address_is_not_taken_for_the_one_expected() -> None:
    async def test() -> None:
        async with grpc_cluster(ClusterAuthority.create(CLUSTER), A, B, C)[0] as cluster:
            b, c = cluster.members[B], cluster.members[C]
            moved = type(b)(pnode=B, address=c.address, fingerprint=b.fingerprint, role=b.role)
            cluster.transports[A].set_members([cluster.members[A], moved, c])
            with pytest.raises(PeerError, match="b-0 cannot be reached"):
                await cluster.transports[A].send(B, applied(0), {})
            assert not cluster.boxes[C].messages

    run(test)


def test_port_that_is_taken_is_a_clear_error() -> None:
    async def test() -> None:
        authority = ClusterAuthority.create(CLUSTER)
        async with grpc_cluster(authority, A)[0] as cluster:
            port = int(cluster.members[A].address.rpartition(":")[2])
            second = GrpcTransport(B, authority.issue(B, CLUSTER, "worker"), CLUSTER, port=port)
            with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
                await second.start(Box())
            await second.close()

    run(test)


class Held(NamedTuple):
    """What this process holds."""

    n_tasks: int
    n_files: int
    memory_bytes: int


async def held_at_rest() -> Held:
    """Once gRPC's own tasks and sockets of the last connections have ended."""
    process, held = psutil.Process(), Held(1 << 30, 1 << 30, 0)
    while True:
        gc.collect()
        now = Held(len(asyncio.all_tasks()), process.num_fds(), process.memory_info().rss)
        if (now.n_tasks, now.n_files) == (held.n_tasks, held.n_files):
            return now
        held = now
        await asyncio.sleep(0.2)


async def cycles(n_warm: int, n: int) -> tuple[Held, Held]:
    """Connect and disconnect, both channels; what is held after the first `n_warm` cycles and after all."""
    async with grpc_cluster(ClusterAuthority.create(CLUSTER), A, B)[0] as cluster:
        everyone, alone = [cluster.members[A], cluster.members[B]], [cluster.members[B]]
        tensors = {"x": np.ones(1000, np.float32)}
        first = None
        for step in range(1, n_warm + n + 1):
            await cluster.transports[A].send(B, applied(step), {})
            await cluster.transports[A].send(B, hop(step), tensors)
            await cluster.boxes[B].until_messages(2)
            cluster.boxes[B].messages.clear()
            cluster.transports[B].set_members(alone)
            await cluster.boxes[A].until_lost(step)
            cluster.transports[B].set_members(everyone)
            if step == n_warm:
                first = await held_at_rest()
        assert first is not None
        return first, await held_at_rest()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file descriptors to count")
def test_connects_and_disconnects_leave_no_task_and_no_file() -> None:
    async def test() -> None:
        first, last = await cycles(5, 30)
        assert last[:2] == first[:2]

    run(test)


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file descriptors to count")
def test_thousand_connects_and_disconnects_leave_no_task_no_file_and_no_memory() -> None:
    first, last = asyncio.run(cycles(200, 1000))
    assert last[:2] == first[:2]
    assert last.memory_bytes - first.memory_bytes < 16 << 20
