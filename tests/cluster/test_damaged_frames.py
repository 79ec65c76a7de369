"""The gRPC transport when bits flip after TLS, and when a peer says or does what the frames forbid."""

from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
import pytest

from dcnr_app.cluster.checked_frames import AGAIN, RECEIVED, WINDOW_BYTES, is_notice, read_notice, seal
from dcnr_app.cluster.codec import encode, frames
from dcnr_app.cluster.greeting import hello
from dcnr_app.cluster.grpc_options import SERVICE
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.transport import Member, PeerTransport
from dcnr_app.errors import PeerError
from dcnr_app.failpoints import Failpoints, parse
from dcnr_app.ids import PNodeId
from tests.cluster.test_hostile_peers import Scene, member_stream, raw_stream, tls_of
from tests.contracts.transport import A, B, Box, C, Cluster, applied, hop, run, same_bits

CLUSTER = "home"


def cluster_with(failpoint: str) -> Cluster:
    """A and B; B's incoming frames are harmed as the text says."""
    authority = ClusterAuthority.create(CLUSTER)

    def make(pnode: PNodeId) -> tuple[PeerTransport, str]:
        own = authority.issue(pnode, CLUSTER, "worker")
        failpoints = Failpoints(parse(failpoint), pnode)
        return GrpcTransport(pnode, own, CLUSTER, failpoints=failpoints), fingerprint(own.cert_pem)

    return Cluster(make, A, B)


@pytest.mark.parametrize("nth", [1, 2, 7, 12])
def test_flipped_bit_is_repaired_and_the_order_holds(nth: int, caplog: pytest.LogCaptureFixture) -> None:
    sent = [np.random.default_rng(n).standard_normal(600_000).astype(np.float32) for n in range(4)]

    async def test() -> None:
        async with cluster_with(f"transport.receive#{B}:corrupt@{nth}") as cluster:
            for request, tensor in enumerate(sent):
                buffer = tensor.copy()
                await cluster.transports[A].send(B, hop(request), {"x": buffer})
                buffer[:] = -1  # the sender may reuse its tensor although a frame has to come again
            await cluster.boxes[B].until_messages(len(sent))
            for request, (_, message, tensors) in enumerate(cluster.boxes[B].messages):
                assert message == hop(request)
                assert same_bits(tensors["x"], sent[request])
            assert not cluster.boxes[A].losses

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "frame_damaged peer=b-0 channel=bulk" in caplog.text


def test_flipped_bit_in_a_control_message_is_repaired_without_more_traffic() -> None:
    async def test() -> None:
        async with cluster_with(f"transport.receive#{B}:corrupt@3") as cluster:
            for step in range(5):
                await cluster.transports[A].send(B, applied(step), {})
            await cluster.boxes[B].until_messages(5)
            assert [message for _, message, _ in cluster.boxes[B].messages] == [applied(n) for n in range(5)]

    run(test)


def test_link_that_damages_everything_is_marked_bad_and_breaks_with_that_reason() -> None:
    async def test() -> None:
        async with cluster_with(f"transport.receive#{B}:corrupt@2+") as cluster:
            await cluster.transports[A].send(B, applied(0), {})
            await cluster.boxes[B].until_messages(1)
            await cluster.transports[A].send(B, applied(1), {})
            await cluster.boxes[A].until_lost()
            await cluster.boxes[B].until_lost()
            for box, peer in ((cluster.boxes[A], B), (cluster.boxes[B], A)):
                assert [who for who, _ in box.losses] == [peer]
                assert "frame 1 arrived damaged, time after time" in box.losses[0][1]
            assert len(cluster.boxes[B].messages) == 1

    run(test)


def test_damaged_answer_breaks_the_link() -> None:
    async def test() -> None:
        async with cluster_with("") as cluster:
            cluster.boxes[B].reason = lambda message: "no" if message == applied(1) else ""
            await cluster.transports[A].send(B, applied(0), {})
            await cluster.boxes[B].until_messages(1)
            link = cluster.transports[B]._links[A]  # type: ignore[attr-defined]
            await link.incoming["control"]._put(seal(0, [b"\x01abc"])[:-1] + b"d")
            await cluster.boxes[A].until_lost()
            assert "damaged" in cluster.boxes[A].losses[0][1]

    run(test)


BAD_NOTICES = {
    "speaks of frame 9": RECEIVED + (9).to_bytes(8, "little"),
    "asks for frame 1, which was not sent yet": AGAIN + (1).to_bytes(8, "little"),
}


