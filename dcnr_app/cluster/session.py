"""Runs one session from its checkpoint (or seed) to its end on PNodes of this machine. IO.

Knows no command line and builds no store or backend: app.py hands them in.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.decision import Decision, LossScale
from dcnr_app.cluster.effects import Handle, Handles, Progress, Trained, Validated, WorkerReady
from dcnr_app.cluster.expectations import expectations_of
from dcnr_app.cluster.feeds import SessionFeed, outside_references
from dcnr_app.cluster.generation import Sampling, generate_ids
from dcnr_app.cluster.local_cluster import LOCAL, ClusterSettings, LocalCluster, worker_ids
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.orchestrator import Journal, Orchestrator, Parts
from dcnr_app.cluster.placement import assign
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.cluster.transport import LinkTotals
from dcnr_app.engine.backend import Backend
from dcnr_app.errors import DcnrError, InvariantError, first_error
from dcnr_app.ids import ORCHESTRATOR, PNodeId, SessionId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network, encode_network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.registry import Registry
from dcnr_app.runtime.tables import HandleTable

HostArray = np.ndarray[Any, Any]
_STOP_POLL_S = 0.5


class TextCoder(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def end_of_text(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where training starts: the state after `step`, and the decisions made after it in an earlier run."""

    step: int = 0
    t: int = 0
    scale: LossScale = LossScale()
    parts: Parts = {}
    recorded: Mapping[int, Decision] = {}
    validated: frozenset[int] = frozenset()
    device_class: str = ""


