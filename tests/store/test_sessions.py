"""Session records: ids, order, compare-and-set, and how a dead session is shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.errors import StoreError, UserError
from dcnr_app.ids import NetworkId, PNodeId, SessionId, check_id
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.store.memory import MemoryStore
from dcnr_app.store.sessions import (
    SessionRecord,
    as_seen,
    committed_step,
    create_session,
    get_session,
    list_sessions,
    network_bytes,
    new_session_id,
    read_sessions,
    settle_sessions,
    update_session,
)
from tests.contracts.store import FixedClock


def make_record(name: str = "s-1", **changes: Any) -> SessionRecord:
    """A running session of process 100."""
    record = SessionRecord(
        session=SessionId(name),
        created_ms=1_796_078_701_000,
        status="running",
        step=0,
        network=NetworkId("0123456789abcdef"),
        network_name="tiny",
        dataset="d" * 64,
        tokenizer="e" * 64,
        settings=msgspec.to_builtins(TrainingSettings(seed=2**63 - 1, clip_norm=1 / 3)),
        device_class="cpu-1",
        workers=(PNodeId("local-1"), PNodeId("local-2")),
        pid=100,
    )
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore(FixedClock())


def test_id_tells_utc_time_and_random_bits() -> None:
    assert new_session_id(1_796_078_701_999, 0xF_AB12) == "s-20261130-224501-ab12"
    assert new_session_id(0, 7) == "s-19700101-000000-0007"


@given(st.integers(0, 4_000_000_000_000), st.integers(0, 2**64))
def test_every_id_can_name_a_file_and_sorts_by_time(wall_ms: int, bits: int) -> None:
    made = new_session_id(wall_ms, bits)
    assert check_id(made, "session") == made
    assert new_session_id(wall_ms + 1000, 0) > made[:-4]


def test_record_comes_back_whole_with_its_network(store: MemoryStore) -> None:
    record = make_record()
    create_session(store, record, b"network")
    assert get_session(store, "s-1") == record
    assert msgspec.convert(get_session(store, "s-1").settings, TrainingSettings) == TrainingSettings(
        seed=2**63 - 1, clip_norm=1 / 3
    )
    assert network_bytes(store, record.session) == b"network"


def test_sessions_of_one_network_keep_their_own_placement_hints(store: MemoryStore) -> None:
    create_session(store, make_record("s-1"), b"network with hints")
    create_session(store, make_record("s-2"), b"network")
    assert network_bytes(store, "s-1") == b"network with hints"
    assert network_bytes(store, "s-2") == b"network"


def test_sessions_are_listed_oldest_first(store: MemoryStore) -> None:
    for name in ("s-3", "s-1", "s-2"):
        create_session(store, make_record(name), b"")
    update_session(store, "s-1", lambda record: msgspec.structs.replace(record, step=9))
    assert [(record.session, record.step) for record in list_sessions(store)] == [
        ("s-3", 0),
        ("s-1", 9),
        ("s-2", 0),
    ]


def test_taken_id_is_refused_and_a_retry_is_not(store: MemoryStore) -> None:
    create_session(store, make_record(), b"")
    create_session(store, make_record(), b"")
    with pytest.raises(StoreError, match="exists already"):
        create_session(store, make_record(step=5), b"")
    assert get_session(store, "s-1").step == 0


def test_id_that_leaves_its_folder_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UserError, match="not a valid session id"):
        create_session(store, make_record("../x"), b"")
    assert list_sessions(store) == ()
    assert list(store.items("networks")) == []


def test_unknown_session_is_refused_with_the_newest_ones(store: MemoryStore) -> None:
    with pytest.raises(UserError, match=r"no session 's-9'(.|\n)*none was started"):
        get_session(store, "s-9")
    create_session(store, make_record(), b"")
    with pytest.raises(UserError, match=r"no session 's-9'(.|\n)*s-1"):
        update_session(store, "s-9", lambda record: record)
    with pytest.raises(StoreError, match="not stored"):
        network_bytes(store, "feedfeedfeedfeed")


def test_updates_from_many_threads_are_all_kept(store: MemoryStore) -> None:
    create_session(store, make_record(), b"")

    def one_more(record: SessionRecord) -> SessionRecord:
        return msgspec.structs.replace(record, step=record.step + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: update_session(store, "s-1", one_more), range(20)))
    assert get_session(store, "s-1").step == 20


@pytest.mark.parametrize(
    ("status", "holder_pid", "seen"),
    [
        ("running", 100, "running"),
        ("running", None, "interrupted"),
        ("running", 101, "interrupted"),
        ("stopped", None, "stopped"),
        ("finished", 100, "finished"),
        ("failed", 101, "failed"),
    ],
)
def test_session_is_seen_as_running_only_while_its_process_holds_the_home(
    status: Any, holder_pid: int | None, seen: str
) -> None:
    assert as_seen(make_record(status=status), holder_pid).status == seen


def test_settling_marks_only_those_recorded_as_running(store: MemoryStore) -> None:
    for name, status in (("s-1", "running"), ("s-2", "finished"), ("s-3", "running"), ("s-4", "failed")):
        create_session(store, make_record(name, status=status), b"")
    assert settle_sessions(store) == ("s-1", "s-3")
    assert [record.status for record in list_sessions(store)] == [
        "interrupted",
        "finished",
        "interrupted",
        "failed",
    ]
    assert settle_sessions(store) == ()


def test_record_of_an_unknown_form_is_said(store: MemoryStore) -> None:
    store.put("sessions", "s-1", b'{"session": 1}')
    with pytest.raises(StoreError, match=r"cannot be read(.|\n)*upgrade"):
        get_session(store, "s-1")


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[" * 100_000, b"null", b'{"session": "s-2"}'])
def test_one_unreadable_record_hides_no_other_and_is_named_once(
    store: MemoryStore, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    create_session(store, make_record("s-1"), b"")
    store.put("sessions", "s-2", raw)
    create_session(store, make_record("s-3"), b"")
    listing = read_sessions(store)
    assert [record.session for record in list_sessions(store)] == ["s-1", "s-3"]
    assert [(entry.key, entry.error.where) for entry in listing.unreadable] == [("s-2", "s-2")]
    assert listing.unreadable[0].error.why
    assert listing.unreadable[0].error.fix
    with caplog.at_level("WARNING"):
        assert settle_sessions(store) == ("s-1", "s-3")
    assert len(caplog.records) == 1
    assert "s-2" in caplog.records[0].getMessage()
    assert store.get("sessions", "s-2") == raw


def test_record_under_another_sessions_key_is_unreadable(store: MemoryStore) -> None:
    create_session(store, make_record("s-1"), b"")
    raw = store.get("sessions", "s-1")
    assert raw is not None
    for key in ("s-2", "../x", "\x1b[2J"):
        store.put("sessions", key, raw)
    assert len(list_sessions(store)) == 1
    assert [entry.error.where for entry in read_sessions(store).unreadable] == ["s-2", "../x", r"'\x1b[2J'"]


def test_committed_step_decodes_no_row(store: MemoryStore) -> None:
    assert committed_step(store, "s-1") == 0
    for step in (1, 2, 3):
        store.append_commit("s-1", step, b"\xff", [], is_skipped=False)
    assert committed_step(store, "s-1") == 3
