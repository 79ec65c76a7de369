"""The hidden command that runs a session for an agent: it reads its bootstrap from stdin."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import click
import msgspec

from dcnr_app import sessions
from dcnr_app.app import App
from dcnr_app.cli.piped import emit, first_line, record_of
from dcnr_app.cli.plan_view import bottleneck_text, comparison_text
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.identity import Credentials
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.pnode_process import SWITCH_INTERVAL_S
from dcnr_app.cluster.prediction import Prediction, beside, predict
from dcnr_app.cluster.remote_crew import RemoteCrew
from dcnr_app.cluster.runner_lines import (
    DrainPNode,
    PNodeGone,
    PNodeJoined,
    RunnerBootstrap,
    RunnerCommand,
    SessionBegun,
    SessionEnded,
    SessionNoted,
    SessionPlanned,
    SessionStepped,
    StopSession,
)
from dcnr_app.cluster.staff import Staff
from dcnr_app.errors import DcnrError, InvalidError, PeerError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import SessionRecord
from dcnr_app.store.store import Store

_BLOCK_BYTES = 1 << 16


@click.command("session-process", hidden=True)
def command() -> None:
    """Run one session. Started by an agent, never by hand."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stdin = sys.stdin.fileno()
    line = first_line(stdin)
    if not line:
        return
    try:
        bootstrap = msgspec.json.decode(line, type=RunnerBootstrap)
    except msgspec.MsgspecError as error:
        raise PeerError("this command is started by an agent, not by hand", why=str(error)) from error
    SessionProcess(bootstrap, App(), stdin).run()


