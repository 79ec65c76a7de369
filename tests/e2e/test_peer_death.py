"""A peer process that is killed: the other end notices within a second, and survives."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
import time

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


def test_killed_peer_is_noticed_within_a_second_once() -> None:
    async def test() -> None:
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
            them = Member(
                pnode=B, address=their_address, fingerprint=fingerprint(theirs.cert_pem), role="worker"
            )
            transport.set_members([me, them])
            await transport.send(B, applied(1), {})
            await box.until_messages(1)
            begin = time.monotonic()
            process.send_signal(signal.SIGKILL)
            await box.until_lost()
            assert time.monotonic() - begin < 1.0
            assert [peer for peer, _ in box.losses] == [B]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await transport.close()

    run(test)
