"""Sends messages to peers, each peer by its own task, so that a slow one delays no other. IO."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.cluster.transport import HostArray, PeerTransport
from dcnr_app.errors import PeerError
from dcnr_app.ids import PNodeId

_Item = tuple[AnyMessage, Mapping[str, HostArray]]


class Outbox:
    """One queue and one task per peer, in the owner's TaskGroup.

    The queues need no limit of their own: a Plan bounds how many tensors a step can have under way.
    """

    def __init__(
        self, transport: PeerTransport, tasks: asyncio.TaskGroup, on_failure: Callable[[PNodeId, str], None]
    ) -> None:
        self._transport = transport
        self._tasks = tasks
        self._on_failure = on_failure
        self._queues: dict[PNodeId, asyncio.Queue[_Item | None]] = {}
        self._senders: list[asyncio.Task[None]] = []
        self._is_closed = False

    def post(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Queue a message; returns at once. After `flush` or `cancel` nothing is sent any more."""
        if self._is_closed:
            return
        if to not in self._queues:
            self._queues[to] = asyncio.Queue()
            self._senders.append(self._tasks.create_task(self._send_all(to, self._queues[to])))
        self._queues[to].put_nowait((message, tensors))

    async def _send_all(self, to: PNodeId, queue: asyncio.Queue[_Item | None]) -> None:
        while True:
            item = await queue.get()
            if item is None:
                return
            try:
                await self._transport.send(to, *item)
            except PeerError as error:
                while not queue.empty():  # what was meant for the lost process is not for its successor
                    if queue.get_nowait() is None:
                        return
                self._on_failure(to, error.why or error.what)

    async def flush(self, timeout_s: float) -> None:
        """Send what is queued, then end; gives up after `timeout_s` seconds."""
        self._is_closed = True
        for queue in self._queues.values():
            queue.put_nowait(None)
        if self._senders:
            await asyncio.wait(self._senders, timeout=timeout_s)
        self.cancel()

    def cancel(self) -> None:
        """End now; what is queued is not sent."""
        self._is_closed = True
        for sender in self._senders:
            sender.cancel()
