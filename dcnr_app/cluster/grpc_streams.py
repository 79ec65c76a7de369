"""One outgoing gRPC stream to one peer: dial, greet, write messages in order, read the peer's replies.

Knows no membership and no other stream. Messages wait in line as views of their tensors: a frame is copied
when its turn comes, and kept until the peer has taken it. So the line's memory is bounded by what the waiting
senders hold, plus the window of `checked_frames`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from dcnr_app.cluster.checked_frames import ArrivingFrames, Piece, SentFrames, is_notice, read_notice
from dcnr_app.cluster.codec import Outgoing, Refusal, cut, encode, frames
from dcnr_app.cluster.greeting import hello, mismatch
from dcnr_app.cluster.grpc_options import GREETING_TIMEOUT_S, SERVICE, STALL_S, Channel, client_options
from dcnr_app.cluster.identity import Credentials
from dcnr_app.cluster.messages import AnyMessage, Hello, Refused
from dcnr_app.cluster.reassembly import Reassembler
from dcnr_app.cluster.transport import HostArray, LinkTotals
from dcnr_app.errors import PeerError, RefusedError, first_error
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
# What writing to a stream that just ended may raise.
DEAD_STREAM = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class Traffic:
    """Byte counters of one transport: frames with gRPC's 5-byte prefix; HTTP/2 and TLS add about 0.2 %."""

    _PREFIX_BYTES = 5

    def __init__(self) -> None:
        self._sent = 0
        self._received = 0

    def sent(self, frame: bytes) -> None:
        """Count a frame that was written."""
        self._sent += len(frame) + self._PREFIX_BYTES

    def received(self, frame: bytes) -> None:
        """Count a frame that was read."""
        self._received += len(frame) + self._PREFIX_BYTES

    def totals(self) -> LinkTotals:
        """Both counts so far."""
        return LinkTotals(self._sent, self._received)


class _Waiting(NamedTuple):
    message: Outgoing
    written: asyncio.Future[None]


