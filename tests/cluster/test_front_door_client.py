"""The asking side of a front door: which address is taken, and what is believed of an answer."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster.front_door_client import find_front_door
from dcnr_app.cluster.joining import Target, join_with_code
from dcnr_app.errors import PeerError, RefusedError, UnreachableError
from tests.cluster.joining_scene import HOST, Orchestrator, joiner_at, needs_loopback_range, run


@needs_loopback_range
def test_first_address_that_answers_is_taken_and_the_others_are_no_hindrance(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            with socket.create_server(("127.0.0.4", orchestrator.port)):  # accepts, and never answers
                began_s = time.monotonic()
                hosts = ("127.0.0.4", "127.0.0.5", HOST)
                client, info = await find_front_door(hosts, orchestrator.port)
                await client.close()
            assert (client.host, info.machine) == (HOST, orchestrator.machine.id)
            assert time.monotonic() - began_s < 2.0

    run(test)


@needs_loopback_range
def test_when_no_address_answers_each_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            port = orchestrator.port
        with pytest.raises(UnreachableError, match="none of the machine's addresses") as told:
            await find_front_door(("127.0.0.4", "127.0.0.5"), port)
        assert "127.0.0.4" in told.value.why
        assert "127.0.0.5" in told.value.why
        with pytest.raises(UnreachableError, match=r"nothing answers at 127\.0\.0\.4") as told:
            await find_front_door(("127.0.0.4",), port)
        assert told.value.why == "nothing listens there, or a firewall refuses"

    run(test)


def test_name_that_leads_nowhere_is_said_to_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # no test asks a name server

    async def test() -> None:
        with pytest.raises(UnreachableError) as told:
            await find_front_door(("no-such-machine.invalid",), 1)
        assert told.value.why == "the name leads to no address"

    run(test)


async def served_once(answer: bytes) -> asyncio.Server:
    """A server that answers everything with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, HOST, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 << 20),
        b'HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\n"no"',
    ],
)
def test_what_is_no_front_door_is_said_to_be_none(tmp_path: Path, answer: bytes) -> None:
    async def test() -> None:
        server = await served_once(answer)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(PeerError, match=r"not dcnr-app's front door|answers without end"):
                await join_with_code(Target((HOST,), port), "123-456", joiner_at(tmp_path))

    run(test)


def test_refusal_of_a_stranger_is_shown_without_control_characters(tmp_path: Path) -> None:
    body = msgspec.json.encode({"what": "no\x1b[2J", "why": "x" * 99_999, "fix": "\u202e"})
    answer = b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def test() -> None:
        server = await served_once(answer)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(RefusedError) as told:
                await join_with_code(Target((HOST,), port), "123-456", joiner_at(tmp_path))
        assert (told.value.what, len(told.value.why), told.value.fix) == ("no[2J", 400, "")

    run(test)
