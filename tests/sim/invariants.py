"""What must hold after every event of a simulated cluster, whatever the network does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dcnr_app.cluster.effects import (
    ApplyDecision,
    Release,
    RunBackward,
    RunForward,
    Send,
    WorkerEffect,
)
from dcnr_app.cluster.messages import AnyMessage, Refused
from dcnr_app.cluster.plan import Task
from dcnr_app.cluster.routes import TaskKey, slots_of
from dcnr_app.cluster.worker_state import WorkerState
from tests.sim.journal import Journal


class WorkerWatch:
    """Follows one PNode through all generations."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tasks: dict[tuple[int, int], list[Task]] = {}
        self.applied: Counter[tuple[int, int]] = Counter()
        self._place = (0, 0)
        self.peak_mailbox = 0

    def effect(self, state: WorkerState, effect: WorkerEffect) -> None:
        """Task order is the list's, no task runs twice, a decision is durable before and applied once."""
        generation = 0 if state.configure is None else state.configure.generation
        match effect:
            case RunForward(phase="train") | RunBackward():
                direction = "F" if isinstance(effect, RunForward) else "B"
                done = self._tasks.setdefault((generation, effect.step), [])
                task = Task(direction, effect.microbatch, effect.segment)
                assert effect.step == state.step
                assert len(done) < len(state.tasks), f"{task} runs after the list's end"
                assert task == state.tasks[len(done)], f"{task} is not number {len(done)} of the list"
                done.append(task)
            case ApplyDecision():
                step = effect.commit.step
                assert step == state.step
                assert step in self._journal.rows, f"step {step} is applied before its row is durable"
                assert len(self._tasks[generation, step]) == len(state.tasks)
                self.applied[generation, step] += 1
                assert self.applied[generation, step] == 1, f"step {step} is applied twice"

    def after(self, state: WorkerState, n_handles: int) -> None:
        """Steps only grow, every array is accounted for, the mailbox has its bound."""
        if state.configure is None:
            assert not state.holds, "a PNode outside a session holds tensors"
        else:
            place = (state.configure.generation, state.step)
            assert place >= self._place, f"{place} comes after {self._place}"
            self._place = place
            self._check_mailbox(state)
        assert n_handles == len(state.holds), f"{n_handles} arrays for {len(state.holds)} known handles"

    def _check_mailbox(self, state: WorkerState) -> None:
        per_step = sum(
            len(slots_of(state.plan, TaskKey("train", 1, task.microbatch, task.direction, task.segment)))
            for task in state.tasks
        )
        aside = state.plan.in_flight * sum(
            len(segment.needs) for segment in state.plan.segments if segment.pnode == state.pnode
        )
        n_tensors = sum(len(box) for box in state.mailbox.values())
        self.peak_mailbox = max(self.peak_mailbox, n_tensors)
        assert n_tensors <= 2 * per_step + aside, f"{n_tensors} tensors in the mailbox"

    def finish(self, generation: int, first: int, last: int) -> None:
        """Every step of a generation was applied exactly once."""
        steps = sorted(step for (of, step), count in self.applied.items() if of == generation and count)
        assert steps == list(range(first, last + 1)), f"applied {steps}, not {first}..{last}"


def assert_refused(
    before: str, after: str, message: AnyMessage, effects: Sequence[object], generation: int
) -> None:
    """A message of an older generation changes nothing, and its sender is told or nobody is."""
    assert before == after, f"{message} of generation < {generation} changed the state"
    for effect in effects:
        is_answer = isinstance(effect, Send) and isinstance(effect.message, Refused)
        assert is_answer or isinstance(effect, Release), f"{effect} answers an old {message}"
        if isinstance(effect, Send) and isinstance(effect.message, Refused):
            assert effect.message.reason
