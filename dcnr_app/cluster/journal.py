"""A session's Journal: commit rows, ledger, metrics and checkpoints through the store. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from dcnr_app.clock import Clock
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    Progress,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.start_point import Parts, StartPoint
from dcnr_app.errors import StoreError
from dcnr_app.ids import SessionId
from dcnr_app.store.sessions import SessionRecord, update_session
from dcnr_app.store.store import Store

HostArray = np.ndarray[Any, Any]
CheckpointWriter = Callable[[WriteCheckpoint, Parts], str]


class SessionJournal:
    """What one session makes durable."""

    def __init__(
        self,
        store: Store,
        session: SessionId,
        clock: Clock,
        write_checkpoint: CheckpointWriter,
        find_start: Callable[[], StartPoint],
    ) -> None:
        self._store = store
        self._session = session
        self._clock = clock
        self._write_checkpoint = write_checkpoint
        self._find_start = find_start
        self._previous_ms = 0.0

    def commit(self, effect: AppendCommit) -> None:
        """The commit row and its ledger rows, in one transaction."""
        decision = effect.decision
        self._store.append_commit(
            self._session,
            decision.step,
            msgspec.json.encode(decision, order="sorted"),
            effect.samples,
            is_skipped=decision.skip,
        )

    def checkpoint(self, effect: WriteCheckpoint, parts: Parts) -> str:
        """Write a checkpoint; returns its path."""
        return self._write_checkpoint(effect, parts)

    def begin_generation(self, effect: BeginGeneration) -> None:
        """The generation's event, which fences off whoever holds an older number.

        Raises StoreError if that number is taken: another orchestrator runs this session."""
        body = {"generation": effect.generation, "reason": effect.reason}
        append_generation(self._store, self._session, effect.generation, body)

    def restore(self) -> StartPoint:
        """The newest checkpoint that verifies, or the seed, and the decisions made after it."""
        return self._find_start()

    def record(self, effect: Progress | Validated | WorkerReady) -> None:
        """Metrics of a step (a replayed one has them already) or a validation; the device class of the
        bits."""
        if isinstance(effect, WorkerReady):
            update_session(self._store, self._session, lambda r: _with_class(r, effect.device_class))
            return
        now_ms = self._clock.monotonic_ms()
        if isinstance(effect, Validated):
            values = {"validation_loss": effect.loss}
            self._store.add_metrics(self._session, effect.step, values, self._clock.wall_ms())
        elif not effect.is_replay:
            decision = effect.decision
            values = {
                "loss": decision.loss,
                "gradient_norm": decision.gradient_norm,
                "learning_rate": decision.learning_rate,
                "loss_scale": decision.loss_scale,
                "skipped": float(decision.skip),
                "target_tokens": float(decision.target_count),
                "max_in_flight": float(max(r.max_in_flight for r in effect.reports.values())),
            }
            if self._previous_ms:
                values["step_ms"] = now_ms - self._previous_ms
            for pnode, report in effect.reports.items():
                values[f"compute_ms/{pnode}"] = report.compute_ms
            self._store.add_metrics(self._session, decision.step, values, self._clock.wall_ms())
        self._previous_ms = now_ms


def append_generation(store: Store, session: SessionId, generation: int, body: Mapping[str, object]) -> None:
    """Event number `generation` of the session's stream. Raises StoreError if there is one already."""
    encoded = msgspec.json.encode(body, order="sorted")
    store.append(f"session/{session}", "started", encoded, expected_seq=generation - 1)


def _with_class(record: SessionRecord, device_class: str) -> SessionRecord:
    """The record with a PNode's device class added: a session on several has all of them."""
    classes = {*record.device_class.split(), device_class}
    return msgspec.structs.replace(record, device_class=" ".join(sorted(classes)))


def read_decisions(store: Store, session: str) -> dict[int, Decision]:
    """All committed decisions by step. Raises StoreError for a row that is none."""
    decisions: dict[int, Decision] = {}
    for step, body in store.commits(session):
        try:
            decisions[step] = msgspec.json.decode(body, type=Decision)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"the commit row of step {step} cannot be read", where=session, why=str(error)
            ) from error
    return decisions


def read_validations(store: Store, session: str) -> dict[int, float]:
    """Recorded validation losses by step, in nats per token."""
    found: dict[int, float] = {}
    for row in store.metrics(session):
        if "validation_loss" in row["values"]:
            found[int(row["step"])] = float(row["values"]["validation_loss"])
    return found
