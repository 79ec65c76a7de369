"""One incoming gRPC stream of one admitted peer: greet, read messages, answer what is refused.

Knows no membership and no other stream. What arrives is handed on at once: a reader never waits for a
consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc.aio

from dcnr_app.cluster.codec import Refusal, encode, frames
from dcnr_app.cluster.greeting import hello, mismatch
from dcnr_app.cluster.grpc_options import GREETING_TIMEOUT_S
from dcnr_app.cluster.grpc_streams import DEAD_STREAM, Traffic
from dcnr_app.cluster.messages import AnyMessage, Hello, Refused, TensorHeader
from dcnr_app.cluster.reassembly import Arrival, Reassembler
from dcnr_app.cluster.transport import Receiver
from dcnr_app.errors import PeerError, RefusedError
from dcnr_app.ids import PNodeId

_MAX_REASON_CHARACTERS = 1_000


class IncomingStream:
    """Lives in the task of its gRPC handler, which calls `greet` and then `serve`."""

    def __init__(self, own: PNodeId, peer: PNodeId, context: Any, traffic: Traffic) -> None:
        self.peer = peer
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
        await self._write(hello(self._own))

    async def serve(self, receiver: Receiver) -> None:
        """Hand on what arrives. Ends only by raising: PeerError when the peer ended the stream,
        CancelledError when it was reset or after `stop`."""
        reassembler = Reassembler(partial(self._check, receiver))
        while True:
            for arrival in reassembler.feed(await self._read()):
                if isinstance(arrival, Refusal):
                    reason = arrival.reason[:_MAX_REASON_CHARACTERS]
                    await self._write(Refused(reason=reason, tag=arrival.tag))
                else:
                    receiver.deliver(self.peer, arrival.message, arrival.tensors)

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

    async def _write(self, message: AnyMessage) -> None:
        self._numbers += 1
        try:
            for frame in frames(encode(self._numbers, message, {})):
                await self._context.write(frame)
                self._traffic.sent(frame)
        except DEAD_STREAM as error:
            raise PeerError("the peer ended the stream") from error

    def _check(self, receiver: Receiver, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        if isinstance(message, Hello):
            return "a greeting only opens a stream"
        return receiver.check(self.peer, message, headers)
