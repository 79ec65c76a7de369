"""What a person sees of a run, on stderr: progress bars and tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from types import TracebackType
from typing import IO, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from dcnr_app.cli.output import LastingStream, printable
from dcnr_app.clock import Clock
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network

_PLAIN_EVERY_MS = 5_000
_WINDOW = 20  # steps over which rates are averaged
_WIDE = 110
_FILE_WIDTH = 160
_BLOCKS = "▁▂▃▄▅▆▇█"


class RunReport:
    """A Watcher for people. `stop` is None until the run can be stopped; a signal handler may call it."""

    def __init__(self, clock: Clock, *, n_steps: int = 0, is_quiet: bool = False) -> None:
        # A closed terminal must not end the training that it showed.
        stream = None if sys.stderr is None else cast(IO[str], LastingStream(sys.stderr))
        self.console = Console(file=stream, stderr=True, quiet=is_quiet, highlight=False)
        if not self.console.is_terminal:
            self.console.width = _FILE_WIDTH  # nobody wraps a file's lines
        self.stop: Callable[[], None] | None = None
        self.losses: list[float] = []
        self.skipped: set[int] = set()
        self._clock = clock
        self._n_steps = n_steps
        self._is_live = self.console.is_terminal and not is_quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._stages: dict[str, TaskID] = {}
        self._printed_ms = -math.inf

    @property
    def _is_wide(self) -> bool:
        """Whether a bar and full names fit on a line."""
        return self.console.width >= _WIDE

    def __enter__(self) -> Self:
        """Start the live display, where there is a terminal."""
        if self._is_live:
            self._progress = Progress(
                TextColumn("{task.description}"),
                *([BarColumn(bar_width=24)] if self._is_wide else []),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                # The facts take what is left of the line; else rich takes the room from all columns alike.
                TextColumn(
                    "{task.fields[facts]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
                ),
                expand=True,
                console=self.console,
                refresh_per_second=4,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live display."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """One line for the person."""
        self.console.print(printable(text), markup=False, soft_wrap=True)

    # ---- preparation

    def prepared(self, stage: str, done: int, total: int) -> None:
        """Progress of one stage of preparation, in bytes."""
        if self._progress is not None:
            if stage not in self._stages:
                self._stages[stage] = self._progress.add_task(f"{stage} [MB]", total=total / 1e6, facts="")
            self._progress.update(
                self._stages[stage], completed=round(done / 1e6, 1), total=round(total / 1e6, 1)
            )
        elif done >= total or stage not in self._stages:
            self._stages[stage] = TaskID(0)
            self.say(f"{stage}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    # ---- the run's Watcher

    def planned(self, network: Network, plan: Plan) -> None:
        """Print which VNode runs where."""
        self.console.print(plan_table(network, plan))

    def ready(self, pnode: PNodeId, pid: int) -> None:
        """A PNode took up the plan."""
        self.say(f"{pnode} is ready (process {pid})")

    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None:
        """A step was committed."""
        now_ms = self._clock.monotonic_ms()
        if decision.skip:
            self.skipped.add(decision.step)
        elif not is_replay:
            self.losses.append(decision.loss)
        self._recent.append((now_ms, decision.target_count))
        facts = self._facts(decision, reports, is_replay=is_replay)
        if self._progress is not None:
            if self._task is None:
                self._task = self._progress.add_task("train", total=self._n_steps, facts="")
                for stage in [] if self._is_wide else self._stages.values():
                    self._progress.update(stage, visible=False)  # their long names would take its room
            self._progress.update(self._task, completed=decision.step, facts=facts)
        elif now_ms - self._printed_ms > _PLAIN_EVERY_MS or decision.step == self._n_steps:
            self._printed_ms = now_ms
            self.say(f"step {decision.step}/{self._n_steps}  {facts}  ETA {self._eta(decision.step)}")

    def validated(self, step: int, loss: float) -> None:
        """A validation loss is known."""
        self.say(f"step {step}: validation loss {loss:.4f}")

    def recovering(self, reason: str) -> None:
        """A PNode was lost, or the plan changes: the session goes on by itself."""
        self.say(f"{reason}; going on by itself")

    def replanned(self, network: Network, plan: Plan, step: int) -> None:
        """A new plan is taken up."""
        self.say(f"generation {plan.generation} goes on after step {step} on {', '.join(plan.pnodes)}")

    def no_sample(self, why: str) -> None:
        """The sample could not be written; the training stands."""
        self.say(f"no sample: {why}")

    def sampling(self) -> None:
        """Training is over; a sample is being written."""
        self.say("writing a sample …")

    def stoppable(self, stop: Callable[[], None]) -> None:
        """From now on `stop` ends the run with a checkpoint."""
        loop = asyncio.get_running_loop()

        def say_and_stop() -> None:
            self.say("stopping after this step, with a checkpoint; press Ctrl-C again to end at once")
            stop()

        def ask() -> None:
            # A signal comes in the middle of anything, also of printing: the loop takes it in between.
            with suppress(RuntimeError):  # the loop is closed: the run has just ended
                loop.call_soon_threadsafe(say_and_stop)

        self.stop = ask

    def restore_terminal(self) -> None:
        """Show the cursor again, from a signal handler: nothing here waits for a lock."""
        if self._is_live:
            os.write(sys.stderr.fileno(), b"\x1b[?25h\n")

    # ---- figures

    def _rate(self) -> tuple[float, float]:
        """(tokens per second, ms per step) over the recent steps; 0 where unknown."""
        if len(self._recent) < 2:
            return 0.0, 0.0
        elapsed_ms = self._recent[-1][0] - self._recent[0][0]
        tokens = sum(count for _, count in list(self._recent)[1:])
        return (1000.0 * tokens / elapsed_ms if elapsed_ms else 0.0), elapsed_ms / (len(self._recent) - 1)

    def _facts(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> str:
        tokens_per_s, step_ms = self._rate()
        note = "replay  " if is_replay else ""
        loss = "skipped: not finite" if decision.skip else f"loss {decision.loss:.4f}"
        if not step_ms:
            return f"{note}{loss}"
        busy = " ".join(
            f"{_short(pnode, is_wide=self._is_wide)} {min(99.0, 100.0 * report.compute_ms / step_ms):.0f}%"
            for pnode, report in sorted(reports.items())
        )
        return f"{note}{loss}  {tokens_per_s:,.0f} tok/s  busy: {busy}"

    def _eta(self, step: int) -> str:
        step_ms = self._rate()[1]
        seconds = int((self._n_steps - step) * step_ms / 1000.0)
        return f"{seconds // 60}:{seconds % 60:02d}" if step_ms else "?"


def plan_table(network: Network, plan: Plan) -> Table:
    """One row per PNode: VNodes, parameters, share of the FLOPs, bytes it sends per microbatch."""
    table = Table(
        title=f"plan for {network.name}: {plan.n_microbatches} microbatches, {plan.in_flight} in flight"
    )
    for column in ("PNode", "VNodes", "from … to", "parameters", "FLOPs", "sends per microbatch"):
        table.add_column(column, justify="right" if column not in ("PNode", "from … to") else "left")
    parameters = network_parameters(network).values()
    total = sum(plan.predicted_flops.values())
    for pnode in plan.pnodes:
        nodes = [node.name for node in network.nodes if plan.assignment[node.name] == pnode]
        n_parameters = sum(
            math.prod(p.spec.shape) for p in parameters if plan.assignment[p.sites[0][0]] == pnode
        )
        sent = sum(size for key, size in plan.hop_bytes.items() if key.startswith(f"{pnode}>"))
        table.add_row(
            pnode,
            str(len(nodes)),
            f"{nodes[0]} … {nodes[-1]}",
            f"{n_parameters:,}",
            f"{100.0 * plan.predicted_flops[pnode] / total:.0f} %",
            f"{sent / 1e6:.2f} MB",
        )
    return table


def loss_curve(losses: Sequence[float | None], width: int = 60, height: int = 8) -> str:
    """A text picture of a loss series: each column is the mean of its share of the steps. None: a step
    without a loss."""
    n_columns = min(width, len(losses))
    if n_columns < 2:
        return ""
    edges = [round(i * len(losses) / n_columns) for i in range(n_columns + 1)]
    shares = [[loss for loss in losses[a:b] if loss is not None] for a, b in pairwise(edges)]
    means = [sum(share) / len(share) if share else math.nan for share in shares]
    low, high = min(filter(math.isfinite, means), default=0.0), max(filter(math.isfinite, means), default=0.0)
    span = (high - low) or 1.0
    levels = [(mean - low) / span * (height * 8 - 1) for mean in means]
    lines = []
    for row in reversed(range(height)):
        cells = "".join(_cell(level - row * 8) for level in levels)
        label = f"{high:7.3f}" if row == height - 1 else f"{low:7.3f}" if row == 0 else " " * 7
        lines.append(f"{label} │{cells}")
    lines.append(" " * 8 + "└" + "─" * n_columns + f" step {len(losses)}")
    return "\n".join(lines)


def _short(pnode: PNodeId, *, is_wide: bool) -> str:
    return str(pnode) if is_wide else str(pnode).replace("worker-", "w")


def _cell(level: float) -> str:
    return " " if math.isnan(level) or level < 0 else _BLOCKS[min(7, int(level))]
