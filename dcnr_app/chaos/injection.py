"""Lets faults happen to a session at their times, from outside: signals to processes, nothing else. IO."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import psutil

from dcnr_app.chaos.child import family, strike
from dcnr_app.chaos.disturbance import HANG_S, Stage
from dcnr_app.chaos.faults import FORGIVEN, Kind
from dcnr_app.chaos.lines import SessionOrder
from dcnr_app.chaos.record import Fault, RunRecord
from dcnr_app.clock import Clock
from dcnr_app.errors import DeadlineError

_START_S = 120.0
_CALM_S = HANG_S + 60.0
_STOP_S = 60.0
_PAUSE_S = 2.0
_PATIENCE_S = 30.0  # a process that stands still this long without being given up goes on
ORCHESTRATOR = "orchestrator"
EVERYBODY = "all"


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One run under chaos. `environment` is the whole environment of the session's process."""

    order: SessionOrder
    environment: Mapping[str, str]
    duration_s: float
    faults: tuple[tuple[float, Kind], ...]
    """When each comes, in seconds after the first commit, and of which kind it is; ascending."""


async def disturb(
    experiment: Experiment, clock: Clock, draw: Callable[[int], int], told: Callable[[str], None]
) -> tuple[RunRecord, float]:
    """The disturbed run; returns its record and its tokens per second, all interruptions included.

    `draw(n)`, a number from 0 to n - 1, chooses the victims. Raises DeadlineError if training does not begin
    or does not stop.
    """
    stage = Stage(experiment.order, experiment.environment, clock, told)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(stage.keep())
        watching = tasks.create_task(stage.watch())
        try:
            await _begun(stage)
            await _all_faults(stage, experiment.faults, draw)
            await _until_time(stage, experiment.duration_s)
            tokens_per_s = stage.record.tokens_per_s(stage.now_ms())
            await _calm(stage)
            await _stopped(stage, keeping)
        finally:
            watching.cancel()
            keeping.cancel()
    return stage.record, tokens_per_s


async def _begun(stage: Stage) -> None:
    if not await stage.until(lambda: stage.record.n_commits > 0, _START_S):
        why = "; ".join(stage.record.failures) or f"there was no step within {_START_S:.0f} s"
        raise DeadlineError("the session did not begin", why=why)


async def _until_time(stage: Stage, at_s: float) -> None:
    """Wait until so long after the first commit."""
    due_ms = stage.record.first_ms + 1000.0 * at_s
    await stage.until(lambda: stage.now_ms() >= due_ms, max(0.0, due_ms - stage.now_ms()) / 1000.0)


async def _calm(stage: Stage) -> bool:
    return await stage.until(lambda: stage.record.is_calm(stage.now_ms()), _CALM_S)


async def _stopped(stage: Stage, keeping: asyncio.Task[None]) -> None:
    if stage.child is not None:
        await stage.child.stop()
    done, _ = await asyncio.wait({keeping}, timeout=_STOP_S)
    if not done:
        raise DeadlineError(f"the session did not stop within {_STOP_S:.0f} s")


async def _all_faults(stage: Stage, plan: Sequence[tuple[float, Kind]], draw: Callable[[int], int]) -> None:
    for number, (at_s, kind) in enumerate(plan, 1):
        await _until_time(stage, at_s)
        if not await _calm(stage):  # the fault before this one is not got over, or the session is over
            return
        victims = _victims(stage, kind, draw)
        names = ", ".join(f"{pnode} (process {process.pid})" for pnode, process in victims)
        stage.told(f"fault {number} of {len(plan)} at step {stage.record.step}: {kind} {names}")
        await _inject(stage, kind, victims)


def _victims(stage: Stage, kind: Kind, draw: Callable[[int], int]) -> list[tuple[str, psutil.Process]]:
    """(PNode, process) of those that the fault is written down for."""
    if stage.child is None:
        return []
    everybody = {process.pid: process for process in family(stage.child.pid)}
    if kind in ("orchestrator", "pause-all"):
        name = ORCHESTRATOR if kind == "orchestrator" else EVERYBODY
        return [(name, everybody[stage.child.pid])] if stage.child.pid in everybody else []
    workers = [
        (pnode, everybody[pid]) for pnode, pid in sorted(stage.record.pids.items()) if pid in everybody
    ]
    n_victims = min(2 if kind == "kill-two" else 1, len(workers))
    return [workers.pop(draw(len(workers))) for _ in range(n_victims)]


async def _inject(stage: Stage, kind: Kind, victims: Sequence[tuple[str, psutil.Process]]) -> None:
    record = stage.record
    processes = [process for _, process in victims]
    if kind == "pause-all":
        processes = [member for process in processes for member in family(process.pid)]
    injected_ms = stage.now_ms()
    for pnode, process in victims:
        record.injected(
            Fault(kind=kind, pnode=pnode, pid=process.pid, step=record.step, injected_ms=injected_ms)
        )
    if kind not in (*FORGIVEN, "stop"):
        strike(processes, "kill")
        return
    strike(processes, "suspend")
    try:
        if kind in FORGIVEN:
            await asyncio.sleep(_PAUSE_S)
        else:
            await stage.until(lambda: record.faults[-1].noticed_ms is not None, _PATIENCE_S)
    finally:
        if record.faults[-1].noticed_ms is None:
            record.resumed(stage.now_ms())
            strike(processes, "resume")
