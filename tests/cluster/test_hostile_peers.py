"""What strangers and misbehaving members send to a listening gRPC transport, over raw gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcnr_app.cluster.checked_frames import ArrivingFrames, is_notice, seal
from dcnr_app.cluster.codec import Envelope, encode, frames, known_tags
from dcnr_app.cluster.greeting import hello
from dcnr_app.cluster.grpc_options import SERVICE, client_options
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, Credentials, dns_name, fingerprint
from dcnr_app.cluster.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refused
from dcnr_app.cluster.reassembly import Arrival, Reassembler
from dcnr_app.cluster.transport import MAX_FRAME_BYTES, Member
from dcnr_app.ids import PNodeId
from tests.contracts.transport import A, B, Box, C, applied, hop, run

CLUSTER = "home"


class Scene:
    """PNode A listens; B is its only other member."""

    def __init__(self) -> None:
        self.authority = ClusterAuthority.create(CLUSTER)
        self.member = self.authority.issue(B, CLUSTER, "worker")
        self.box = Box()
        self.address = ""

    async def __aenter__(self) -> Scene:
        own = self.authority.issue(A, CLUSTER, "worker")
        self.transport = GrpcTransport(A, own, CLUSTER)
        self.address = await self.transport.start(self.box)
        member = Member(
            pnode=B, address="127.0.0.1:1", fingerprint=fingerprint(self.member.cert_pem), role="worker"
        )
        self.transport.set_members([member])
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.close()


class RawStream:
    """One stream as any gRPC client can open it."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._replies = Reassembler(lambda message, headers: "")
        self._arriving = ArrivingFrames(repeats=0)
        self._is_greeted = False
        self.n_put = 0

    async def write(self, message: AnyMessage) -> None:
        for data in frames(encode(1, message, {})):
            if self._is_greeted:
                await self.put(data)
            else:
                await self.call.write(data)

    async def put(self, data: bytes) -> None:
        """One frame with this data, with the number that is due and its checksum."""
        await self.call.write(seal(self.n_put, [data]))
        self.n_put += 1

    async def data(self) -> bytes | memoryview:
        """The data of the next frame that comes back."""
        frame = await self.call.read()
        assert frame is not grpc.aio.EOF
        if not self._is_greeted:
            self._is_greeted = True
            return bytes(frame)
        data = self._arriving.take(frame)
        assert data is not None
        return data

    async def reply(self) -> AnyMessage:
        data = await self.data()
        while is_notice(memoryview(data)):
            data = await self.data()
        (arrival,) = self._replies.feed(data)
        assert isinstance(arrival, Arrival)
        return arrival.message

    async def refused(self, reason: str) -> None:
        """The next reply refuses something, for this reason."""
        reply = await self.reply()
        assert isinstance(reply, Refused)
        assert reason in reply.reason


@asynccontextmanager
async def raw_stream(
    scene: Scene, tls: grpc.ChannelCredentials | None, method: str = "control"
) -> AsyncIterator[RawStream]:
    # Without the sender's own limit, so that the receiver's is tested.
    options = [
        (name, -1 if name == "grpc.max_send_message_length" else value)
        for name, value in client_options(A, "control")
    ]
    if tls is None:
        channel = grpc.aio.insecure_channel(scene.address, options)
    else:
        channel = grpc.aio.secure_channel(scene.address, tls, options)
    async with channel:
        call = channel.stream_stream(f"/{SERVICE}/{method}")()
        try:
            yield RawStream(call)
        finally:
            call.cancel()


def tls_of(credentials: Credentials, ca_pem: bytes | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        ca_pem or credentials.ca_pem, credentials.key_pem, credentials.cert_pem
    )


@asynccontextmanager
async def member_stream(scene: Scene, method: str = "control") -> AsyncIterator[RawStream]:
    """A greeted stream of the true member."""
    async with raw_stream(scene, tls_of(scene.member), method) as stream:
        await stream.write(hello(B))
        assert isinstance(await stream.reply(), Hello)
        yield stream


async def end_of(stream: RawStream) -> tuple[str, str]:
    """Status and text with which the server ended the stream before it read anything.

    Nothing is written: a write that meets the refusal would hide the status behind one of the library's own.
    """
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await stream.call.read() is not grpc.aio.EOF:
            pass
    return caught.value.code().name, caught.value.details() or ""