class OutgoingStream:
    """`run` is its life, to be started as one task; `send` may be called by many at once."""

    def __init__(
        self, own: PNodeId, peer: PNodeId, channel: Channel, on_refused: Callable[[Refused], None]
    ) -> None:
        self._own = own
        self._peer = peer
        self._channel = channel
        self._on_refused = on_refused
        self._line: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._ended = ""
        self._numbers = 0
        self._sent = SentFrames()
        self._again: deque[bytes] = deque()
        self._taken = asyncio.Event()
        self._replies = ArrivingFrames(repeats=0)

    async def send(self, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Wait for this message's turn and until its last frame was given to gRPC. Raises PeerError, and
        InvariantError for tensors that cannot travel.

        A cancelled sender takes its message back; if frames went out already, the peer refuses the rest.
        """
        if self._ended:
            raise PeerError(f"{self._peer} cannot be reached", why=self._ended)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(self._encode(message, tensors), written))
        self._wake.set()
        await written

    async def run(self, address: str, credentials: Credentials, traffic: Traffic) -> str:
        """Serve the stream until it breaks; returns why."""
        tls = grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.cert_pem)
        try:
            async with grpc.aio.secure_channel(
                address, tls, client_options(self._peer, self._channel)
            ) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{self._channel}")()
                try:
                    await self._serve(call, traffic)
                finally:
                    call.cancel()
        except* (PeerError, RefusedError) as group:
            self.end(first_error(group).what)
        return self._ended

    def end(self, reason: str) -> None:
        """Fail all who wait, and whoever comes later."""
        self._ended = self._ended or reason
        while self._line:
            written = self._line.popleft().written
            if not written.done():
                written.set_exception(PeerError(f"{self._peer} cannot be reached", why=self._ended))

    async def _serve(self, call: Any, traffic: Traffic) -> None:
        replies = Reassembler(self._accept_reply)
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                for frame in frames(self._encode(hello(self._own), {})):
                    await call.write(frame)
                    traffic.sent(frame)
                await self._expect_hello(call, replies, traffic)
        except TimeoutError as error:
            raise PeerError(f"{self._peer} did not greet within {GREETING_TIMEOUT_S:g} s") from error
        except DEAD_STREAM as error:
            raise PeerError(await _status_text(call)) from error
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(call, replies, traffic))
            group.create_task(self._write(call, traffic))

    async def _expect_hello(self, call: Any, replies: Reassembler, traffic: Traffic) -> None:
        while True:
            for reply in self._put_together(replies, await self._next(call, traffic)):
                if not isinstance(reply, Hello):
                    raise PeerError(f"{self._peer} did not begin with a greeting")
                reason = mismatch(reply, self._peer)
                if reason:
                    raise PeerError(reason)
                return

    async def _read(self, call: Any, replies: Reassembler, traffic: Traffic) -> None:
        """Deliver the peer's refusals and heed its notices; ends only by raising PeerError with the stream's
        status, or RefusedError if the peer says what cannot be."""
        while True:
            data = self._replies.take(await self._next(call, traffic))
            if data is None:
                continue
            if is_notice(data):
                self._heed(*read_notice(data))
                continue
            for reply in self._put_together(replies, data):
                if isinstance(reply, Refused):
                    self._on_refused(reply)

    def _heed(self, is_damaged: bool, number: int) -> None:
        if is_damaged:
            _LOG.warning("frame_damaged peer=%s channel=%s number=%s", self._peer, self._channel, number)
            self._again = deque(self._sent.again(number))
            self._wake.set()
        else:
            self._sent.received(number)
        self._taken.set()

    async def _next(self, call: Any, traffic: Traffic) -> bytes:
        try:
            frame = await call.read()
        except DEAD_STREAM as error:
            raise PeerError(await _status_text(call)) from error
        if frame is grpc.aio.EOF:
            raise PeerError("the peer ended the stream")
        traffic.received(frame)
        return bytes(frame)

    def _put_together(self, replies: Reassembler, data: bytes | memoryview) -> Iterator[AnyMessage]:
        arrivals = replies.feed(data)
        for broken in arrivals:
            if isinstance(broken, Refusal):
                raise PeerError(f"{self._peer} answered with something else: {broken.reason}")
        return (arrival.message for arrival in arrivals if not isinstance(arrival, Refusal))

    async def _write(self, call: Any, traffic: Traffic) -> None:
        """Write the line in order. When the stream dies it stops, and `_read` tells why. Raises PeerError if
        the peer takes nothing for too long."""
        try:
            await self._write_all(call, traffic)
        except DEAD_STREAM:
            return
        except TimeoutError as error:
            raise PeerError(f"{self._peer} took nothing for {STALL_S:g} s") from error

    async def _write_all(self, call: Any, traffic: Traffic) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write_again(call, traffic)
            while self._line:
                waiting = self._line[0]
                await self._write_one(call, waiting, traffic)
                if self._line and self._line[0] is waiting:  # `end` empties the line at any time
                    self._line.popleft()

    async def _write_one(self, call: Any, waiting: _Waiting, traffic: Traffic) -> None:
        for pieces in cut(waiting.message):
            if waiting.written.done():
                return
            await self._write_frame(call, pieces, traffic)
        if not waiting.written.done():
            waiting.written.set_result(None)

    async def _write_frame(self, call: Any, pieces: Sequence[Piece], traffic: Traffic) -> None:
        """The next frame, once there is room and what has to be repeated was."""
        await self._write_again(call, traffic)
        while self._sent.is_full:
            self._taken.clear()
            async with asyncio.timeout(STALL_S):
                await self._taken.wait()
            await self._write_again(call, traffic)
        await self._put(call, self._sent.seal(pieces), traffic)

    async def _write_again(self, call: Any, traffic: Traffic) -> None:
        while self._again:
            await self._put(call, self._again.popleft(), traffic)

    async def _put(self, call: Any, frame: bytes, traffic: Traffic) -> None:
        async with asyncio.timeout(STALL_S):
            await call.write(frame)
        traffic.sent(frame)

    def _encode(self, message: AnyMessage, tensors: Mapping[str, HostArray]) -> Outgoing:
        self._numbers += 1
        return encode(self._numbers, message, tensors)

    @staticmethod
    def _accept_reply(message: AnyMessage, headers: object) -> str:
        return "" if isinstance(message, Hello | Refused) and not headers else "only refusals come back"


async def _status_text(call: Any) -> str:
    code = await call.code()
    return f"{await call.details() or 'the connection ended'} ({code.name.lower()})"
