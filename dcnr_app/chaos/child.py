"""The process of a session under chaos, and the blows it and its workers are dealt from outside. IO."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress

import msgspec
import psutil

from dcnr_app.chaos.lines import Line, SessionOrder
from dcnr_app.cluster.processes import close_child, kill_child, open_child
from dcnr_app.errors import PeerError

_EXIT_S = 10.0
STOP_LINE = b"stop\n"


class SessionChild:
    """One process that runs a session with its workers. `lines` is its life."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, order: SessionOrder, environment: Mapping[str, str]) -> SessionChild:
        """Start it with this whole environment."""
        process = await open_child("chaos-process", environment)
        child = cls(process)
        try:
            await child._tell(msgspec.json.encode(order) + b"\n")
        except BaseException:  # a cancellation too must leave no process
            await kill_child(process)
            raise
        return child

    async def lines(self) -> AsyncIterator[Line]:
        """What it says until it ends, however it does. Raises PeerError for a line that is none."""
        while self._process.stdout is not None and (line := await self._process.stdout.readline()):
            try:
                yield msgspec.json.decode(line, type=Line)
            except msgspec.MsgspecError as error:
                if not line.endswith(b"\n"):
                    break  # it was killed in the middle of a line
                raise PeerError(
                    f"process {self.pid} said something else", why=f"{line[:200]!r}: {error}"
                ) from error
        await self._process.wait()

    async def stop(self) -> None:
        """Ask for a stop with a checkpoint."""
        await self._tell(STOP_LINE)

    def kill(self) -> None:
        """End it at once; its workers end with it."""
        if self._process.returncode is None:
            strike(family(self.pid)[:1], "kill")

    async def close(self) -> None:
        """Close its pipe, at which it ends at once, and wait; kill it, and what it has started, if not."""
        left = family(self.pid) if self._process.returncode is None else []
        try:
            await close_child(self._process, _EXIT_S)
        finally:
            strike(left, "kill")  # one that stands still does not see that its pipe was closed

    async def _tell(self, line: bytes) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: `lines` says so
                self._process.stdin.write(line)
                await self._process.stdin.drain()


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def strike(processes: Iterable[psutil.Process], blow: str) -> None:
    """`kill`, `suspend` or `resume` each of them that is still there; psutil tells a pid's next owner."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            getattr(process, blow)()
