"""Writes that may be tried again: what to do when it is unknown whether the first try was kept.

Also the refusals that every Store raises alike. Knows the Store protocol only. A process that died, or a
reply that was lost, leaves a write either kept whole or not at all; these helpers tell which, so that a retry
adds nothing twice. They suppose one writer per stream and session, which the home's lock grants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcnr_app.errors import StoreError
from dcnr_app.store.store import Store

_MOST_TRIES = 100


def stream_moved(stream: str, expected_seq: int, last_seq: int) -> StoreError:
    """The refusal of an append to a stream that is elsewhere."""
    return StoreError(
        f"stream {stream!r} is at event {last_seq}, not {expected_seq}",
        why="another writer appended, or this write was already kept",
        fix="read the stream again before appending; nothing of this write was kept",
    )


def repeated_step(session: str, step: int) -> StoreError:
    """The refusal of a second commit row for one step."""
    return StoreError(
        f"step {step} of session {session!r} is already committed",
        why="a step is decided once; a replayed step reuses its stored decision",
    )


def append_once(store: Store, stream: str, kind: str, body: bytes, *, expected_seq: int) -> int:
    """Append, or find that this very event already stands there. Raises StoreError if another one does."""
    try:
        return store.append(stream, kind, body, expected_seq=expected_seq)
    except StoreError:
        events = store.read(stream, expected_seq)
        if events and (events[0].kind, events[0].body) == (kind, body):
            return events[0].seq
        raise


def commit_once(
    store: Store, session: str, step: int, body: bytes, samples: Sequence[int], *, is_skipped: bool
) -> None:
    """Commit, or find that this very decision was kept. Raises StoreError if another one was."""
    try:
        store.append_commit(session, step, body, samples, is_skipped=is_skipped)
    except StoreError:
        kept = [row for row in store.ledger(session) if row[0] == step]
        same_rows = kept == [(step, sample, is_skipped) for sample in samples]
        if (step, body) not in store.commits(session) or not same_rows:
            raise


def create_once(store: Store, table: str, key: str, value: bytes) -> bool:
    """Whether the key holds this value afterwards: it was absent, or had it already."""
    return store.put(table, key, value, create=True) or store.get(table, key) == value


def change(store: Store, table: str, key: str, new_value: Callable[[bytes], bytes]) -> bytes:
    """Replace a key's value by `new_value(old)`, again if another writer came between; returns what was set.

    Raises StoreError if the key does not exist, or if others kept changing it.
    """
    for _ in range(_MOST_TRIES):
        current = store.get(table, key)
        if current is None:
            raise StoreError(f"{table} has no entry {key!r}")
        value = new_value(current)
        if store.put(table, key, value, expected=current):
            return value
    raise StoreError(f"{table} entry {key!r} kept changing", why=f"{_MOST_TRIES} conditional writes lost")