def self_made_leaf(signer: Credentials) -> Credentials:
    """A leaf for the member's name, signed with a leaf's key instead of the CA's."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer_key = serialization.load_pem_private_key(signer.key_pem, None)
    signer_cert = x509.load_pem_x509_certificate(signer.cert_pem)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder(
            issuer_name=signer_cert.subject,
            subject_name=signer_cert.subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=signer_cert.not_valid_before_utc,
            not_valid_after=signer_cert.not_valid_after_utc,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name(B))]), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return Credentials(
        cert_pem=pem + signer.cert_pem,
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        ca_pem=signer.ca_pem,
    )


STRANGERS = {
    "plaintext": lambda scene: None,
    "no certificate": lambda scene: grpc.ssl_channel_credentials(scene.authority.ca_pem),
    "another authority": lambda scene: tls_of(
        ClusterAuthority.create(CLUSTER).issue(B, CLUSTER, "worker"), scene.authority.ca_pem
    ),
    "signed by a member": lambda scene: tls_of(self_made_leaf(scene.member)),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_stranger_never_reaches_a_handler(stranger: str) -> None:
    async def test() -> None:
        async with Scene() as scene:
            async with raw_stream(scene, STRANGERS[stranger](scene)) as stream:
                code, _ = await end_of(stream)
                assert code == "UNAVAILABLE"
            assert not scene.box.checked
            assert scene.transport.totals().bytes_received == 0
            async with member_stream(scene) as stream:
                await stream.write(applied(1))
                await scene.box.until_messages(1)

    run(test)


NOT_ADMITTED = {
    "not a member": (C, CLUSTER, "worker"),
    "another certificate": (B, CLUSTER, "worker"),
    "belongs to cluster 'office'": (B, "office", "worker"),
}


@pytest.mark.parametrize("reason", NOT_ADMITTED)
def test_good_certificate_outside_the_membership_is_refused_before_anything_is_read(reason: str) -> None:
    async def test() -> None:
        async with Scene() as scene:
            credentials = scene.authority.issue(*NOT_ADMITTED[reason])
            async with raw_stream(scene, tls_of(credentials)) as stream:
                code, text = await end_of(stream)
                assert code == "PERMISSION_DENIED"
                assert reason in text
            assert scene.transport.totals().bytes_received == 0
            assert not scene.box.losses

    run(test)


def test_member_whose_role_differs_from_its_admission_is_refused() -> None:
    async def test() -> None:
        async with Scene() as scene:
            own = fingerprint(scene.member.cert_pem)
            scene.transport.set_members(
                [Member(pnode=B, address="x:1", fingerprint=own, role="orchestrator")]
            )
            async with raw_stream(scene, tls_of(scene.member)) as stream:
                code, text = await end_of(stream)
            assert (code, "admitted as 'orchestrator'" in text) == ("PERMISSION_DENIED", True)

    run(test)


BAD_GREETINGS: dict[str, AnyMessage] = {
    "(protocol 99)": Hello(pnode=B, protocol=99, version="7.0", tags=known_tags()),
    "know different messages (hop.v1)": Hello(
        pnode=B,
        protocol=PROTOCOL_VERSION,
        version="7.0",
        tags=tuple(tag for tag in known_tags() if tag != "hop.v1"),
    ),
    "calls itself": hello(PNodeId("c-0")),
    "must begin with a greeting": applied(1),
}


@pytest.mark.parametrize("reason", BAD_GREETINGS)
def test_bad_greeting_is_refused_with_its_reason(reason: str) -> None:
    async def test() -> None:
        async with Scene() as scene:
            async with raw_stream(scene, tls_of(scene.member)) as stream:
                await stream.write(BAD_GREETINGS[reason])
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stream.call.read()
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert reason in (caught.value.details() or "")
            assert not scene.box.messages
            assert not scene.box.losses

    run(test)


def test_protocol_mismatch_names_both_versions() -> None:
    async def test() -> None:
        async with Scene() as scene, raw_stream(scene, tls_of(scene.member)) as stream:
            await stream.write(BAD_GREETINGS["(protocol 99)"])
            with pytest.raises(grpc.aio.AioRpcError, match=r"dcnr-app .*protocol 2.* and 7\.0 .*99"):
                await stream.call.read()

    run(test)


def test_greeting_in_the_middle_of_a_stream_is_refused() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene) as stream:
            await stream.write(hello(B))
            await stream.refused("a greeting only opens a stream")

    run(test)


def lying_frame(headers: object, payload_bytes: object, payload: bytes = b"") -> bytes:
    """A well-formed hop whose tensor headers are whatever is given."""
    body = msgspec.Raw(msgspec.msgpack.encode(hop(1)))
    raw = msgspec.Raw(msgspec.msgpack.encode(headers))
    envelope = msgspec.msgpack.encode([1, "hop.v1", body, raw, payload_bytes])
    return b"\x01" + len(envelope).to_bytes(4, "little") + envelope + payload


def unknown_tag() -> bytes:
    empty = msgspec.Raw(b"\x80")
    envelope = msgspec.msgpack.encode(Envelope(1, "hop.v9", empty, msgspec.Raw(b"\x90"), 0))
    return b"\x01" + len(envelope).to_bytes(4, "little") + envelope


BAD_FRAMES = {
    "unknown message 'hop.v9'": unknown_tag(),
    "not a frame": np.random.default_rng(0).bytes(1000),
    "not a message": b"\x01" + (500).to_bytes(4, "little") + np.random.default_rng(0).bytes(500),
    "an envelope of 4294967295 bytes": b"\x01" + b"\xff" * 100,
    "belong to no message": b"\x02" + bytes(100),
    "negative size": lying_frame([["x", "float32", [-4]]], 16, bytes(16)),
    "is over": lying_frame([["x", "float32", [1 << 62, 8]]], 16, bytes(16)),
    "describe 16 bytes": lying_frame([["x", "float32", [4]]], 15, bytes(15)),
    "more than its headers": lying_frame([["x", "float32", [4]]], 16, bytes(17)),
    "unknown dtype 'object'": lying_frame([["x", "object", [4]]], 16, bytes(16)),
    "malformed hop.v1": lying_frame([["x", "float32", [4.5]]], 16, bytes(16)),
}


@pytest.mark.parametrize("reason", BAD_FRAMES)
def test_bad_frame_is_answered_with_a_reason_and_the_stream_goes_on(reason: str) -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene, "bulk") as stream:
            await stream.put(BAD_FRAMES[reason])
            await stream.refused(reason)
            # The rest of the refused message is skipped without another answer.
            await stream.put(b"\x02" + bytes(1000))
            await stream.write(applied(7))
            await scene.box.until_messages(1)
            assert [message for _, message, _ in scene.box.messages] == [applied(7)]
            assert not scene.box.losses

    run(test)


def test_message_that_is_cut_short_is_refused_when_the_next_one_begins() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene, "bulk") as stream:
            sent = frames(encode(1, hop(1), {"x": np.ones(1 << 20, np.float32)}))
            await stream.put(next(sent))
            await stream.write(applied(7))
            await stream.refused("cut short")
            await scene.box.until_messages(1)
            assert scene.box.messages[0][1] == applied(7)

    run(test)


def test_frame_over_the_limit_ends_its_stream_and_nothing_else() -> None:
    async def test() -> None:
        async with Scene() as scene:
            async with member_stream(scene) as stream:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stream.call.write(b"\x01" * (MAX_FRAME_BYTES + 1))
                    await stream.call.read()
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            async with member_stream(scene) as stream:
                await stream.write(applied(1))
                await scene.box.until_messages(1)

    run(test)


def test_one_bad_stream_does_not_disturb_another_member() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene, "bulk") as bad, member_stream(scene) as good:
            for frame in BAD_FRAMES.values():
                await bad.put(frame)
                assert isinstance(await bad.reply(), Refused)
                await good.write(applied(1))
                await bad.write(applied(2))
            await scene.box.until_messages(2 * len(BAD_FRAMES))
            assert not scene.box.losses

    run(test)


def test_unknown_method_is_refused() -> None:
    async def test() -> None:
        async with Scene() as scene, raw_stream(scene, tls_of(scene.member), "shell") as stream:
            assert (await end_of(stream))[0] == "UNIMPLEMENTED"

    run(test)


def test_member_that_opens_streams_without_end_is_refused_and_others_get_in() -> None:
    async def test() -> None:
        async with Scene() as scene, AsyncExitStack() as streams:
            other = scene.authority.issue(C, CLUSTER, "worker")
            known = [
                Member(pnode=name, address="x:1", fingerprint=fingerprint(own.cert_pem), role="worker")
                for name, own in ((B, scene.member), (C, other))
            ]
            scene.transport.set_members(known)
            for _ in range(8):
                silent = await streams.enter_async_context(raw_stream(scene, tls_of(scene.member)))
                await silent.call.wait_for_connection()
            async with raw_stream(scene, tls_of(scene.member)) as ninth:
                code, text = await end_of(ninth)
            assert (code, text) == ("RESOURCE_EXHAUSTED", "b-0 has too many streams")
            async with raw_stream(scene, tls_of(other)) as stream:
                await stream.write(hello(C))
                assert isinstance(await stream.reply(), Hello)

    run(test)


def test_second_stream_of_one_channel_replaces_the_first() -> None:
    async def test() -> None:
        async with Scene() as scene, member_stream(scene) as old, member_stream(scene) as new:
            await scene.box.until_lost()
            assert await old.call.code() == grpc.StatusCode.CANCELLED
            await new.write(applied(2))
            await scene.box.until_messages(1)
            assert len(scene.box.losses) == 1

    run(test)
