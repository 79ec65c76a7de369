"""Agents of several machines in one test, all parts real, on loopback; each with a home of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from dcnr_app.app import App
from dcnr_app.cluster.agent import Agent
from dcnr_app.cluster.discovery import DiscoverySettings
from dcnr_app.local_agent import LocalAgent
from dcnr_app.settings import Home
from dcnr_app.ui.local_api import PendingView, SessionView

_T = TypeVar("_T")
_POLL_S = 0.05
LIMIT_S = 30.0


class RunningAgent:
    """An agent, what people on its machine see, and its life."""

    def __init__(self, agent: Agent, api: LocalAgent, life: asyncio.Task[None]) -> None:
        self.agent = agent
        self.api = api
        self.life = life

    async def end(self) -> None:
        """As `dcnr-app down` does."""
        self.agent.end()
        await self.life


@asynccontextmanager
async def running(home: Home, service: str, *, cluster: str = "") -> AsyncIterator[RunningAgent]:
    """An agent from start to end; with `cluster` it is the orchestrator of one of that name."""
    home.ensure()
    app = App(home=home)
    agent = app.agent(starts_cluster=bool(cluster), cluster_name=cluster, is_loopback=True)
    discovery = DiscoverySettings(is_loopback=True, service_type=service)
    agent.settings = msgspec.structs.replace(agent.settings, discovery=discovery)
    is_up = asyncio.Event()

    async def serve() -> Callable[[], Awaitable[None]]:
        is_up.set()

        async def close() -> None: ...

        return close

    life = asyncio.ensure_future(agent.run(serve))
    started = asyncio.ensure_future(is_up.wait())
    await asyncio.wait({life, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if life.done():
        life.result()
    try:
        yield RunningAgent(agent, LocalAgent(agent, app.clock, os.getpid()), life)
    finally:
        agent.end()
        await life


async def until(
    ask: Callable[[], Awaitable[_T]], holds: Callable[[_T], bool], limit_s: float = LIMIT_S
) -> _T:
    """Ask until the answer is as wanted; returns it."""
    answer = await ask()
    try:
        async with asyncio.timeout(limit_s):
            while not holds(answer):
                await asyncio.sleep(_POLL_S)
                answer = await ask()
    except TimeoutError:
        raise AssertionError(f"still {answer}") from None
    return answer


async def join_by_digits(orchestrator: RunningAgent, worker: RunningAgent) -> str:
    """Both people do their part; returns the digits."""
    await until(worker.api.neighbours, lambda heard: any(n.role == "orchestrator" for n in heard))
    await worker.api.join("", "")
    mine = await until(worker.api.joining, lambda joining: joining.step != "reaching")
    assert mine.step == "comparing", mine
    found = await until(orchestrator.api.pending, lambda pending: any(map(_is_comparing, pending)))
    (theirs,) = filter(_is_comparing, found)
    assert theirs.digits == mine.digits
    await worker.api.answer("match")
    await orchestrator.api.admit(theirs.machine)
    done = await until(worker.api.joining, lambda joining: joining.step in ("joined", "failed"))
    assert done.step == "joined", done.error
    return mine.digits


def _is_comparing(pending: PendingView) -> bool:
    return pending.step == "comparing"


async def all_listening(orchestrator: RunningAgent, n_pnodes: int) -> None:
    """So many PNodes can be used."""
    await until(orchestrator.api.pnodes, lambda found: sum(bool(p.address) for p in found) == n_pnodes)


async def session_over(orchestrator: RunningAgent) -> SessionView:
    """The session's end."""
    return await until(orchestrator.api.session, lambda s: s.status not in ("starting", "running"), 60.0)