class SessionProcess:
    """The session's Watcher, and what joins its crew to the agent's lines."""

    def __init__(self, bootstrap: RunnerBootstrap, app: App, stdin: int) -> None:
        self._stdin = stdin
        self._bootstrap = bootstrap
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crew: RemoteCrew | None = None
        self._stop: Callable[[], None] = lambda: None
        self._early: list[RunnerCommand] = []
        self._from_step = 0
        self._settings = TrainingSettings()
        self._prediction: Prediction | None = None
        self._stepped_ms = 0.0
        self._step_ms: list[float] = []
        self._compute_ms: dict[PNodeId, float] = {}
        """Time of each step under the present plan, and of all of them together by PNode in its tasks."""
        self._taking = threading.Lock()

    def run(self) -> None:
        """Run the session to its end; what goes wrong is told as its end."""
        threading.Thread(target=self._listen, name="agent-pipe", daemon=True).start()
        session, status, error, code = "", "failed", "", 0
        try:
            with (
                HomeLock(self._app.home, "running a session for the agent"),
                closing(self._app.writer()) as store,
            ):
                shop = self._app.workshop_of(self._staff())
                asked = self._bootstrap.request
                new = (asked.network, asked.dataset, asked.settings)
                record = record_of(self._app, shop, store, asked.session, new)
                session = record.session
                emit(SessionBegun(session, record.network_name, int(record.settings["steps"])))
                status = self._train(shop, store, record)["status"]
        except DcnrError as failure:
            error, code = str(failure), failure.exit_code
        emit(SessionEnded(session, status, error, code))

    def _staff(self) -> Staff:
        pnodes = tuple(sorted(member.pnode for member in self._bootstrap.members))
        if not pnodes:
            raise InvalidError("the cluster has no PNode to train on", fix="dcnr-app pnode ls")
        facts = ClusterFacts(devices=self._bootstrap.devices)
        is_known = set(facts.pnodes) == set(pnodes)
        return Staff(pnodes=pnodes, make=self._make_crew, recovers=True, facts=facts if is_known else None)

    def _make_crew(self, tasks: asyncio.TaskGroup) -> RemoteCrew:
        del tasks
        given = self._bootstrap
        credentials = Credentials(
            cert_pem=given.certificate_pem.encode(),
            key_pem=given.key_pem.encode(),
            ca_pem=given.authority_pem.encode(),
        )
        crew = RemoteCrew(credentials, given.cluster, given.hosts, given.members, emit)
        with self._taking:
            self._loop, self._crew = asyncio.get_running_loop(), crew
            for early in self._early:
                self._loop.call_soon(self._carry_out, early)
        return crew

    def _train(self, shop: sessions.Workshop, store: Store, record: SessionRecord) -> dict[str, Any]:
        dataset, tokenizer = self._app.dataset_of(record)
        found = sessions.find_start(shop, store, record)
        self._settings = sessions.settings_of(record)
        self._from_step = found.start.step
        for item in found.passed_over:
            emit(SessionNoted(f"checkpoint {item.id} is passed over: {item.why}"))
        text = sessions.Text(dataset, tokenizer)
        result = sessions.run(shop, store, record, text, found, self, self._bootstrap.request.prompt)
        if self._prediction is not None and self._step_ms:
            took_ms, n_steps = statistics.median(self._step_ms), len(self._step_ms)
            compute_ms = {pnode: total_ms / n_steps for pnode, total_ms in self._compute_ms.items()}
            emit(SessionNoted(comparison_text(beside(self._prediction, took_ms, compute_ms))))
        return result

    # ---- the agent's lines

    def _listen(self) -> None:
        waiting = b""
        while block := os.read(self._stdin, _BLOCK_BYTES):  # a buffer's lock would hang the interpreter's end
            *lines, waiting = (waiting + block).split(b"\n")
            for line in lines:
                self._heard(msgspec.json.decode(line, type=RunnerCommand))
        os._exit(3)  # the agent is gone; what is durable is enough to go on

    def _heard(self, command: RunnerCommand) -> None:
        with self._taking, suppress(RuntimeError):  # the loop is closed: the session has just ended
            if self._loop is None:
                self._early.append(command)
            else:
                self._loop.call_soon_threadsafe(self._carry_out, command)

    def _carry_out(self, command: RunnerCommand) -> None:
        if self._crew is None:
            return
        match command:
            case PNodeJoined(member, device):
                self._crew.joined(member, device)
            case PNodeGone(pnode, reason):
                self._crew.gone(pnode, reason)
            case DrainPNode(pnode):
                self._crew.drain(pnode)
            case StopSession():
                self._stop()

    # ---- the run's Watcher

    def planned(self, network: Network, plan: Plan) -> None:
        """The first plan, and what is predicted of it."""
        self._predict(network, plan)
        emit(SessionPlanned(plan.generation, self._from_step, plan.assignment))

    def replanned(self, network: Network, plan: Plan, step: int) -> None:
        """A new plan is taken up: what was measured under the old one says nothing of it."""
        self._step_ms.clear()
        self._compute_ms.clear()
        self._stepped_ms = 0.0
        self._predict(network, plan)
        emit(SessionPlanned(plan.generation, step, plan.assignment))

    def _predict(self, network: Network, plan: Plan) -> None:
        facts = ClusterFacts(devices=self._bootstrap.devices)
        is_known = set(plan.pnodes) <= set(facts.pnodes)
        self._prediction = predict(network, self._settings, facts, plan.assignment) if is_known else None
        if self._prediction is not None:
            most = bottleneck_text(self._prediction.bottleneck)
            emit(SessionNoted(f"predicted step: {self._prediction.step_ms:.1f} ms; bottleneck: {most}"))

    def ready(self, pnode: PNodeId, pid: int) -> None:
        """A PNode took up the plan."""
        emit(SessionNoted(f"{pnode} is ready (process {pid})"))

    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None:
        """A step was committed."""
        now_ms = self._app.clock.monotonic_ms()
        if self._stepped_ms:
            self._step_ms.append(now_ms - self._stepped_ms)
            for pnode, report in reports.items():
                self._compute_ms[pnode] = self._compute_ms.get(pnode, 0.0) + report.compute_ms
        self._stepped_ms = now_ms
        emit(SessionStepped(decision.step, decision.loss, is_replay))

    def validated(self, step: int, loss: float) -> None:
        """A validation loss is known."""
        emit(SessionNoted(f"step {step}: validation loss {loss:.4f}"))

    def recovering(self, reason: str) -> None:
        """A PNode was lost, or the plan changes."""
        emit(SessionNoted(f"{reason}; going on by itself"))

    def sampling(self) -> None:
        """A sample is being written."""
        emit(SessionNoted("writing a sample"))

    def no_sample(self, why: str) -> None:
        """The sample could not be written; the training stands."""
        emit(SessionNoted(f"no sample: {why}"))

    def stoppable(self, stop: Callable[[], None]) -> None:
        """From now on `stop` ends the run with a checkpoint."""
        self._stop = stop
