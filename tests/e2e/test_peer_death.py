"""A peer process that is killed or falls silent: the other end notices in time, once, and survives."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.transport import Member
from tests.contracts.transport import A, B, Box, applied, run

pytestmark = pytest.mark.e2e

PEER = textwrap.dedent(
    """
    import asyncio, json, sys
    import msgspec
    from dcnr_app.cluster.grpc_transport import GrpcTransport
    from dcnr_app.cluster.identity import Credentials
    from dcnr_app.cluster.transport import Member
    from tests.contracts.transport import A, B, Box, applied

    async def main():
        facts = json.loads(sys.stdin.readline())
        transport = GrpcTransport(B, msgspec.convert(facts["credentials"], Credentials), "home")
        box = Box()
        address = await transport.start(box)
        transport.set_members([msgspec.convert(facts["member"], Member)])
        print(address, flush=True)
        await box.until_messages(1)
        await transport.send(A, applied(2), {})
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


@asynccontextmanager
async def peer_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, Box]]:
    """B as a process of its own that has a link with A, whose box is given."""
    authority = ClusterAuthority.create("home")
    mine, theirs = (authority.issue(pnode, "home", "worker") for pnode in (A, B))
    box, transport = Box(), GrpcTransport(A, mine, "home")
    address = await transport.start(box)
    me = Member(pnode=A, address=address, fingerprint=fingerprint(mine.cert_pem), role="worker")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        facts = {"credentials": msgspec.to_builtins(theirs), "member": msgspec.to_builtins(me)}
        process.stdin.write(json.dumps(facts).encode() + b"\n")
        their_address = (await process.stdout.readline()).decode().strip()
        print_ = fingerprint(theirs.cert_pem)
        transport.set_members([me, Member(pnode=B, address=their_address, fingerprint=print_, role="worker")])
        await transport.send(B, applied(1), {})
        await box.until_messages(1)
        yield process, box
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await transport.close()


def test_killed_peer_is_noticed_within_a_second_once() -> None:
    async def test() -> None:
        async with peer_process() as (process, box):
            async with asyncio.timeout(1):
                process.kill()
                await box.until_lost()
            await process.wait()
            assert [peer for peer, _ in box.losses] == [B]

    run(test)


def test_silent_peer_is_noticed_within_five_seconds_and_a_pause_of_three_is_forgiven() -> None:
    async def test() -> None:
        async with peer_process() as (process, box):
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await box.until_lost()
            process.send_signal(signal.SIGCONT)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await box.until_lost()
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(5):
                await box.until_lost()
            assert [peer for peer, _ in box.losses] == [B]

    run(test)
