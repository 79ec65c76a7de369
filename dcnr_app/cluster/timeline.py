"""One training step in simulated time: list scheduling of all tasks over stages that pass tensors on. Pure.

A stage runs one microbatch at a time, forward then backward, in order. A place (PNode) runs one task at a
time: of those that can start first, backward before forward, lowest microbatch first, deepest stage first
(1F1B, Narayanan et al. 2019). A link between two places sends one tensor after the other. Knows no unit:
times come out in whatever they were put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class Stage(NamedTuple):
    """What one segment costs per microbatch; `backward` is None where it has none."""

    place: int
    forward: float
    backward: float | None


class Flow(NamedTuple):
    """What one stage passes to another per microbatch and direction: `send` occupies the link, `delay` is how
    long the last byte is under way."""

    source: int
    target: int
    send: float
    delay: float


class Pipeline(NamedTuple):
    """Everything that a step's schedule depends on.

    At most `in_flight` microbatches are under way; the end of one is known at another place after
    `window_delay`.
    """

    stages: Sequence[Stage]
    forward: Sequence[Flow]
    backward: Sequence[Flow]
    n_microbatches: int
    in_flight: int
    window_delay: float = 0.0


class Timeline(NamedTuple):
    """A schedule: (is backward, microbatch, stage) of every task by start time, which is a topological order.

    `end` is when the last task ends, `busy` the time that tasks take by place, `sending` the time that links
    are occupied by (from, to), `peaks` the most microbatches of which a stage keeps arrays, by stage.
    """

    order: tuple[tuple[bool, int, int], ...]
    end: float
    busy: dict[int, float]
    sending: dict[tuple[int, int], float]
    peaks: tuple[int, ...]


_Ready = tuple[float, int, int, int, int]
_Chosen = tuple[int, int, int, int]


class _Run:
    """The state of one simulation. Tasks are (direction 0 forward 1 backward, microbatch, stage)."""

    def __init__(self, pipeline: Pipeline) -> None:
        n_stages, n_microbatches = len(pipeline.stages), pipeline.n_microbatches
        self.pipeline = pipeline
        self.places = [stage.place for stage in pipeline.stages]
        self.flows: tuple[list[list[Flow]], list[list[Flow]]] = (
            [[] for _ in range(n_stages)],
            [[] for _ in range(n_stages)],
        )
        n_sources = ([0] * n_stages, [0] * n_stages)
        for direction, flows in enumerate((pipeline.forward, pipeline.backward)):
            for flow in flows:
                self.flows[direction][flow.source].append(flow)
                n_sources[direction][flow.target] += 1
        self.roots = [s for s in range(n_stages) if not n_sources[0][s]]
        self.with_backward = sum(stage.backward is not None for stage in pipeline.stages)
        is_root = [not count for count in n_sources[0]]
        self.waits: tuple[list[list[int]], list[list[int]]] = ([], [])
        for microbatch in range(n_microbatches):
            before = 1 if microbatch else 0
            window = self.with_backward if microbatch >= pipeline.in_flight else 0
            self.waits[0].append([before + n_sources[0][s] + window * is_root[s] for s in range(n_stages)])
            self.waits[1].append([before + n_sources[1][s] + 1 for s in range(n_stages)])
        self.ready_at = tuple([[0.0] * n_stages for _ in range(n_microbatches)] for _ in range(2))
        self.link_free: dict[tuple[int, int], float] = {}
        self.sending: dict[tuple[int, int], float] = {}
        # By place: tasks that become ready later, by time; and those that could start at once, by rank.
        self.coming: dict[int, list[_Ready]] = {place: [] for place in self.places}
        self.waiting: dict[int, list[_Chosen]] = {place: [] for place in self.places}
        self.free_at = dict.fromkeys(self.places, 0.0)
        for stage in self.roots:
            if not self.waits[0][0][stage]:
                self._put(0, 0, stage, 0.0)

    def _put(self, direction: int, microbatch: int, stage: int, at: float) -> None:
        heappush(self.coming[self.places[stage]], (at, 1 - direction, microbatch, -stage, direction))

    def _arrive(self, direction: int, microbatch: int, stage: int, at: float) -> None:
        """One of the things that a task waits for is there."""
        ready_at, waits = self.ready_at[direction][microbatch], self.waits[direction][microbatch]
        if at > ready_at[stage]:
            ready_at[stage] = at
        waits[stage] -= 1
        if not waits[stage]:
            self._put(direction, microbatch, stage, ready_at[stage])

    def next(self) -> tuple[float, int, int, int] | None:
        """(start, direction, microbatch, stage) of the task that starts first, taken out; None at the end."""
        best: tuple[float, _Chosen] | None = None
        best_place = -1
        for place, coming in self.coming.items():
            waiting, free_at = self.waiting[place], self.free_at[place]
            while coming and coming[0][0] <= free_at:
                heappush(waiting, heappop(coming)[1:])
            if waiting:
                found = (free_at, waiting[0])
            elif coming:
                found = (coming[0][0], coming[0][1:])
            else:
                continue
            if best is None or found < best:
                best, best_place = found, place
        if best is None:
            return None
        if self.waiting[best_place]:
            heappop(self.waiting[best_place])
        else:
            heappop(self.coming[best_place])
        start, (_, microbatch, stage, direction) = best
        return start, direction, microbatch, -stage

    def finish(self, direction: int, microbatch: int, stage: int, end: float) -> None:
        """A task ends: the next microbatch of its stage, its backward and the stages it feeds move on."""
        pipeline = self.pipeline
        self.free_at[self.places[stage]] = end
        if microbatch + 1 < pipeline.n_microbatches:
            self._arrive(direction, microbatch + 1, stage, end)
        if not direction and pipeline.stages[stage].backward is not None:
            self._arrive(1, microbatch, stage, end)
        for flow in self.flows[direction][stage]:
            self._arrive(direction, microbatch, flow.target, self._transfer(flow, end))
        later = microbatch + pipeline.in_flight
        if direction and later < pipeline.n_microbatches:
            for root in self.roots:
                is_far = self.places[root] != self.places[stage]
                self._arrive(0, later, root, end + (pipeline.window_delay if is_far else 0.0))

    def _transfer(self, flow: Flow, end: float) -> float:
        if not flow.send:
            return end + flow.delay
        link = (self.places[flow.source], self.places[flow.target])
        sent = max(end, self.link_free.get(link, 0.0)) + flow.send
        self.link_free[link] = sent
        self.sending[link] = self.sending.get(link, 0.0) + flow.send
        return sent + flow.delay


def simulate(pipeline: Pipeline) -> Timeline:
    """The schedule of one step."""
    run = _Run(pipeline)
    busy = dict.fromkeys(run.places, 0.0)
    open_now, peaks = [0] * len(pipeline.stages), [0] * len(pipeline.stages)
    order: list[tuple[bool, int, int]] = []
    last = 0.0
    while (task := run.next()) is not None:
        start, direction, microbatch, stage = task
        cost = pipeline.stages[stage]
        took = cost.backward if direction else cost.forward
        end = start + (took or 0.0)
        if cost.backward is not None:
            open_now[stage] += -1 if direction else 1
            peaks[stage] = max(peaks[stage], open_now[stage])
        run.finish(direction, microbatch, stage, end)
        busy[cost.place] += took or 0.0
        order.append((bool(direction), microbatch, stage))
        last = max(last, end)
    return Timeline(tuple(order), last, busy, run.sending, tuple(peaks))
