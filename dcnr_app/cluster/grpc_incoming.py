"""One incoming gRPC stream of one admitted peer: greet, read messages, answer what is refused.

Knows no membership and no other stream. What arrives is handed on at once: a reader never waits for a
consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc.aio

from dcnr_app.cluster.checked_frames import ArrivingFrames, Piece, seal
from dcnr_app.cluster.codec import Refusal, cut, encode, frames
from dcnr_app.cluster.greeting import hello, mismatch
from dcnr_app.cluster.grpc_options import GREETING_TIMEOUT_S, STALL_S
from dcnr_app.cluster.grpc_streams import DEAD_STREAM, Traffic
from dcnr_app.cluster.messages import AnyMessage, Hello, Refused, TensorHeader
from dcnr_app.cluster.reassembly import Arrival, Reassembler
from dcnr_app.cluster.transport import Receiver
from dcnr_app.errors import PeerError, RefusedError
from dcnr_app.failpoints import Failpoints
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
_MAX_REASON_CHARACTERS = 1_000


class IncomingStream:
    """Lives in the task of its gRPC handler, which calls `greet` and then `serve`."""

    def __init__(
        self, own: PNodeId, peer: PNodeId, context: Any, traffic: Traffic, failpoints: Failpoints
    ) -> None:
        self.peer = peer
        self._failpoints = failpoints
        self._own = own
        self._context = context
        self._traffic = traffic
        self._task = asyncio.current_task()
        self._stopped = ""
        self._numbers = 0

    async def greet(self) -> None:
        """Exchange greetings. Raises RefusedError with a reason that names both versions."""
        greetings = Reassembler(lambda message, _: "" if isinstance(message, Hello) else "no greeting")
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                arrivals: Sequence[Arrival | Refusal] = ()
                while not arrivals:
                    arrivals = greetings.feed(await self._read())
        except TimeoutError as error:
            raise RefusedError(f"no greeting within {GREETING_TIMEOUT_S:g} s") from error
        first = arrivals[0]
        if isinstance(first, Refusal):
            raise RefusedError(f"the stream must begin with a greeting: {first.reason}")
        reason = mismatch(first.message, self.peer) if isinstance(first.message, Hello) else "no greeting"
        if reason:
            raise RefusedError(reason)
        for frame in frames(encode(0, hello(self._own), {})):
            await self._put(frame)

    async def serve(self, receiver: Receiver) -> None:
        """Hand on what arrives. Ends only by raising: PeerError when the peer ended the stream, RefusedError
        when its frames are beyond repair, CancelledError when it was reset or after `stop`."""
        reassembler = Reassembler(partial(self._check, receiver))
        arriving = ArrivingFrames()
        while True:
            frame = self._failpoints.hit_with("transport.receive", await self._read())
            data = arriving.take(frame)
            for arrival in reassembler.feed(data) if data is not None else ():
                if isinstance(arrival, Refusal):
                    await self._refuse(arrival)
                else:
                    receiver.deliver(self.peer, arrival.message, arrival.tensors)
            notice = arriving.notice()
            if notice:
                await self._write([notice])

    async def _refuse(self, refusal: Refusal) -> None:
        reason = refusal.reason[:_MAX_REASON_CHARACTERS]
        _LOG.info("message_refused peer=%s tag=%s why=%s", self.peer, refusal.tag, reason)
        for pieces in cut(encode(0, Refused(reason=reason, tag=refusal.tag), {})):
            await self._write(pieces)

    def stop(self, reason: str) -> None:
        """End the stream from this side: cancels the handler's task, which is to tell the peer."""
        if not self._stopped and self._task is not None:
            self._stopped = reason
            self._task.cancel()

    def why_stopped(self) -> str:
        """To be called by the handler that was cancelled: the reason if it was by `stop`, whose
        cancellation is then over, or an empty text if the peer was reset."""
        if self._stopped and self._task is not None:
            self._task.uncancel()
        return self._stopped

    async def done(self) -> None:
        """Wait until the handler has returned."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _read(self) -> bytes:
        frame = await self._context.read()
        if frame is grpc.aio.EOF:
            raise PeerError("the peer ended the stream")
        self._traffic.received(frame)
        return bytes(frame)

    async def _write(self, pieces: Sequence[Piece]) -> None:
        frame = seal(self._numbers, pieces)
        self._numbers += 1
        await self._put(frame)

    async def _put(self, frame: bytes) -> None:
        try:
            async with asyncio.timeout(STALL_S):
                await self._context.write(frame)
        except DEAD_STREAM as error:
            raise PeerError("the peer ended the stream") from error
        except TimeoutError as error:
            raise RefusedError(f"it took no answer for {STALL_S:g} s") from error
        self._traffic.sent(frame)

    def _check(self, receiver: Receiver, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        if isinstance(message, Hello):
            return "a greeting only opens a stream"
        return receiver.check(self.peer, message, headers)
