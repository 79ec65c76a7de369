"""Starts this app's own processes (exec, never fork), PNodes above all, and watches them. A child lives no
longer than its stdin pipe. IO."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import psutil

from dcnr_app.errors import DeadlineError, PeerError
from dcnr_app.ids import PNodeId

_START_S = 60.0
_LINE_BYTES = 1 << 16
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
    stays: bool = False
    """Whether it waits for the next session when one ends, instead of ending too."""
    host: str = "127.0.0.1"
    """What it listens on."""
    cores: int = 0
    """How many of the machine's cores its owner lends; 0 for all."""
    memory_bytes: int = 0
    """How much memory its owner lends; 0 for all."""


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

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it (always False on Windows, which has none)."""
        return self._process.returncode is not None and self._process.returncode < 0

    async def ended(self) -> None:
        """Wait for the end."""
        await self._process.wait()

    def how_it_ended(self) -> str:
        """For people: by which signal, or with which exit code."""
        return f"its process {self.pid} {_ending(self._process.returncode)}"

    def hang_up(self) -> None:
        """Close the pipe: the child ends by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        strike(self._process)

    async def close(self) -> None:
        """Hang up and wait; kill the child if it does not end in time."""
        await close_child(self._process, _EXIT_S)


async def open_child(
    command: str, environment: Mapping[str, str], *, line_bytes: int = _LINE_BYTES
) -> asyncio.subprocess.Process:
    """A process of this app that runs `command` with this whole environment, its stdin and stdout piped, in
    lines of at most `line_bytes`. Raises OSError if the system starts none."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dcnr_app",
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=dict(environment),
        limit=line_bytes,
        start_new_session=True,  # the terminal's Ctrl-C is for the parent alone
    )


async def close_child(process: asyncio.subprocess.Process, within_s: float) -> None:
    """Close a child's pipe, at which it ends by itself, and wait; kill it if it does not end in time."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        await kill_child(process)


async def start_worker(bootstrap: Bootstrap, environment: Mapping[str, str]) -> WorkerProcess:
    """Start a PNode process with this whole environment and wait until it listens.

    Raises PeerError if it ends before that or says something else, DeadlineError if it takes over a minute;
    then, and when this is cancelled, no process is left.
    """
    process = await open_child("pnode-process", environment)
    try:
        async with asyncio.timeout(_START_S):
            listening = await _introduce(process, bootstrap)
    except TimeoutError:
        await kill_child(process)
        raise DeadlineError(f"PNode {bootstrap.pnode} did not start within {_START_S:.0f} s") from None
    except BaseException:  # a cancellation too must leave no process
        await kill_child(process)
        raise
    return WorkerProcess(process, bootstrap.pnode, listening)


async def _introduce(process: asyncio.subprocess.Process, bootstrap: Bootstrap) -> Listening:
    if process.stdin is None or process.stdout is None:
        raise PeerError(f"PNode {bootstrap.pnode} has no pipes")
    line = b""
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: its exit code says more
        process.stdin.write(msgspec.json.encode(bootstrap) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    if not line:
        code = await process.wait()
        raise PeerError(f"PNode {bootstrap.pnode} {_ending(code)} before it could be reached")
    try:
        return msgspec.json.decode(line, type=Listening)
    except msgspec.MsgspecError as error:
        raise PeerError(
            f"PNode {bootstrap.pnode} did not say where it listens", why=f"it said {line[:200]!r}: {error}"
        ) from error


def strike(process: asyncio.subprocess.Process) -> None:
    """SIGKILL, unless it is known to have ended.

    Not asyncio's own `kill`: that one polls first, and may so take the exit status of a process that has just
    ended away from the loop's watcher, which then reports 255 and complains on stderr.
    """
    if process.returncode is None:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(process.pid).kill()


async def kill_child(process: asyncio.subprocess.Process) -> None:
    """Kill it and wait for its end, however often this is cancelled: it ends at once, and a group of
    starts that fails cancels each of them twice."""
    strike(process)
    ending = asyncio.ensure_future(process.wait())
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _ending(code: int | None) -> str:
    if code is None:
        return "has not ended"
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
