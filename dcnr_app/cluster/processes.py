"""Starts PNode processes (exec, never fork) and watches them. A child lives no longer than its stdin pipe.
IO."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

import msgspec

from dcnr_app.errors import DeadlineError, PeerError
from dcnr_app.ids import PNodeId

_START_S = 60.0
_EXIT_S = 2.0


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """What a PNode process reads as the first line of its stdin. Keys travel here only: never in arguments
    or files."""

    pnode: PNodeId
    cluster: str
    certificate_pem: str
    key_pem: str
    authority_pem: str
    orchestrator_fingerprint: str
    threads: int


class Listening(msgspec.Struct, frozen=True):
    """What a PNode process answers, as one line on stdout, once it can be dialled."""

    address: str
    pid: int


class WorkerProcess:
    """One PNode process."""

    def __init__(self, process: asyncio.subprocess.Process, pnode: PNodeId, listening: Listening) -> None:
        self._process = process
        self.pnode = pnode
        self.address = listening.address
        self.pid = listening.pid

    async def watch(self, on_exit: Callable[[PNodeId, str], None]) -> None:
        """Tell when the process ends."""
        code = await self._process.wait()
        on_exit(self.pnode, f"its process {self.pid} ended with code {code}")

    async def close(self) -> None:
        """Close the pipe, which ends the child; kill it if it does not end in time."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_EXIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_worker(bootstrap: Bootstrap, environment: Mapping[str, str]) -> WorkerProcess:
    """Start a PNode process with this whole environment and wait until it listens.

    Raises PeerError if it ends before that, DeadlineError if it takes over a minute.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dcnr_app",
        "pnode-process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,  # the terminal's Ctrl-C is for the orchestrator alone
    )
    if process.stdin is None or process.stdout is None:
        raise PeerError(f"PNode {bootstrap.pnode} has no pipes")
    process.stdin.write(msgspec.json.encode(bootstrap) + b"\n")
    await process.stdin.drain()
    try:
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DeadlineError(f"PNode {bootstrap.pnode} did not start within {_START_S:.0f} s") from None
    if not line:
        code = await process.wait()
        raise PeerError(f"PNode {bootstrap.pnode} ended with code {code} before it could be reached")
    return WorkerProcess(process, bootstrap.pnode, msgspec.json.decode(line, type=Listening))
