"""A TCP proxy in the test's own event loop that can be told to misbehave. Knows nothing of what it carries.

`ChaosProxy` listens on loopback and forwards each connection to one target. Each connection has two lanes,
`up` (towards the target) and `down`; what is set on the proxy's own lanes holds for connections to come, what
is set on a connection's lanes for that connection from its next bytes on.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal

Way = Literal["up", "down"]
_CHUNK_BYTES = 64 << 10


@dataclass
class Lane:
    """How bytes of one direction travel."""

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: as fast as it goes."""
    is_black: bool = False
    """What comes is read and thrown away, and the end of the stream is not passed on: nobody hears of it."""
    is_held: bool = False
    """Nothing is read: the sender's window fills up. Wake the lane with `ChaosProxy.changed`."""
    damage: Callable[[bytes], bytes] | None = None


@dataclass
class Connection:
    """One connection through the proxy; `source` dialled, `target` was dialled for it."""

    lanes: dict[Way, Lane]
    source: asyncio.StreamWriter
    target: asyncio.StreamWriter
    n_bytes: dict[Way, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def cut(self) -> None:
        """Reset both ends at once (RST)."""
        for writer in (self.source, self.target):
            raw: Any = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def half_close(self, way: Way) -> None:
        """Tell the receiver of `way` that nothing more comes (FIN); the other lane goes on."""
        writer = self.target if way == "up" else self.source
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()


class ChaosProxy:
    """Use it as an asynchronous context; `address` is what to dial instead of the target."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.lanes: dict[Way, Lane] = {"up": Lane(), "down": Lane()}
        self.connections: list[Connection] = []
        """All so far; those that ended stay."""
        self.accepts = True

    async def __aenter__(self) -> ChaosProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where it listens, `host:port`."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def set(self, *ways: Way, **how: Any) -> None:
        """Set fields of these lanes (none named: both) of all connections, now and to come."""
        for lanes in (self.lanes, *(connection.lanes for connection in self.connections)):
            for way in ways or ("up", "down"):
                for name, value in how.items():
                    assert hasattr(lanes[way], name), name
                    setattr(lanes[way], name, value)
        self.changed()

    def cut_all(self) -> None:
        """Reset every connection."""
        for connection in self.connections:
            connection.cut()

    def changed(self) -> None:
        """Lanes that are held look again. `set` does this by itself."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.accepts:
                await self._carry_both(reader, writer)
        except OSError:
            pass  # the target refused, or an end was reset: so is the other
        finally:
            writer.transport.abort()

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        lanes: dict[Way, Lane] = {way: replace(lane) for way, lane in self.lanes.items()}
        connection = Connection(lanes, writer, target_writer)
        self.connections.append(connection)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(connection, "up", reader, target_writer))
                tasks.create_task(self._carry(connection, "down", target_reader, writer))
        except* OSError:
            # A reset of one end is one of the other, unless that end is not to hear of anything.
            if not any(lane.is_black for lane in connection.lanes.values()):
                connection.cut()
            else:
                await asyncio.Event().wait()
        finally:
            target_writer.transport.abort()

    async def _carry(
        self, connection: Connection, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            line = _DelayLine(connection.lanes[way], writer)
            landing = tasks.create_task(line.land_all())
            while True:
                while connection.lanes[way].is_held:
                    await self._changed.wait()
                data = await reader.read(_CHUNK_BYTES)
                lane = connection.lanes[way]
                if lane.is_black:
                    if not data:
                        await asyncio.Event().wait()
                    continue
                if not data:
                    break
                connection.n_bytes[way] += len(data)
                if lane.bytes_per_s:
                    await asyncio.sleep(len(data) / lane.bytes_per_s)
                await line.put(lane.damage(data) if lane.damage else data, lane.delay_s)
            await line.end()
            await landing
            connection.half_close(way)


class _DelayLine:
    """Bytes under way: each leaves `delay_s` after it came, in order, and holds up nothing behind it."""

    def __init__(self, lane: Lane, writer: asyncio.StreamWriter) -> None:
        self._lane = lane
        self._writer = writer
        self._line: deque[tuple[float, bytes]] = deque()
        self._came = asyncio.Event()
        self._has_ended = False

    async def put(self, data: bytes, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        if not delay_s and not self._line:
            self._writer.write(data)
            await self._writer.drain()
            return
        self._line.append((loop.time() + delay_s, data))
        self._came.set()

    async def end(self) -> None:
        self._has_ended = True
        self._came.set()

    async def land_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._line or not self._has_ended:
            if not self._line:
                self._came.clear()
                await self._came.wait()
                continue
            at, data = self._line[0]
            await asyncio.sleep(max(0.0, at - loop.time()))
            if not self._lane.is_black:
                self._writer.write(data)
                await self._writer.drain()
            self._line.popleft()


def flip_a_bit(at: int) -> Callable[[bytes], bytes]:
    """A damage: flips one bit of byte number `at` of the lane, and of no other."""
    n_before = 0

    def damage(data: bytes) -> bytes:
        nonlocal n_before
        begin, n_before = n_before, n_before + len(data)
        if begin <= at < n_before:
            where = at - begin
            return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
        return data

    return damage
