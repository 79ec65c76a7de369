"""Keeps one session of an agent running: starts its process, again when it dies, and remembers it on disk.

Knows nothing of agents: they hand in where the PNodes are and are told what the session says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from dcnr_app.cluster.local_worker import RestartDelays
from dcnr_app.cluster.private_files import ensure_private_folder, read_private, write_private
from dcnr_app.cluster.runner_lines import (
    RunnerBootstrap,
    RunnerCommand,
    RunnerEvent,
    SessionBegun,
    SessionEnded,
    SessionNoted,
    SessionRequest,
    StopSession,
)
from dcnr_app.cluster.runner_process import RunnerProcess
from dcnr_app.errors import PeerError, RefusedError, StoreError, UnreachableError

_LOG = logging.getLogger(__name__)
_WORDS = "start it again with: dcnr-app session resume {session} --cluster"


class SessionKeeper:
    """At most one session at a time. `make_bootstrap` gives the PNodes as they are at that moment."""

    def __init__(
        self,
        wanted_file: Path,
        make_bootstrap: Callable[[SessionRequest], RunnerBootstrap],
        environment: Mapping[str, str],
        on_event: Callable[[RunnerEvent], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._wanted_file = wanted_file
        self._make_bootstrap = make_bootstrap
        self._environment = environment
        self._on_event = on_event
        self._tasks = tasks
        self._request: SessionRequest | None = None
        self._runner: RunnerProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ended: SessionEnded | None = None
        self._begun = asyncio.Event()
        self.session = ""
        """Id of the session that is kept running; empty when there is none."""

    async def start(self, request: SessionRequest, timeout_s: float = 60.0) -> str:
        """Start a session; returns its id once it is recorded.

        Raises RefusedError if one is running, UnreachableError with the reason if it does not begin.
        """
        if self._keeping is not None and not self._keeping.done():
            raise RefusedError(
                f"session {self.session or '(starting)'} is running here already",
                fix="wait for it, or: dcnr-app session stop latest",
            )
        self.session, self._ended, self._request = "", None, request
        self._begun = asyncio.Event()
        self._keeping = self._tasks.create_task(self._keep())
        waiting = asyncio.ensure_future(self._begun.wait())
        done, _ = await asyncio.wait(
            {waiting, self._keeping}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not self.session:
            why = self._ended.error if self._ended else "" if done else f"it said nothing for {timeout_s:g} s"
            raise UnreachableError("the session did not begin", why=why or "its process ended")
        return self.session

    def resume_wanted(self) -> str:
        """Go on with the session that ran when the agent ended, if there was one; returns its id."""
        if self._keeping is not None and not self._keeping.done():
            return ""
        try:
            raw = read_private(self._wanted_file)
            session = "" if raw is None else msgspec.json.decode(raw, type=str)
        except (StoreError, msgspec.MsgspecError) as error:
            _LOG.warning("wanted_session_unreadable file=%s why=%s", self._wanted_file, error)
            return ""
        if not session:
            return ""
        self._request = SessionRequest(session=session)
        self.session, self._ended = session, None
        self._keeping = self._tasks.create_task(self._keep())
        return session

    async def tell(self, command: RunnerCommand) -> None:
        """Pass a command on to the session's process, if there is one."""
        if self._runner is not None:
            await self._runner.send(command)

    async def stop(self) -> str:
        """Ask the session to stop at the next step boundary. Raises UnreachableError if none runs."""
        if self._keeping is None or self._keeping.done():
            raise UnreachableError("no session runs here", fix="dcnr-app session ls")
        await self.tell(StopSession())
        return self.session

    async def close(self) -> None:
        """End the process; the session stays wanted, and goes on when the agent starts again."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._runner is not None:
            await self._runner.close()

    # ---- keeping

    async def _keep(self) -> None:
        delays = RestartDelays()
        loop = asyncio.get_running_loop()
        while self._request is not None:
            started_s = loop.time()
            how = await self._run_once(self._request)
            if self._ended is not None:
                return
            _LOG.warning("session_process_ended session=%s how=%s", self.session, how)
            delay_s = delays.after((loop.time() - started_s) * 1000.0)
            if not self.session or delay_s is None:
                what = f"the session's process {how}"
                fix = _WORDS.format(session=self.session) if self.session else ""
                self._take(SessionEnded(self.session, "failed", f"{what}. {fix}".strip(), 1))
                return
            self._request = SessionRequest(session=self.session, prompt=self._request.prompt)
            await asyncio.sleep(delay_s)

    async def _run_once(self, request: SessionRequest) -> str:
        """One process from start to end; returns how it ended."""
        try:
            self._runner = await RunnerProcess.start(self._make_bootstrap(request), self._environment)
        except (PeerError, OSError) as error:  # OSError: the system starts no process
            return f"did not start: {error}"
        return f"ended with code {await self._runner.run(self._take)}"

    def _take(self, event: RunnerEvent) -> None:
        match event:
            case SessionBegun(session):
                self.session = session
                self._remember(session)
                self._begun.set()
            case SessionEnded():
                self._ended = event
                self._forget()  # before anybody can see it as a session that should run
            case _:
                pass
        self._on_event(event)

    def _remember(self, session: str) -> None:
        """Write it down; where that cannot be done the session runs all the same, and the person is told."""
        try:
            ensure_private_folder(self._wanted_file.parent)
            write_private(self._wanted_file, msgspec.json.encode(session))
        except StoreError as error:
            _LOG.warning("wanted_session_unwritable file=%s why=%s", self._wanted_file, error)
            self._on_event(SessionNoted(f"it will not go on by itself if this agent ends: {error}"))

    def _forget(self) -> None:
        try:
            self._wanted_file.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("wanted_session_stays file=%s why=%s", self._wanted_file, error)
