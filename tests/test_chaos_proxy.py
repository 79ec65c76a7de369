"""The chaos proxy does what it is told: tests of the tool, with a plain echo server behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos_proxy import ChaosProxy, Connection, flip_a_bit
from tests.contracts.transport import run

_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[ChaosProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"<end>")
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, ChaosProxy(f"127.0.0.1:{port}") as proxy:
        yield proxy


@asynccontextmanager
async def dialled(proxy: ChaosProxy) -> AsyncIterator[_Pair]:
    host, _, port = proxy.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def said(pair: _Pair, text: bytes) -> Connection | None:
    """Send and wait for the echo."""
    pair[1].write(text)
    assert await pair[0].readexactly(len(text)) == text
    return None


async def silence(pair: _Pair, text: bytes = b"") -> None:
    """Nothing comes within 50 ms, not even an end."""
    pair[1].write(text)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pair[0].read(1)


def test_bytes_pass_both_ways_and_are_counted() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"x" * 300_000)
            assert proxy.connections[0].n_bytes == {"up": 300_000, "down": 300_000}

    run(test)


def test_delay_holds_back_and_delays_overlap() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy:
            proxy.set(delay_s=0.05)
            async with dialled(proxy) as pair:
                begin = asyncio.get_running_loop().time()
                for _ in range(10):
                    pair[1].write(b"ab")
                    await asyncio.sleep(0)
                assert await pair[0].readexactly(20) == b"ab" * 10
                assert 0.1 <= asyncio.get_running_loop().time() - begin < 0.5

    run(test)


def test_throttle_slows_down() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.set("up", bytes_per_s=1_000_000)
            begin = asyncio.get_running_loop().time()
            await said(pair, b"x" * 100_000)
            assert asyncio.get_running_loop().time() - begin >= 0.1

    run(test)


def test_cut_resets_both_ends() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.cut_all()
            with pytest.raises(ConnectionResetError):
                await pair[0].read(1)

    run(test)


def test_half_close_ends_one_way_and_the_other_goes_on() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.connections[0].half_close("up")
            assert await pair[0].read() == b"<end>"

    run(test)


def test_black_hole_up_is_silent_at_both_ends() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.set("up", is_black=True)
            await silence(pair, b"lost")
            proxy.set("up", is_black=False)
            await said(pair, b"heard")

    run(test)


def test_black_hole_down_lets_the_target_hear() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.set("down", is_black=True)
            await silence(pair, b"heard but not answered")
            assert proxy.connections[0].n_bytes["up"] == 23

    run(test)


def test_black_hole_hides_that_the_target_went_away() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.set(is_black=True)
            proxy.connections[0].target.transport.abort()
            await silence(pair)

    run(test)


def test_held_lane_reads_nothing_until_it_is_let_go() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as pair:
            await said(pair, b"a")
            proxy.set("up", is_held=True)
            # Bytes that were being waited for when it was held still pass.
            pair[1].write(b"b")
            assert await pair[0].readexactly(1) == b"b"
            await silence(pair, b"c")
            proxy.set("up", is_held=False)
            assert await pair[0].readexactly(1) == b"c"

    run(test)


def test_one_connection_is_told_apart_from_another() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy, dialled(proxy) as one, dialled(proxy) as other:
            await said(one, b"a")
            await said(other, b"b")
            proxy.connections[0].lanes["up"].is_black = True
            await silence(one, b"lost")
            await said(other, b"heard")

    run(test)


def test_damage_flips_one_bit_of_one_byte() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy:
            proxy.set("up", damage=flip_a_bit(5))
            async with dialled(proxy) as pair:
                pair[1].write(bytes(4))
                assert await pair[0].readexactly(4) == bytes(4)
                pair[1].write(bytes(4))
                assert await pair[0].readexactly(4) == b"\0\1\0\0"

    run(test)


def test_proxy_that_does_not_accept_ends_what_dials() -> None:
    async def test() -> None:
        async with echo_behind_proxy() as proxy:
            proxy.accepts = False
            async with dialled(proxy) as pair:
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await pair[0].readexactly(1)

    run(test)
