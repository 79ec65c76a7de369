"""The store of a simulated orchestrator: one line for rows, one for checkpoints, and what a crash leaves.

A write is durable at some moment between its start and the moment at which its process hears of it. A process
that dies in between leaves a row that nobody acknowledged; before, it leaves nothing, also of a checkpoint.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from dcnr_app.cluster.effects import LoadBatch, LoadValidation, WriteCheckpoint
from dcnr_app.cluster.inputs import Finished
from tests.sim.lead import SimOrchestrator, StoreEffect

if TYPE_CHECKING:
    from tests.sim.storm import Storm

_CHECKPOINT_TIMES = 5.0
_READ_TIMES = 0.2


class Disk:
    """`usual_ms` is how long a commit row takes, about."""

    def __init__(self, storm: Storm, usual_ms: float, chance: random.Random) -> None:
        self._storm = storm
        self._usual_ms = usual_ms
        self._chance = chance
        self._lines: dict[tuple[str, bool], deque[Callable[[], None]]] = {}
        self._unsynced: list[int] = []

    def work(self, lead: SimOrchestrator, effect: StoreEffect) -> None:
        """Carry an effect out when its turn comes."""
        is_checkpoint = isinstance(effect, WriteCheckpoint)
        times = _CHECKPOINT_TIMES if is_checkpoint else 1.0
        if isinstance(effect, LoadBatch | LoadValidation):
            times = _READ_TIMES

        def write() -> None:
            outcome = self._storm.write(lead, effect)
            if outcome is None:
                return  # the process ended in the middle of it
            lead.later(self._ms(times), lambda: hear(outcome))

        def hear(outcome: object) -> None:
            self._next(lead, is_checkpoint)
            lead.take(Finished(effect.id, outcome))  # type: ignore[arg-type]

        self._queue(lead, is_checkpoint, lambda: lead.later(self._ms(times), write))

    def record(self, lead: SimOrchestrator, step: int, loss: float) -> None:
        """Keep a validation loss: after the process that made it, but not after a power failure."""

        def write() -> None:
            journal = self._storm.journal
            if self._storm.n_rivals:  # metrics are not fenced: both may write the row, and it is the same
                assert journal.validations.setdefault(step, loss) == loss
            else:
                journal.validate(step, loss)
            self._unsynced.append(step)
            self._next(lead, is_checkpoint=False)

        self._queue(lead, False, lambda: lead.later(self._ms(_READ_TIMES), write))

    def crash(self, lead: SimOrchestrator) -> None:
        """The orchestrator's machine fails: what waited is gone, and perhaps the newest metrics too."""
        for is_checkpoint in (False, True):
            self._lines.pop((lead.address, is_checkpoint), None)
        journal = self._storm.journal
        n_lost = self._chance.randint(0, len(self._unsynced)) if self._chance.random() < 0.5 else 0
        for step in self._unsynced[len(self._unsynced) - n_lost :]:
            if step >= journal.durable_step:  # older ones: a checkpoint's write came after theirs
                journal.validations.pop(step, None)
        self._unsynced = []

    def is_idle(self, lead: SimOrchestrator) -> bool:
        """Whether nothing is being written for that process."""
        return not any(self._lines.get((lead.address, each)) for each in (False, True))

    def _queue(self, lead: SimOrchestrator, is_checkpoint: bool, job: Callable[[], None]) -> None:
        line = self._lines.setdefault((lead.address, is_checkpoint), deque())
        line.append(job)
        if len(line) == 1:
            job()

    def _next(self, lead: SimOrchestrator, is_checkpoint: bool) -> None:
        line = self._lines[lead.address, is_checkpoint]
        line.popleft()
        if line:
            line[0]()

    def _ms(self, times: float) -> float:
        return self._chance.uniform(0.05, 1.0) * times * self._usual_ms
