"""Records of sessions in a Store's key-values: what was trained, how far, in which state. Knows no lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from dcnr_app.errors import StoreError, UserError
from dcnr_app.ids import NetworkId, PNodeId, SessionId, check_id
from dcnr_app.store.idempotent import change, create_once
from dcnr_app.store.store import Store

Status = Literal["running", "stopped", "finished", "failed", "interrupted"]

SESSIONS = "sessions"
NETWORKS = "networks"


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session. `created_ms` is wall time; `step` the last committed step (0: none yet).

    `settings` is the plain mapping of the TrainingSettings; `dataset` and `tokenizer` are content hashes;
    `pid` is the process that holds, or held, the session.
    """

    session: SessionId
    created_ms: int
    status: Status
    step: int
    network: NetworkId
    network_name: str
    dataset: str
    tokenizer: str
    settings: Mapping[str, Any]
    device_class: str
    workers: tuple[PNodeId, ...]
    pid: int


def new_session_id(wall_ms: int, random_bits: int) -> SessionId:
    """An id like `s-20261130-224501-ab12`: UTC date and time, then the lowest 16 of the random bits."""
    moment = datetime.fromtimestamp(wall_ms / 1000, tz=UTC)
    return SessionId(check_id(f"s-{moment:%Y%m%d-%H%M%S}-{random_bits & 0xFFFF:04x}", "session"))


def create_session(store: Store, record: SessionRecord, network: bytes) -> None:
    """Record a new session and its network's canonical bytes. Raises StoreError if the id is taken.

    The network is stored first, for this session alone: another one with the same id may have other placement
    hints.
    """
    check_id(record.session, "session")
    store.put(NETWORKS, record.session, network, create=True)
    if not create_once(store, SESSIONS, record.session, _encode(record)):
        raise StoreError(f"session {record.session!r} exists already", fix="start again with a new id")


def update_session(
    store: Store, session: str, new_record: Callable[[SessionRecord], SessionRecord]
) -> SessionRecord:
    """Compare and set: replace the record by `new_record(record)`, which may be asked again after a race.

    Returns what was set. Raises UserError if there is no such session.
    """
    get_session(store, session)
    return _decode(change(store, SESSIONS, session, lambda old: _encode(new_record(_decode(old)))))


def get_session(store: Store, session: str) -> SessionRecord:
    """The record as it was stored. Raises UserError if there is none."""
    raw = store.get(SESSIONS, session)
    if raw is None:
        known = [key for key, _ in store.items(SESSIONS)][-3:]
        raise UserError(
            f"there is no session {session!r}",
            fix=f"the newest are {', '.join(reversed(known))}" if known else "none was started yet",
        )
    return _decode(raw)


def list_sessions(store: Store) -> tuple[SessionRecord, ...]:
    """All records as they were stored, oldest first."""
    return tuple(_decode(raw) for _, raw in store.items(SESSIONS))


def network_bytes(store: Store, session: str) -> bytes:
    """The canonical bytes of a session's network. Raises StoreError if they were never stored."""
    raw = store.get(NETWORKS, session)
    if raw is None:
        raise StoreError(f"the network of session {session!r} is not stored here")
    return raw


def as_seen(record: SessionRecord, holder_pid: int | None) -> SessionRecord:
    """The record as a reader shows it: "running" only while its process (`holder_pid`) holds the home."""
    if record.status == "running" and record.pid != holder_pid:
        return msgspec.structs.replace(record, status="interrupted")
    return record


def settle_sessions(store: Store) -> tuple[SessionId, ...]:
    """Mark each session that is recorded as running as interrupted; returns their ids, oldest first.

    For the process that has just taken the home's lock: whoever ran them is gone. Without this a process that
    gets an old one's pid again (in a container it is always the same) would make a dead session look alive.
    """
    dead = tuple(record.session for record in list_sessions(store) if record.status == "running")
    for session in dead:
        update_session(store, session, lambda record: msgspec.structs.replace(record, status="interrupted"))
    return dead


def _encode(record: SessionRecord) -> bytes:
    return msgspec.json.encode(record, order="sorted")


def _decode(raw: bytes) -> SessionRecord:
    try:
        return msgspec.json.decode(raw, type=SessionRecord)
    except msgspec.MsgspecError as error:
        raise StoreError(
            "a session record cannot be read",
            why=str(error),
            fix="it may be from another version: pip install --upgrade dcnr-app",
        ) from error
