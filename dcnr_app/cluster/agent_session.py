"""The session that an orchestrator's agent runs: what is known of it, its PNodes as they come and go. IO."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from dcnr_app.cluster.agent_facts import device_of
from dcnr_app.cluster.agent_messages import RESTING, PNodeReport
from dcnr_app.cluster.agent_state import Offered
from dcnr_app.cluster.cluster_files import OwnCluster
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.runner_lines import (
    DrainPNode,
    PNodeDrained,
    PNodeEvicted,
    PNodeGone,
    PNodeJoined,
    RunnerBootstrap,
    RunnerEvent,
    SessionBegun,
    SessionEnded,
    SessionNoted,
    SessionPlanned,
    SessionRequest,
    SessionStepped,
)
from dcnr_app.cluster.session_keeper import SessionKeeper
from dcnr_app.errors import InvariantError, UnreachableError
from dcnr_app.ids import PNodeId

_LINES = 50


class SessionState(msgspec.Struct):
    """What is known of the session that runs, or ran last."""

    session: str = ""
    status: str = "none"
    network: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    generation: int = 0
    assignment: Mapping[str, PNodeId] = {}
    lines: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_LINES))
    error: str = ""
    exit_code: int = 0


class AgentSession:
    """Runs at most one session on the PNodes that `listening` names; `hosts` are this machine's addresses."""

    def __init__(
        self,
        own: OwnCluster,
        wanted_file: Path,
        environment: Mapping[str, str],
        tasks: asyncio.TaskGroup,
        listening: Callable[[], Mapping[PNodeId, PNodeReport]],
        hosts: Callable[[], tuple[str, ...]],
    ) -> None:
        self._own = own
        self._listening = listening
        self._hosts = hosts
        self._offered = Offered()
        self._draining: set[PNodeId] = set()
        self._resting: set[PNodeId] = set()
        self._drained = asyncio.Event()
        self._keeper = SessionKeeper(wanted_file, self._bootstrap, environment, self._take, tasks)
        self._has_looked = False
        self.state = SessionState()

    @property
    def is_running(self) -> bool:
        """Whether a session runs."""
        return self.state.status in ("starting", "running")

    async def start(self, request: SessionRequest) -> SessionState:
        """Start a session. Raises RefusedError if one runs, UnreachableError if it does not begin."""
        if not self.is_running:
            self.state = SessionState(status="starting")
        await self._keeper.start(request)
        return self.state

    async def stop(self) -> SessionState:
        """Ask it to stop at the next step boundary. Raises UnreachableError if none runs."""
        await self._keeper.stop()
        return self.state

    def resume_wanted(self) -> str:
        """Once there are PNodes, go on with the session that ran when the agent ended, if one did; returns
        its id. Later sessions are kept running anyway: it is looked for once."""
        if self._has_looked or self.is_running or not self._available():
            return ""
        self._has_looked = True
        session = self._keeper.resume_wanted()
        if session:
            self.state = SessionState(session=session, status="running")
        return session

    async def close(self) -> None:
        """End the session's process; it goes on when the agent starts again."""
        await self._keeper.close()

    # ---- PNodes that come and go

    async def tell_news(self) -> Mapping[PNodeId, int]:
        """Offer the session the PNodes that are new; returns the processes that must end, by PNode."""
        if not self.is_running:
            return {}
        await self._rest_and_wake()
        for report in self._offered.news(self._available()):
            await self._keeper.tell(PNodeJoined(_address(report), device_of(report)))
        return self._offered.to_restart()

    async def _rest_and_wake(self) -> None:
        """PNodes whose owner wants them to rest give up what they hold; later they are offered again."""
        resting = {pnode for pnode, report in self._listening().items() if report.state == RESTING}
        for pnode in resting - self._resting:
            await self._keeper.tell(DrainPNode(pnode))
        self._resting = resting

    async def withdraw(self, pnode: PNodeId, reason: str) -> None:
        """A PNode is gone for good."""
        self._offered.withdrawn(pnode)
        await self._keeper.tell(PNodeGone(pnode, reason))

    async def drain(self, pnodes: tuple[PNodeId, ...], timeout_s: float) -> None:
        """Move what these PNodes hold to others; they are not used any more. Raises UnreachableError if that
        takes too long: they stay drained as soon as it is done."""
        self._draining |= set(pnodes)
        if not self.is_running:
            return
        for pnode in pnodes:
            await self._keeper.tell(DrainPNode(pnode))
        waiting = set(pnodes) & set(self.state.assignment.values())
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_running and waiting & set(self.state.assignment.values()):
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            raise UnreachableError(
                f"{', '.join(sorted(waiting))} still holds VNodes after {timeout_s:.0f} s",
                why="they move at a step boundary; the request stands",
            ) from None

    def _available(self) -> dict[PNodeId, PNodeReport]:
        return {
            pnode: report
            for pnode, report in self._listening().items()
            if pnode not in self._draining and report.state != RESTING
        }

    def _bootstrap(self, request: SessionRequest) -> RunnerBootstrap:
        runner = self._own.runner
        if runner is None:
            raise InvariantError("only an orchestrator runs sessions")
        available = self._available()
        self._offered.begin(available)
        return RunnerBootstrap(
            cluster=self._own.cluster,
            certificate_pem=runner.cert_pem.decode(),
            key_pem=runner.key_pem.decode(),
            authority_pem=runner.ca_pem.decode(),
            hosts=self._hosts(),
            members=tuple(_address(report) for report in available.values()),
            devices=tuple(device for report in available.values() if (device := device_of(report))),
            request=request,
        )

    def _take(self, event: RunnerEvent) -> None:
        state = self.state
        match event:
            case SessionBegun(session, network, steps):
                state.session, state.network, state.steps = session, network, steps
                state.status = "running"
            case SessionPlanned(generation, step, assignment):
                state.generation, state.assignment = generation, assignment
                state.lines.append(f"generation {generation} goes on after step {step}")
                self._drained.set()
            case SessionStepped(step, loss):
                state.step, state.loss = step, loss
            case SessionNoted(text):
                state.lines.append(text)
            case PNodeEvicted(pnode, reason):
                self._offered.evicted(pnode)
                state.lines.append(f"{pnode} was given up: {reason}")
            case PNodeDrained(pnode):
                self._offered.withdrawn(pnode)
                self._drained.set()
            case SessionEnded():
                state.status, state.error, state.exit_code = event.status, event.error, event.exit_code
                self._drained.set()


def _address(report: PNodeReport) -> Address:
    return Address(report.pnode, report.address, report.fingerprint)
