"""The process that runs a session for an agent: exec, lines on its stdin, events on its stdout. IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from dcnr_app.cluster.processes import close_child, kill_child, open_child
from dcnr_app.cluster.runner_lines import RunnerBootstrap, RunnerCommand, RunnerEvent
from dcnr_app.errors import PeerError

_LOG = logging.getLogger(__name__)
_LINE_BYTES = 16 << 20  # a plan of a large network is one line
_EXIT_S = 8.0


class RunnerProcess:
    """One process of a session. `run` is its life; `send` may be called meanwhile."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, bootstrap: RunnerBootstrap, environment: Mapping[str, str]) -> RunnerProcess:
        """Start it and tell it what to do. Raises PeerError if it ends at once."""
        process = await open_child("session-process", environment, line_bytes=_LINE_BYTES)
        runner = cls(process)
        try:
            await runner._write(msgspec.json.encode(bootstrap))
        except (BrokenPipeError, ConnectionResetError) as error:
            code = await process.wait()
            raise PeerError(f"the session's process ended at once with code {code}") from error
        except BaseException:  # a cancellation too must leave no process
            await kill_child(process)
            raise
        return runner

    async def run(self, on_event: Callable[[RunnerEvent], None]) -> int:
        """Hand on what it says until it ends; returns its exit code (negative: the signal that ended it)."""
        stdout = self._process.stdout
        while stdout is not None:
            line = await stdout.readline()
            if not line:
                break
            try:
                event = msgspec.json.decode(line, type=RunnerEvent)
            except msgspec.MsgspecError as error:
                _LOG.warning("runner_said_something_else line=%r why=%s", line[:200], error)
                continue
            on_event(event)
        return await self._process.wait()

    async def send(self, command: RunnerCommand) -> None:
        """Tell it; a process that has ended is told nothing."""
        with suppress(BrokenPipeError, ConnectionResetError):
            await self._write(msgspec.json.encode(command))

    async def close(self) -> None:
        """Close its pipe, at which it ends at once, and wait; kill it if it does not."""
        await close_child(self._process, _EXIT_S)

    async def _write(self, line: bytes) -> None:
        if self._process.stdin is None:
            raise PeerError("the session's process has no pipe")
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()
