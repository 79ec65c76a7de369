"""An outgoing stream that ends in the middle of a write: the sender learns why, and nothing else breaks."""

from __future__ import annotations

import asyncio

import pytest

from dcnr_app.cluster.grpc_streams import OutgoingStream, Traffic
from dcnr_app.errors import PeerError
from tests.contracts.transport import A, B, applied, run


class EndingCall:
    """Stands for gRPC's call object: the stream is ended while this write is under way."""

    def __init__(self, stream: OutgoingStream) -> None:
        self._stream = stream

    async def write(self, frame: bytes) -> None:
        self._stream.end("the other connection broke")


def test_stream_ended_while_a_frame_is_written_fails_the_sender_with_the_reason() -> None:
    async def test() -> None:
        stream = OutgoingStream(A, B, "control", lambda refused: None)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(stream._write(EndingCall(stream), Traffic()))
            with pytest.raises(PeerError) as caught:
                await stream.send(applied(1), {})
            await asyncio.sleep(0)
            assert not writing.done()
            writing.cancel()
        assert caught.value.why == "the other connection broke"

    run(test)
