"""The hidden command that runs a session for `chaos`: it reads its order from stdin and says what happens
on stdout."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress

import click
import msgspec

from dcnr_app import sessions
from dcnr_app.app import App
from dcnr_app.chaos.lines import Began, Noticed, Over, Planned, PNodeReady, SessionOrder, Stepped
from dcnr_app.cli.piped import emit, first_line, record_of
from dcnr_app.cli.watching import SilentWatcher
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.plan import Plan
from dcnr_app.errors import DcnrError, PeerError
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network
from dcnr_app.store.lock import HomeLock


@click.command("chaos-process", hidden=True)
def command() -> None:
    """Run one session under chaos. Started by `dcnr-app chaos`, never by hand."""
    line = first_line(sys.stdin.fileno())
    if not line:
        return
    try:
        order = msgspec.json.decode(line, type=SessionOrder)
    except msgspec.MsgspecError as error:
        raise PeerError("this command is started by dcnr-app chaos, not by hand", why=str(error)) from error
    watcher = LineWatcher(order.until_step)
    threading.Thread(target=watcher.listen, name="parent-pipe", daemon=True).start()
    try:
        emit(Over(_run(order, App(), watcher)))
    except DcnrError as failure:
        emit(Over("failed", str(failure)))


def _run(order: SessionOrder, app: App, watcher: LineWatcher) -> str:
    """Create or find the session and run it; returns what became of it."""
    with HomeLock(app.home, "training under chaos"), closing(app.writer()) as store:
        shop = app.workshop(order.workers)
        flags = {"steps": order.steps, "seed": order.seed}
        record = record_of(app, shop, store, order.session, (order.network, order.dataset, flags))
        emit(Began(record.session, int(record.settings["checkpoint_every"])))
        dataset, tokenizer = app.dataset_of(record)
        text = sessions.Text(dataset, tokenizer)
        found = sessions.find_start(shop, store, record)
        return str(sessions.run(shop, store, record, text, found, watcher, "a")["status"])


class LineWatcher(SilentWatcher):
    """Says what happens; ends the run at `until_step`, or when a line comes on stdin."""

    def __init__(self, until_step: int) -> None:
        self._until_step = until_step
        self._stop: Callable[[], None] = lambda: None
        self._stop_from_thread: Callable[[], None] = lambda: None

    def listen(self) -> None:
        """Take lines from stdin, on a thread of its own; at its end this process ends too."""
        while os.read(sys.stdin.fileno(), 4096):
            self._stop_from_thread()
        os._exit(3)  # whoever asked is gone; what is durable is enough to go on

    # ---- the run's Watcher

    def planned(self, network: Network, plan: Plan) -> None:
        """The first plan of this process."""
        emit(Planned(plan.pnodes, 0))

    def replanned(self, network: Network, plan: Plan, step: int) -> None:
        """A new plan is taken up."""
        emit(Planned(plan.pnodes, step))

    def ready(self, pnode: PNodeId, pid: int) -> None:
        """A PNode took up the plan."""
        emit(PNodeReady(pnode, pid))

    def recovering(self, reason: str) -> None:
        """A PNode was lost, or the plan changes."""
        emit(Noticed(reason))

    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None:
        """A step was committed or replayed."""
        emit(Stepped(decision.step, decision.target_count, is_replay))
        if self._until_step and decision.step >= self._until_step:
            self._stop()

    def stoppable(self, stop: Callable[[], None]) -> None:
        """From now on the run can be stopped."""
        loop = asyncio.get_running_loop()

        def stop_soon() -> None:
            with suppress(RuntimeError):  # the loop is closed: the run has just ended
                loop.call_soon_threadsafe(stop)

        self._stop, self._stop_from_thread = stop, stop_soon
