"""Strangers at the front door: what they are answered, and how little they can hold."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dcnr_app.cluster.connection_gate import GateSettings
from dcnr_app.cluster.front_door import FrontDoor, FrontDoorSettings
from dcnr_app.cluster.front_door_client import FrontDoorClient
from dcnr_app.cluster.joining import join_with_code
from dcnr_app.cluster.pairing_messages import MAX_BODY_BYTES
from dcnr_app.cluster.rate_limit import RateSettings
from dcnr_app.errors import UserError
from tests.cluster.joining_scene import HOST, QUICK, Orchestrator, joiner_at, needs_loopback_range, run

ATTACKER = "127.0.0.2"  # another source address on loopback
POSTS = (
    "/v1/pairing/begin",
    "/v1/pairing/reveal",
    "/v1/pairing/verdict",
    "/v1/pairing/ask",
    "/v1/code/share",
    "/v1/code/proof",
)
JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def session(port: int) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{HOST}:{port}") as opened:
        yield opened


async def ask(opened: aiohttp.ClientSession, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with opened.request(method, path, **more) as answer:
        assert answer.content_type == "application/json"
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
        return answer.status, msgspec.json.decode(await answer.read())


async def raw(port: int, data: bytes, source: str = HOST) -> bytes:
    """All that is answered to these bytes until the connection ends."""
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_info_says_who_is_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator, FrontDoorClient(HOST, orchestrator.port) as client:
            assert await client.info() == orchestrator.info()

    run(test)


@pytest.mark.parametrize("path", POSTS)
def test_malformed_bodies_are_refused_in_words_on_every_route(tmp_path: Path, path: str) -> None:
    bodies = [b"", b"{", b"[]", b"null", b'{"pairing": 7}', b"\xff\xfe", b"[" * 60_000, b'{"a":' * 9_000]

    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator, session(orchestrator.port) as opened:
            for body in bodies:
                status, told = await ask(opened, "POST", path, data=body, headers=JSON)
                assert status == 400
                assert told["what"] == "the request is malformed"
                assert "Traceback" not in str(told)

    run(test)


@pytest.mark.parametrize("path", POSTS)
def test_only_json_posts_from_programs_are_taken(tmp_path: Path, path: str) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator, session(orchestrator.port) as opened:
            for kind in (
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
            ):
                headers = {"Content-Type": kind}
                assert (await ask(opened, "POST", path, data=b"{}", headers=headers))[0] == 415
            packed = JSON | {"Content-Encoding": "gzip"}
            assert (await ask(opened, "POST", path, data=b"{}", headers=packed))[0] == 415
            for web in ({"Origin": "null"}, {"Origin": "http://a"}, {"Sec-Fetch-Site": "same-origin"}):
                assert (await ask(opened, "POST", path, data=b"{}", headers=JSON | web))[0] == 403
            for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
                assert (await ask(opened, method, path))[0] == 405

    run(test)


def test_unknown_paths_are_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator, session(orchestrator.port) as opened:
            for path in ("/", "/v1", "/v1/info/", "/v1/pairing/../info", "/%2e%2e/etc/passwd", "/v1/info%00"):
                status, _ = await ask(opened, "POST", path, data=b"{}", headers=JSON)
                assert status in (404, 405), path
            assert (await ask(opened, "POST", "/v1/info", data=b"{}", headers=JSON))[0] == 405

    run(test)


def test_body_that_is_too_long_is_refused_unread_whether_it_says_so_or_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator, session(orchestrator.port) as opened:
            long = b"x" * (MAX_BODY_BYTES + 1)
            assert (await ask(opened, "POST", POSTS[0], data=long, headers=JSON))[0] == 413

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(3):
                    yield b"x" * 30_000

            assert (await ask(opened, "POST", POSTS[0], data=chunks(), headers=JSON))[0] == 413
            head = b"POST /v1/pairing/begin HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            answer = await raw(orchestrator.port, head + b"Content-Length: 1000000000\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 413 ")

    run(test)


def test_garbage_and_endless_heads_get_no_traceback(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            for data in (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS hello
                b"\x00" * 2000 + b"\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
                b"POST /v1/pairing/begin HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ):
                answer = await raw(orchestrator.port, data)
                assert b"Traceback" not in answer
                assert b'File "' not in answer
                assert not answer.startswith(b"HTTP/1.1 2")
            async with FrontDoorClient(HOST, orchestrator.port) as client:
                await client.info()

    run(test)


@needs_loopback_range
def test_too_many_requests_of_one_address_are_refused_and_another_is_served(tmp_path: Path) -> None:
    settings = FrontDoorSettings(rate=RateSettings(per_s=0.001, burst=3))

    async def test() -> None:
        async with Orchestrator(tmp_path, settings=settings) as orchestrator:
            request = b"GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n"
            answers = [await raw(orchestrator.port, request, ATTACKER) for _ in range(4)]
            assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"200", b"429"]
            assert (await raw(orchestrator.port, request)).split()[1] == b"200"

    run(test)


async def open_idle(port: int, source: str) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
    writer.write(b"POST /v1/pairing/begin HTTP/1.1\r\nX-Slow: ")  # and never a whole head
    return writer


@needs_loopback_range
def test_five_hundred_half_open_connections_do_not_keep_a_machine_from_joining(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            code = orchestrator.registrar.new_code().secret
            held = [await open_idle(orchestrator.port, ATTACKER) for _ in range(500)]
            assert orchestrator.door.n_connections <= 8
            began_s = time.monotonic()
            accepted = await join_with_code(orchestrator.target, code, joiner_at(tmp_path))
            assert time.monotonic() - began_s < 2.0
            assert orchestrator.registrar.membership.find(accepted.machine) is not None
            for writer in held:
                writer.transport.abort()

    run(test)


@needs_loopback_range
def test_connection_that_never_asks_is_ended_and_gives_its_place_back(tmp_path: Path) -> None:
    gate = GateSettings(per_address=2, in_all=4, life_s=0.2)
    settings = FrontDoorSettings(rate=QUICK, gate=gate)

    async def test() -> None:
        async with Orchestrator(tmp_path, settings=settings) as orchestrator:
            slow = b"GET /v1/info HTTP/1.1\r\n"
            began_s = time.monotonic()
            answers = await asyncio.gather(*(raw(orchestrator.port, slow, ATTACKER) for _ in range(6)))
            assert answers == [b""] * 6
            assert time.monotonic() - began_s < 5.0
            assert orchestrator.door.n_connections == 0
            whole = await raw(orchestrator.port, slow + b"Host: x\r\n\r\n", ATTACKER)
            assert whole.startswith(b"HTTP/1.1 200 ")

    run(test)


@needs_loopback_range
def test_no_more_connections_in_all_than_the_gate_lets_in(tmp_path: Path) -> None:
    gate = GateSettings(per_address=2, in_all=4, life_s=30.0)

    async def test() -> None:
        async with Orchestrator(tmp_path, settings=FrontDoorSettings(rate=QUICK, gate=gate)) as orchestrator:
            held = [
                await open_idle(orchestrator.port, f"127.0.0.{n}") for n in range(2, 12) for _ in (1, 2, 3)
            ]
            assert await raw(orchestrator.port, b"GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n") == b""
            assert orchestrator.door.n_connections == 4
            for writer in held:
                writer.transport.abort()

    run(test)


@needs_loopback_range
def test_port_that_is_taken_is_a_clear_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            settings = FrontDoorSettings(hosts=(ATTACKER, HOST), port=orchestrator.port)
            second = FrontDoor(settings, orchestrator, orchestrator.clock)
            with pytest.raises(UserError, match=f"cannot listen on {HOST} port {orchestrator.port}"):
                await second.start()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((ATTACKER, orchestrator.port), timeout=5)

    run(test)


@needs_loopback_range
def test_all_hosts_are_served_on_one_port(tmp_path: Path) -> None:
    settings = FrontDoorSettings(hosts=(HOST, "127.0.0.3"), rate=QUICK)

    async def test() -> None:
        async with Orchestrator(tmp_path, settings=settings) as orchestrator:
            for host in settings.hosts:
                async with FrontDoorClient(host, orchestrator.port) as client:
                    assert (await client.info()).machine == orchestrator.machine.id

    run(test)


def test_ipv6_and_ipv4_are_served_side_by_side(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    settings = FrontDoorSettings(hosts=("::1", HOST), rate=QUICK)

    async def test() -> None:
        async with Orchestrator(tmp_path, settings=settings) as orchestrator:
            for host in settings.hosts:
                async with FrontDoorClient(host, orchestrator.port) as client:
                    assert (await client.info()).machine == orchestrator.machine.id

    run(test)