class SessionJob(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a session. `generation` is higher than that of all its earlier runs."""

    session: SessionId
    generation: int
    network: Network
    settings: TrainingSettings
    context: int = 1
    start: StartPoint = StartPoint()
    prompt: str = "def "
    sampling: Sampling = Sampling(n_tokens=120, temperature=0.7, seed=0)


class PNodeFacts(msgspec.Struct, kw_only=True):
    """One process of the run, for people and for `--json`."""

    pnode: PNodeId
    pid: int
    role: str
    vnodes: list[str]
    parameters: int
    bytes_sent: int = 0
    bytes_received: int = 0
    compute_ms: float = 0.0
    device_class: str = ""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did; losses and validations of earlier runs are in the store."""

    is_stopped: bool
    step: int
    committed_tokens: int
    train_s: float
    max_in_flight: int
    pnodes: tuple[PNodeFacts, ...]
    sample: str


class Watcher(Protocol):
    """Who watches a run: called on the event loop, must return at once."""

    def planned(self, network: Network, plan: Plan) -> None: ...
    def ready(self, pnode: PNodeId, pid: int) -> None: ...
    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None: ...
    def validated(self, step: int, loss: float) -> None: ...
    def sampling(self) -> None: ...
    def stoppable(self, stop: Callable[[], None]) -> None:
        """`stop` ends the run at the next step boundary, with a checkpoint."""
        ...


class SessionTools(msgspec.Struct, frozen=True, kw_only=True):
    """What app.py built for the run."""

    cluster: ClusterSettings
    registry: Registry
    make_backend: Callable[[int], Backend]
    clock: Clock
    feed: SessionFeed
    journal: Journal | None
    """None for a session that only generates."""
    coder: TextCoder
    orchestrator_pid: int


def plan_for(job: SessionJob, n_workers: int) -> Plan:
    """Placement and task order. Raises InvalidError if the network cannot be spread over so many workers."""
    pnodes = worker_ids(n_workers)
    assignment = assign(job.network, job.settings.rows, pnodes)
    return build_plan(job.network, assignment, pnodes, job.settings, generation=job.generation)


async def run_session(
    job: SessionJob, tools: SessionTools, watcher: Watcher, stop_file: Path | None
) -> RunOutcome:
    """Run to the end or to a requested stop (by `stop_file` too). Raises what went wrong, with PNode or
    step."""
    plan = plan_for(job, tools.cluster.n_workers)
    watcher.planned(job.network, plan)
    run = _Run(job, plan, tools, watcher)
    try:
        async with asyncio.TaskGroup() as tasks:
            cluster = LocalCluster(
                tools.cluster,
                registry=tools.registry,
                make_backend=tools.make_backend,
                clock=tools.clock,
                tasks=tasks,
            )
            waiting: asyncio.Task[None] | None = None
            try:
                members = await cluster.start(run.orchestrator, run.orchestrator.lost)
                watcher.stoppable(run.orchestrator.stop)
                if stop_file is not None:
                    waiting = tasks.create_task(_stop_when_asked(stop_file, run.orchestrator.stop))
                transport = cluster.transport
                if transport is None:
                    raise InvariantError("the cluster started without a transport")
                await run.orchestrator.run(transport, members, run.rest)
                run.totals = transport.totals()
            finally:
                if waiting is not None:
                    waiting.cancel()
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
        self._facts = _pnode_facts(job.network, plan)
        self.totals = LinkTotals(0, 0)
        handles = HandleTable()
        self.orchestrator = Orchestrator(
            job=_assignment(job, plan, handles),
            handles=handles,
            expected=expectations_of(job.network, job.settings),
            feed=tools.feed,
            journal=tools.journal,
            observer=self,
            clock=tools.clock,
        )

    # ---- the orchestrator's Observer

    def worker_ready(self, event: WorkerReady) -> None:
        """A PNode took up the plan; training begins with the last one."""
        facts = self._facts[event.pnode]
        facts.pid, facts.device_class = event.pid, event.device_class
        self._waiting.discard(event.pnode)
        if not self._waiting:
            self._started_ms = self._tools.clock.monotonic_ms()
        self._watcher.ready(event.pnode, event.pid)

    def progress(self, event: Progress) -> None:
        """A step was committed or replayed."""
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

    async def rest(self, trained: Trained) -> None:
        """Training is over: write a sample, unless the person wants to leave."""
        self._trained = trained
        self._train_ms = self._tools.clock.monotonic_ms() - self._started_ms
        if trained.stopped or not self._job.sampling.n_tokens or "logits" not in self._job.network.outputs:
            return
        self._watcher.sampling()
        coder, feed, settings = self._tools.coder, self._tools.feed, self._job.settings

        async def next_logits(ids: Sequence[int]) -> HostArray:
            tensors, row = feed.prompt(ids, settings.rows, self._job.context)
            return await self.orchestrator.logits(tensors, row)

        prompt = coder.encode(self._job.prompt)
        ids = await generate_ids(prompt, next_logits, coder.end_of_text, self._job.sampling)
        self._sample = self._job.prompt + coder.decode(ids)

    def outcome(self) -> RunOutcome:
        """What the run did."""
        own = PNodeFacts(
            pnode=ORCHESTRATOR,
            pid=self._tools.orchestrator_pid,
            role="orchestrator",
            vnodes=[],
            parameters=0,
            bytes_sent=self.totals.bytes_sent,
            bytes_received=self.totals.bytes_received,
        )
        pnodes = tuple(self._facts.values())
        if self._tools.cluster.n_workers:
            pnodes = (own, *pnodes)
        return RunOutcome(
            is_stopped=self._trained.stopped,
            step=self._trained.step,
            committed_tokens=self._committed_tokens,
            train_s=self._train_ms / 1000.0,
            max_in_flight=self._max_in_flight,
            pnodes=pnodes,
            sample=self._sample,
        )


async def _stop_when_asked(stop_file: Path, stop: Callable[[], None]) -> None:
    """Another process asks for a stop by making a file: that needs no port and works on every system."""
    while not stop_file.exists():
        await asyncio.sleep(_STOP_POLL_S)
    stop()


def _pnode_facts(network: Network, plan: Plan) -> dict[PNodeId, PNodeFacts]:
    """Facts of the PNodes that hold VNodes. The one in the orchestrator's own process has its role."""
    facts = {
        pnode: PNodeFacts(pnode=pnode, pid=0, role=role, vnodes=[], parameters=0)
        for pnode, role in ((p, "orchestrator" if p == LOCAL else "worker") for p in plan.pnodes)
    }
    for node in network.nodes:
        if not node.vnode.is_host:
            facts[plan.assignment[node.name]].vnodes.append(node.name)
    for parameter in network_parameters(network).values():
        facts[plan.assignment[parameter.sites[0][0]]].parameters += math.prod(parameter.spec.shape)
    return facts


def _assignment(job: SessionJob, plan: Plan, handles: HandleTable) -> Assignment:
    start = job.start
    return Assignment(
        session=job.session,
        plan=plan,
        network=encode_network(job.network),
        settings=job.settings,
        inputs=outside_references(job.network, plan),
        resume_step=start.step,
        t=start.t,
        scale=start.scale,
        recorded=start.recorded,
        checked_device_class=start.device_class,
        validated=start.validated,
        loads=_loads(job, plan, handles),
    )


def _loads(job: SessionJob, plan: Plan, handles: HandleTable) -> dict[PNodeId, dict[str, Handles]]:
    """What each PNode must load: owners take all slots, other sites of shared parameters the weight."""
    if not job.start.parts:
        return {}
    loads: dict[PNodeId, dict[str, Handles]] = {pnode: {} for pnode in plan.pnodes}
    for name, parameter in network_parameters(job.network).items():
        slots = {slot: Handle(handles.put(tensor)) for slot, tensor in job.start.parts[name].items()}
        owner = plan.assignment[parameter.sites[0][0]]
        loads[owner][name] = slots
        for node, _ in parameter.sites:
            pnode = plan.assignment[node]
            if pnode != owner:
                loads[pnode][name] = {"weight": slots["weight"]}
    return loads