@pytest.mark.parametrize("reason", BAD_NOTICES)
def test_peer_that_answers_what_cannot_be_is_left(reason: str) -> None:
    async def test() -> None:
        async with cluster_with("") as cluster:
            await cluster.transports[A].send(B, applied(0), {})
            await cluster.boxes[B].until_messages(1)
            link = cluster.transports[B]._links[A]  # type: ignore[attr-defined]
            await link.incoming["control"]._write([BAD_NOTICES[reason]])
            await cluster.boxes[A].until_lost()
            assert reason in cluster.boxes[A].losses[0][1]

    run(test)


def test_stream_whose_numbers_do_not_follow_is_refused_with_a_reason() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene) as stream:
            stream.n_put = 5
            await stream.write(applied(1))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.call.read()
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "frame 5 came where 0 was due" in (caught.value.details() or "")
            await scene.box.until_lost()
            assert not scene.box.messages

    run(test)


def test_recorded_frame_that_is_replayed_is_delivered_once() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene) as stream:
            (data,) = frames(encode(1, applied(1), {}))
            recorded = seal(0, [data])
            for _ in range(3):
                await stream.call.write(recorded)
            stream.n_put = 1
            await stream.write(applied(2))
            await scene.box.until_messages(2)
            assert [message for _, message, _ in scene.box.messages] == [applied(1), applied(2)]

    run(test)


def test_large_message_is_taken_piece_by_piece_and_told() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene, "bulk") as stream:
            tensor = np.ones(3 << 20, np.float32)
            told = []

            async def hear() -> None:
                while not told or told[-1] < 12:
                    data = memoryview(await stream.data())
                    assert is_notice(data)
                    told.append(read_notice(data)[1])

            hearing = asyncio.create_task(hear())
            for data in frames(encode(1, hop(1), {"x": tensor})):
                await stream.put(data)
            await scene.box.until_messages(1)
            await hearing
            assert told == sorted(told)

    run(test)


class MuteMember:
    """A member whose gRPC reads everything, but that never says so: a slow consumer by protocol."""

    def __init__(self, authority: ClusterAuthority) -> None:
        self.own = authority.issue(C, CLUSTER, "worker")
        self.n_read = 0
        self.read_a_window = asyncio.Event()
        self.server = grpc.aio.server()
        methods = {name: grpc.stream_stream_rpc_method_handler(self._read) for name in ("control", "bulk")}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    async def _read(self, _: object, context: grpc.aio.ServicerContext) -> None:
        await context.read()
        for frame in frames(encode(0, hello(C), {})):
            await context.write(frame)
        while (frame := await context.read()) is not grpc.aio.EOF:
            self.n_read += len(frame)
            if self.n_read >= WINDOW_BYTES:
                self.read_a_window.set()

    async def start(self) -> Member:
        """Listen; returns it as a member."""
        own = self.own
        tls = grpc.ssl_server_credentials([(own.key_pem, own.cert_pem)], own.ca_pem, require_client_auth=True)
        port = self.server.add_secure_port("127.0.0.1:0", tls)
        await self.server.start()
        print_ = fingerprint(own.cert_pem)
        return Member(pnode=C, address=f"127.0.0.1:{port}", fingerprint=print_, role="worker")


def test_receiver_that_tells_nothing_stops_its_sender_within_the_window() -> None:
    async def test() -> None:
        authority = ClusterAuthority.create(CLUSTER)
        mute = MuteMember(authority)
        member = await mute.start()
        transport = GrpcTransport(A, authority.issue(A, CLUSTER, "worker"), CLUSTER)
        await transport.start(Box())
        transport.set_members([member])
        tensor = np.ones(16 << 20, np.float32)
        sending = asyncio.create_task(transport.send(C, hop(1), {"x": tensor}))
        await mute.read_a_window.wait()
        await transport.send(C, applied(1), {})  # control does not wait behind it
        done, _ = await asyncio.wait({sending}, timeout=0.2)
        assert not done
        assert mute.n_read < WINDOW_BYTES + (2 << 20)
        await mute.server.stop(0)
        with pytest.raises(PeerError):
            await sending
        await transport.close()

    run(test)


def test_greeting_of_another_build_is_understood_without_numbers_and_checksums() -> None:
    async def test() -> None:
        async with Scene() as scene, raw_stream(scene, tls_of(scene.member)) as stream:
            (data,) = frames(encode(1, hello(B), {}))
            assert data[:1] == b"\x01"
            await stream.call.write(data)
            assert (await stream.data())[:1] == b"\x01"

    run(test)
