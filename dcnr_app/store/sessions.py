"""Records of sessions in a Store's key-values: what was trained, how far, in which state. Knows no lock.

A record that cannot be read takes no other one with it: it is left out of lists and named.
"""

from __future__ import annotations

import logging
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

_LOG = logging.getLogger(__name__)


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


class UnreadableSession(msgspec.Struct, frozen=True):
    """A stored record that cannot be read: the key under which it lies, and the error that says why."""

    key: str
    error: StoreError


class SessionListing(msgspec.Struct, frozen=True):
    """All records of a store, oldest first: those that can be read, and those that cannot."""

    records: tuple[SessionRecord, ...]
    unreadable: tuple[UnreadableSession, ...]


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
    value = change(store, SESSIONS, session, lambda old: _encode(new_record(_decode(session, old))))
    return _decode(session, value)


def get_session(store: Store, session: str) -> SessionRecord:
    """The record as it was stored. Raises UserError if there is none, StoreError if it cannot be read."""
    raw = store.get(SESSIONS, session)
    if raw is None:
        known = [key for key, _ in store.items(SESSIONS)][-3:]
        raise UserError(
            f"there is no session {session!r}",
            fix=f"the newest are {', '.join(reversed(known))}" if known else "none was started yet",
        )
    return _decode(session, raw)


def read_sessions(store: Store) -> SessionListing:
    """All records as they were stored; one that cannot be read is told with its reason."""
    records: list[SessionRecord] = []
    unreadable: list[UnreadableSession] = []
    for key, raw in store.items(SESSIONS):
        try:
            records.append(_decode(key, raw))
        except StoreError as error:
            unreadable.append(UnreadableSession(key, error))
    return SessionListing(tuple(records), tuple(unreadable))


def list_sessions(store: Store) -> tuple[SessionRecord, ...]:
    """All records that can be read, oldest first; `read_sessions` tells the others too."""
    return read_sessions(store).records


def committed_step(store: Store, session: str) -> int:
    """The newest committed step; 0 before the first. The record's own step lags behind a killed process.

    Decodes no row: one that is damaged does not hide how far a session came.
    """
    return max((step for step, _ in store.commits(session)), default=0)


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
    Records that cannot be read are logged, each once, and left as they are.
    """
    listing = read_sessions(store)
    for entry in listing.unreadable:
        _LOG.warning("session_left_out %s", entry.error)
    dead = tuple(record.session for record in listing.records if record.status == "running")
    for session in dead:
        update_session(store, session, lambda record: msgspec.structs.replace(record, status="interrupted"))
    return dead


def _encode(record: SessionRecord) -> bytes:
    return msgspec.json.encode(record, order="sorted")


def _decode(key: str, raw: bytes) -> SessionRecord:
    try:
        record = msgspec.json.decode(raw, type=SessionRecord)
        if record.session != check_id(key, "session"):
            raise _unreadable(key, f"it is the record of {record.session!r}")
    # The last three: text that is no UTF-8, values nested too deep, a key that is no id.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UserError) as error:
        raise _unreadable(key, str(error)) from error
    return record


def _unreadable(key: str, why: str) -> StoreError:
    return StoreError(
        "a session record cannot be read",
        where=key if key.isprintable() else repr(key),
        why=why,
        fix="if a newer dcnr-app wrote it: pip install --upgrade dcnr-app; else start a new session: "
        "this one's checkpoints still load by their path",
    )
