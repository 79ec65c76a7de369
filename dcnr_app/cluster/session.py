"""Runs one session from its checkpoint (or seed) to its end on PNodes of this machine. IO.

Knows no command line and builds no store or backend: app.py hands them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.effects import (
    Progress,
    Recovering,
    Replanned,
    Trained,
    Validated,
    WorkerReady,
)
from dcnr_app.cluster.expectations import expectations_of
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.generation import generate_ids
from dcnr_app.cluster.job import SessionJob, assignment_for, plan_for
from dcnr_app.cluster.local_cluster import LOCAL
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.orchestrator import Orchestrator
from dcnr_app.cluster.orchestrator_seams import Crew, Journal
from dcnr_app.cluster.outcome import PNodeFacts, RecoveryFacts, RunOutcome, pnode_facts
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.staff import Staff
from dcnr_app.cluster.transport import LinkTotals
from dcnr_app.engine.optimizers import slot_names
from dcnr_app.errors import DcnrError, PeerError, UnreachableError, UserError, first_error
from dcnr_app.ids import ORCHESTRATOR, PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.runtime.tables import HandleTable

__all__ = [
    "RunOutcome",
    "SessionJob",
    "SessionTools",
    "TextCoder",
    "Watcher",
    "plan_for",
    "run_session",
]

HostArray = np.ndarray[Any, Any]
_STOP_POLL_S = 0.5
# The streams with a killed process can break before the system tells that it has ended.
_DEATH_S = 1.0


class TextCoder(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def end_of_text(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Watcher(Protocol):
    """Who watches a run: called on the event loop, must return at once."""

    def planned(self, network: Network, plan: Plan) -> None: ...
    def ready(self, pnode: PNodeId, pid: int) -> None: ...
    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None: ...
    def validated(self, step: int, loss: float) -> None: ...
    def recovering(self, reason: str) -> None: ...
    def replanned(self, network: Network, plan: Plan, step: int) -> None: ...
    def sampling(self) -> None: ...
    def no_sample(self, why: str) -> None: ...
    def stoppable(self, stop: Callable[[], None]) -> None:
        """`stop`, to be called on the event loop, ends the run at the next step boundary, with a checkpoint;
        before training began, at once."""
        ...


class SessionTools(msgspec.Struct, frozen=True, kw_only=True):
    """What app.py built for the run."""

    staff: Staff
    clock: Clock
    feed: SessionFeed
    journal: Journal | None
    """None for a session that only generates."""
    coder: TextCoder
    orchestrator_pid: int


async def run_session(
    job: SessionJob, tools: SessionTools, watcher: Watcher, stop_file: Path | None
) -> RunOutcome:
    """Run to the end or to a requested stop (by `stop_file` too). Raises what went wrong, with PNode or
    step."""
    run = _Run(job, plan_for(job, tools.staff.pnodes, tools.staff.facts), tools, watcher)
    try:
        async with asyncio.TaskGroup() as tasks:
            cluster = tools.staff.make(tasks)
            stopping = asyncio.Event()
            watcher.stoppable(stopping.set)
            asked = tasks.create_task(_until_asked(stopping, stop_file))
            try:
                await run.go(cluster, tasks, asked)
            finally:
                asked.cancel()
                await cluster.close()
    except* DcnrError as group:
        raise first_error(group) from None
    return run.outcome()


class _Run:
    """One run's bookkeeping: the orchestrator's observer."""

    def __init__(self, job: SessionJob, plan: Plan, tools: SessionTools, watcher: Watcher) -> None:
        self._job = job
        self._tools = tools
        self._watcher = watcher
        self._started_ms = 0.0
        self._train_ms = 0.0
        self._committed_tokens = 0
        self._max_in_flight = 0
        self._trained = Trained(job.start.step, stopped=False)
        self._sample = ""
        self._waiting = set(plan.pnodes)
        self._facts = pnode_facts(job.network, plan)
        self._totals = LinkTotals(0, 0)
        self._is_asked_to_stop = False
        self._recoveries: list[RecoveryFacts] = []
        self._can_recover = tools.journal is not None and tools.staff.recovers
        recovery = _recovery(job, tools.staff) if self._can_recover else None
        handles = HandleTable()
        self._orchestrator = Orchestrator(
            job=assignment_for(job, plan, handles, recovery),
            handles=handles,
            expected=expectations_of(job.network, job.settings, slot_names(job.settings.optimizer.type)),
            feed=tools.feed,
            journal=tools.journal,
            observer=self,
            clock=tools.clock,
        )
        watcher.planned(job.network, plan)

    async def go(self, cluster: Crew, tasks: asyncio.TaskGroup, asked: asyncio.Task[None]) -> None:
        """Start the PNodes, train, write a sample; less of it if `asked` ends before."""
        starting = tasks.create_task(cluster.start(self._orchestrator, self._orchestrator))
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            self._trained = Trained(self._job.start.step, stopped=True)
            return
        members = await starting
        asked.add_done_callback(self._stop)
        try:
            await self._orchestrator.run(cluster, members, self._rest)
        except (UnreachableError, PeerError) as error:
            # Which of its peers tells first that a process was killed is chance; what the system says is not.
            killed = await cluster.how_lost(_DEATH_S)
            if killed is None or self._can_recover:
                raise
            pnode, how = killed
            raise UnreachableError(f"lost PNode {pnode}: {how}", where=pnode, fix=error.fix) from error
        self._totals = cluster.transport.totals()

    def _stop(self, asked: asyncio.Task[None]) -> None:
        if not asked.cancelled():
            self._is_asked_to_stop = True
            self._orchestrator.stop()

    # ---- the orchestrator's Observer

    def worker_ready(self, event: WorkerReady) -> None:
        """A PNode took up the plan; training begins with the last one."""
        facts = self._facts[event.pnode]
        facts.pid, facts.device_class = event.pid, event.device_class
        self._waiting.discard(event.pnode)
        if not self._waiting and not self._started_ms:
            self._started_ms = self._tools.clock.monotonic_ms()
        self._watcher.ready(event.pnode, event.pid)

    def progress(self, event: Progress) -> None:
        """A step was committed or replayed."""
        if self._recoveries and not self._recoveries[-1].first_step_ms:
            self._recoveries[-1].first_step_ms = self._tools.clock.monotonic_ms()
        if not event.is_replay:
            self._committed_tokens += event.decision.target_count
        for pnode, report in event.reports.items():
            facts = self._facts[pnode]
            facts.compute_ms += report.compute_ms
            facts.bytes_sent, facts.bytes_received = report.bytes_sent, report.bytes_received
            self._max_in_flight = max(self._max_in_flight, report.max_in_flight)
        self._watcher.stepped(event.decision, event.reports, is_replay=event.is_replay)

    def validated(self, event: Validated) -> None:
        """A validation loss is known."""
        self._watcher.validated(event.step, event.loss)

    def recovering(self, event: Recovering) -> None:
        """A PNode was lost, or a better plan is wanted: the generation is over."""
        now_ms = self._tools.clock.monotonic_ms()
        self._recoveries.append(RecoveryFacts(event.reason, event.pnode, event.step, now_ms))
        self._watcher.recovering(event.reason)

    def replanned(self, event: Replanned) -> None:
        """The next generation goes on after `step` under another plan."""
        before = self._facts
        self._facts = pnode_facts(self._job.network, event.plan)
        for pnode, facts in self._facts.items():
            if pnode in before:
                facts.compute_ms = before[pnode].compute_ms
        self._watcher.replanned(self._job.network, event.plan, event.step)

    async def _rest(self, trained: Trained) -> None:
        """Training is over: write a sample, unless the person wants to leave."""
        self._trained = trained
        self._train_ms = self._tools.clock.monotonic_ms() - self._started_ms
        if (
            self._is_asked_to_stop
            or not self._job.sampling.n_tokens
            or "logits" not in self._job.network.outputs
        ):
            return
        self._watcher.sampling()
        coder, feed, settings = self._tools.coder, self._tools.feed, self._job.settings

        async def next_logits(ids: Sequence[int]) -> HostArray:
            tensors, row = feed.prompt(ids, settings.rows, self._job.context)
            logits = await self._orchestrator.logits(tensors, row)
            return logits[: coder.n_vocab]  # the network may know more ids than the tokenizer has

        try:
            ids = await generate_ids(
                coder.encode(self._job.prompt),
                next_logits,
                coder.end_of_text,
                self._job.sampling,
                lambda: self._is_asked_to_stop,
            )
        except (UserError, UnreachableError) as error:
            if self._tools.journal is None:
                raise
            self._watcher.no_sample(str(error))  # what was trained is not lost for want of a sample
            return
        self._sample = self._job.prompt + coder.decode(ids)

    def outcome(self) -> RunOutcome:
        """What the run did."""
        own = PNodeFacts(
            pnode=ORCHESTRATOR,
            pid=self._tools.orchestrator_pid,
            role="orchestrator",
            vnodes=[],
            parameters=0,
            bytes_sent=self._totals.bytes_sent,
            bytes_received=self._totals.bytes_received,
        )
        pnodes = tuple(self._facts.values())
        if self._tools.staff.pnodes != (LOCAL,):
            pnodes = (own, *pnodes)
        return RunOutcome(
            is_stopped=self._trained.stopped,
            step=self._trained.step,
            committed_tokens=self._committed_tokens,
            train_s=self._train_ms / 1000.0,
            max_in_flight=self._max_in_flight,
            pnodes=pnodes,
            sample=self._sample,
            recoveries=tuple(self._recoveries),
        )


def _recovery(job: SessionJob, staff: Staff) -> Recovery:
    devices = staff.facts.devices if staff.facts is not None else ()
    return Recovery(graph=job.network, devices=devices, grace_ms=staff.grace_ms)


async def _until_asked(stopping: asyncio.Event, stop_file: Path | None) -> None:
    """Wait until `stopping` is set, or until another process asks by making the stop file: that needs no port
    and works on every system."""
    while not stopping.is_set() and not (stop_file is not None and stop_file.exists()):
        with suppress(TimeoutError):
            async with asyncio.timeout(None if stop_file is None else _STOP_POLL_S):
                await stopping.wait()
