"""What a session makes durable, and what is read of it."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.effects import AppendCommit, Progress, Validated, WorkerReady
from dcnr_app.cluster.journal import SessionJournal, read_decisions, read_validations
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.start_point import StartPoint
from dcnr_app.errors import StoreError
from dcnr_app.ids import NetworkId, PNodeId, SessionId
from dcnr_app.store.memory import MemoryStore
from dcnr_app.store.sessions import SessionRecord, create_session, get_session

SESSION = SessionId("s-20260101-000000-0000")


class Ticking(SystemClock):
    """A clock that moves on by 40 ms each time it is read."""

    def __init__(self) -> None:
        self._now_ms = 1_000.0

    def monotonic_ms(self) -> float:
        self._now_ms += 40.0
        return self._now_ms


def decision(step: int, *, skip: bool = False) -> Decision:
    return Decision(
        step=step, loss=1.0 / 3.0, gradient_norm=0.1, skip=skip, clip_coefficient=1.0, learning_rate=1e-3,
        t=step, loss_scale=1.0, target_count=7,
    )  # fmt: skip


def report(compute_ms: float, in_flight: int) -> GradientsReady:
    return GradientsReady(
        session=SESSION, generation=1, step=1, norms={}, loss_sums={}, max_in_flight=in_flight,
        compute_ms=compute_ms,
    )  # fmt: skip


@pytest.fixture
def store() -> MemoryStore:
    """With a record of the session."""
    made = MemoryStore(SystemClock())
    record = SessionRecord(
        session=SESSION, created_ms=0, status="running", step=0, network=NetworkId("n"), network_name="n",
        dataset="d", tokenizer="t", settings={}, device_class="", workers=(PNodeId("worker-1"),), pid=1,
    )  # fmt: skip
    create_session(made, record, b"{}")
    return made


@pytest.fixture
def journal(store: MemoryStore) -> SessionJournal:
    return SessionJournal(store, SESSION, Ticking(), lambda effect, parts: "path", StartPoint)


def test_a_commit_is_read_back_bit_for_bit_with_its_ledger_rows(
    store: MemoryStore, journal: SessionJournal
) -> None:
    journal.commit(AppendCommit(1, decision(1), (5, 6)))
    journal.commit(AppendCommit(2, decision(2, skip=True), (7, 8)))
    assert read_decisions(store, SESSION) == {1: decision(1), 2: decision(2, skip=True)}
    assert store.ledger(SESSION) == [(1, 5, False), (1, 6, False), (2, 7, True), (2, 8, True)]


def test_a_second_commit_of_a_step_is_refused_and_the_first_stays(
    store: MemoryStore, journal: SessionJournal
) -> None:
    journal.commit(AppendCommit(1, decision(1), (5,)))
    with pytest.raises(StoreError):
        journal.commit(AppendCommit(2, msgspec.structs.replace(decision(1), loss=9.0), (5,)))
    assert read_decisions(store, SESSION) == {1: decision(1)}
    assert store.ledger(SESSION) == [(1, 5, False)]


def test_a_commit_row_that_is_none_is_named(store: MemoryStore) -> None:
    store.append_commit(SESSION, 4, b'{"step": "four"}', (), is_skipped=False)
    with pytest.raises(StoreError, match="the commit row of step 4 cannot be read"):
        read_decisions(store, SESSION)


def test_metrics_of_a_step_are_its_decision_and_each_pnodes_compute_time(
    store: MemoryStore, journal: SessionJournal
) -> None:
    reports = {PNodeId("worker-1"): report(3.0, 2), PNodeId("worker-2"): report(4.0, 3)}
    journal.record(Progress(decision(1), is_replay=False, reports=reports))
    journal.record(Progress(decision(2), is_replay=False, reports=reports))
    first, second = (row["values"] for row in store.metrics(SESSION))
    assert first["loss"] == 1.0 / 3.0
    assert (first["max_in_flight"], first["target_tokens"], first["skipped"]) == (3.0, 7.0, 0.0)
    assert (first["compute_ms/worker-1"], first["compute_ms/worker-2"]) == (3.0, 4.0)
    assert "step_ms" not in first
    assert second["step_ms"] == 40.0


def test_a_replayed_step_leaves_the_metrics_as_they_were(store: MemoryStore, journal: SessionJournal) -> None:
    journal.record(Progress(decision(1), is_replay=True, reports={PNodeId("worker-1"): report(3.0, 2)}))
    assert store.metrics(SESSION) == []


def test_validation_losses_are_read_back_by_step(store: MemoryStore, journal: SessionJournal) -> None:
    journal.record(Progress(decision(10), is_replay=False, reports={PNodeId("worker-1"): report(3.0, 2)}))
    journal.record(Validated(10, 0.1 + 0.2))
    assert read_validations(store, SESSION) == {10: 0.1 + 0.2}
    assert store.metrics(SESSION)[0]["values"]["loss"] == 1.0 / 3.0


def test_the_record_gathers_the_device_classes_of_all_pnodes_once_each(
    store: MemoryStore, journal: SessionJournal
) -> None:
    for pnode, device_class in (("worker-1", "b"), ("worker-2", "a"), ("worker-3", "b")):
        journal.record(WorkerReady(PNodeId(pnode), 1, device_class))
    assert get_session(store, SESSION).device_class == "a b"
