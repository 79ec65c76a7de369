"""The gRPC transport over real mutual TLS on loopback: the contract, and what only connections show."""

from __future__ import annotations

import asyncio

import numpy as np
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


def test_many_connects_and_disconnects_leave_no_task() -> None:
    async def test() -> None:
        async with grpc_cluster(ClusterAuthority.create(CLUSTER), A, B)[0] as cluster:
            await cluster.transports[A].send(B, applied(0), {})
            await cluster.boxes[B].until_messages(1)
            everyone, alone = [cluster.members[A], cluster.members[B]], [cluster.members[B]]
            n_tasks = len(asyncio.all_tasks())
            for step in range(1, 11):
                cluster.transports[B].set_members(alone)
                await cluster.boxes[A].until_lost(step)
                cluster.transports[B].set_members(everyone)
                await cluster.transports[A].send(B, applied(step), {})
                await cluster.boxes[B].until_messages(step + 1)
            # gRPC's own tasks of the last cycle may still be ending.
            assert len(asyncio.all_tasks()) <= n_tasks + 4

    run(test)
