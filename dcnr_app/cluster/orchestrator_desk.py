"""The orchestrator's blocking work, for threads: batches, commit rows, checkpoints, restoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    LoadBatch,
    LoadValidation,
    Progress,
    Restore,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.inputs import (
    BatchReady,
    CheckpointWritten,
    Done,
    Handle,
    Handles,
    Outcome,
    Restored,
    TaskFailed,
)
from dcnr_app.cluster.orchestrator_seams import Feed, Journal
from dcnr_app.cluster.transport import HostArray
from dcnr_app.errors import DcnrError, InvariantError
from dcnr_app.runtime.tables import HandleTable

DeskEffect = LoadBatch | LoadValidation | AppendCommit | WriteCheckpoint | BeginGeneration | Restore
Fact = Progress | Validated | WorkerReady


class Desk:
    """One session's feed and journal behind effects and outcomes."""

    def __init__(self, feed: Feed, journal: Journal | None, handles: HandleTable) -> None:
        self._feed = feed
        self._journal = journal
        self._handles = handles
        self.cause: DcnrError | None = None
        """What the store or the feed said itself when an effect failed: it has the reason too."""

    def put(self, tensors: Mapping[str, Any]) -> dict[str, Handle]:
        """Handles for host arrays."""
        return {name: Handle(self._handles.put(tensor)) for name, tensor in tensors.items()}

    def get(self, handles: Handles) -> dict[str, HostArray]:
        """The host arrays behind handles."""
        return {name: self._handles.get(handle) for name, handle in handles.items()}

    def work(self, effect: DeskEffect) -> Outcome:
        """Carry out one effect; what goes wrong is an outcome."""
        try:
            return self._work(effect)
        except DcnrError as error:
            self.cause = error
            return TaskFailed(error.what, error.where)

    def record(self, fact: Fact) -> None:
        """Write down what may be lost at power failure."""
        if self._journal is not None:
            self._journal.record(fact)

    def _work(self, effect: DeskEffect) -> Outcome:
        if self._journal is None:
            raise InvariantError("a session without a journal was asked to train")
        match effect:
            case LoadBatch():
                tensors, counts, samples = self._feed.batch(effect.step)
                return self._batch(tensors, counts, samples)
            case LoadValidation():
                tensors, counts = self._feed.validation()
                return self._batch(tensors, counts, ())
            case AppendCommit():
                self._journal.commit(effect)
                return Done()
            case WriteCheckpoint():
                parts = {name: self.get(slots) for name, slots in effect.parts.items()}
                return CheckpointWritten(self._journal.checkpoint(effect, parts))
            case BeginGeneration():
                self._journal.begin_generation(effect)
                return Done()
            case Restore():
                return self._restore(self._journal)

    def _restore(self, journal: Journal) -> Restored:
        start = journal.restore()
        return Restored(
            step=start.step,
            t=start.t,
            scale=start.scale,
            parts={name: self.put(part) for name, part in start.parts.items()},
            recorded=start.recorded,
            validated=start.validated,
            device_class=start.device_class,
        )

    def _batch(
        self, tensors: Sequence[Mapping[str, HostArray]], counts: Sequence[int], samples: Sequence[int]
    ) -> BatchReady:
        return BatchReady(tuple(self.put(each) for each in tensors), tuple(counts), tuple(samples))
