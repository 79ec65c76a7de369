"""The Store on SQLite: a control file that is durable at every commit and a metrics file that need not be.

Knows tables and statements; how a file is opened, locked and checked is database.py's. Measured on a 2-core
machine with a virtual disk: FULL about 170 commits/s (6 ms each), NORMAL about 70 000/s.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from dcnr_app.clock import Clock, SystemClock
from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.database import BUSY_TIMEOUT_MS, Database, DatabaseReader, DatabaseSettings
from dcnr_app.store.idempotent import repeated_step, stream_moved
from dcnr_app.store.store import Recorded, Row

_LOG = logging.getLogger(__name__)

CONTROL_MIGRATIONS = (
    (
        "CREATE TABLE events (stream TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,"
        " body BLOB NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (stream, seq))",
        "CREATE TABLE commits (session TEXT NOT NULL, step INTEGER NOT NULL, body BLOB NOT NULL,"
        " PRIMARY KEY (session, step))",
        # Samples are not unique: one counted twice must be seen by the audit, not hidden by the table.
        "CREATE TABLE ledger (session TEXT NOT NULL, step INTEGER NOT NULL, position INTEGER NOT NULL,"
        " sample INTEGER NOT NULL, is_skipped INTEGER NOT NULL, PRIMARY KEY (session, step, position))"
        " WITHOUT ROWID",
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, table_name TEXT NOT NULL, key TEXT NOT NULL,"
        " value BLOB NOT NULL, UNIQUE (table_name, key))",
    ),
)
METRICS_MIGRATIONS = (
    (
        # The values are one MessagePack map: SQLite's REAL would turn NaN into NULL and -0.0 into 0.0.
        "CREATE TABLE metrics (session TEXT NOT NULL, step INTEGER NOT NULL, at_ms INTEGER NOT NULL,"
        " numbers BLOB NOT NULL, PRIMARY KEY (session, step))",
    ),
)

_INSERT = "INSERT INTO entries (table_name, key, value) VALUES (?, ?, ?) ON CONFLICT (table_name, key)"


class SqliteStore:
    """Store on two SQLite files; may be used from several threads, which take turns."""

    def __init__(
        self, control: Database | DatabaseReader, metrics: Database | DatabaseReader, clock: Clock
    ) -> None:
        self._control = control
        self._metrics = metrics
        self._clock = clock
        self._told: set[tuple[str, int]] = set()

    @classmethod
    def open_writer(cls, home: Home, clock: Clock, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Self:
        """The store of a home that the caller holds locked and has ensured. Raises StoreError.

        From then on each write supposes that the home and its lock are still those of now.
        """
        guards = (home.lock,) if home.lock.exists() else ()
        control = Database(home.control, control_settings(busy_timeout_ms), guards)
        try:
            metrics = Database(home.metrics, metrics_settings(busy_timeout_ms), guards)
        except StoreError:
            control.close()
            raise
        return cls(control, metrics, clock)

    @classmethod
    def open_reader(cls, home: Home, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Self:
        """A store that only reads: beside a running session, without the lock, or before anything exists."""
        control = DatabaseReader(home.control, control_settings(busy_timeout_ms))
        return cls(control, DatabaseReader(home.metrics, metrics_settings(busy_timeout_ms)), SystemClock())

    def append(self, stream: str, kind: str, body: bytes, *, expected_seq: int) -> int:
        """Append event number expected_seq + 1; returns it. Raises StoreError if the stream is elsewhere."""
        with self._control.transaction() as connection:
            (last,) = connection.execute(
                "SELECT coalesce(max(seq), 0) FROM events WHERE stream = ?", (stream,)
            ).fetchone()
            if last != expected_seq:
                raise stream_moved(stream, expected_seq, last)
            connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                (stream, expected_seq + 1, kind, body, self._clock.wall_ms()),
            )
        return expected_seq + 1

    def append_commit(
        self, session: str, step: int, body: bytes, samples: Sequence[int], *, is_skipped: bool
    ) -> None:
        """The step's commit row and its ledger rows in one transaction; `body` is kept byte for byte."""
        with self._control.transaction() as connection:
            inserted = connection.execute(
                "INSERT OR IGNORE INTO commits VALUES (?, ?, ?)", (session, step, body)
            ).rowcount
            if not inserted:
                raise repeated_step(session, step)
            connection.executemany(
                "INSERT INTO ledger VALUES (?, ?, ?, ?, ?)",
                [(session, step, i, sample, is_skipped) for i, sample in enumerate(samples)],
            )

    def commits(self, session: str) -> Sequence[tuple[int, bytes]]:
        """(step, body) of all commit rows, by step."""
        rows = self._control.rows(
            "SELECT step, body FROM commits WHERE session = ? ORDER BY step", (session,)
        )
        return [(step, _as_bytes(body)) for step, body in rows]

    def ledger(self, session: str) -> Sequence[tuple[int, int, bool]]:
        """(step, sample id, is_skipped) of all counted samples, by step."""
        rows = self._control.rows(
            "SELECT step, sample, is_skipped FROM ledger WHERE session = ? ORDER BY step, position",
            (session,),
        )
        return [(step, sample, bool(is_skipped)) for step, sample, is_skipped in rows]

    def read(self, stream: str, since: int = 0) -> Sequence[Recorded]:
        """Events after number `since`, in order."""
        rows = self._control.rows(
            "SELECT seq, kind, body, at_ms FROM events WHERE stream = ? AND seq > ? ORDER BY seq",
            (stream, since),
        )
        return [Recorded(seq, kind, _as_bytes(body), at_ms) for seq, kind, body, at_ms in rows]

    def add_metrics(self, session: str, step: int, values: Mapping[str, float], at_ms: int) -> None:
        """Merge `values` into the step's row: a value recorded again replaces the older one."""
        with self._metrics.transaction() as connection:
            older = connection.execute(
                "SELECT numbers FROM metrics WHERE session = ? AND step = ?", (session, step)
            ).fetchone()
            numbers = {} if older is None else self._numbers(session, step, older[0])
            numbers.update((name, float(value)) for name, value in values.items())
            connection.execute(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)",
                (session, step, at_ms, msgspec.msgpack.encode(numbers)),
            )

    def metrics(self, session: str, since_step: int = 0) -> Sequence[Row]:
        """Rows `{step, at_ms, values}` with step > since_step, by step."""
        rows = self._metrics.rows(
            "SELECT step, at_ms, numbers FROM metrics WHERE session = ? AND step > ? ORDER BY step",
            (session, since_step),
        )
        return [
            {"step": step, "at_ms": at_ms, "values": self._numbers(session, step, numbers)}
            for step, at_ms, numbers in rows
        ]

    def put(
        self, table: str, key: str, value: bytes, *, expected: bytes | None = None, create: bool = False
    ) -> bool:
        """Set a value; False if `create` or `expected` did not hold."""
        if create and expected is not None:
            raise ValueError("put takes create or expected, not both")
        with self._control.transaction() as connection:
            if expected is not None:
                statement = "UPDATE entries SET value = ? WHERE table_name = ? AND key = ? AND value = ?"
                return connection.execute(statement, (value, table, key, expected)).rowcount == 1
            # An upsert keeps the row's number, and so the key's place in the order of creation.
            statement = _INSERT + (" DO NOTHING" if create else " DO UPDATE SET value = excluded.value")
            return connection.execute(statement, (table, key, value)).rowcount == 1

    def get(self, table: str, key: str) -> bytes | None:
        """A value."""
        rows = self._control.rows("SELECT value FROM entries WHERE table_name = ? AND key = ?", (table, key))
        return _as_bytes(rows[0][0]) if rows else None

    def items(self, table: str) -> Sequence[tuple[str, bytes]]:
        """All (key, value) of a table in the order in which the keys were created."""
        rows = self._control.rows(
            "SELECT key, value FROM entries WHERE table_name = ? ORDER BY number", (table,)
        )
        return [(key, _as_bytes(value)) for key, value in rows]

    def close(self) -> None:
        """Close both files; safe to call twice."""
        try:
            self._control.close()
        finally:
            self._metrics.close()

    def _numbers(self, session: str, step: int, raw: object) -> dict[str, float]:
        """A metrics row's values; none where they cannot be read, told once: charts stop no training."""
        try:
            return msgspec.msgpack.decode(_as_bytes(raw), type=dict[str, float])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if (session, step) not in self._told:
                self._told.add((session, step))
                _LOG.warning("metrics_left_out session=%s step=%s why=%s", session, step, error)
            return {}


def control_settings(busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> DatabaseSettings:
    """How the control file is kept."""
    return DatabaseSettings(
        migrations=CONTROL_MIGRATIONS,
        synchronous="FULL",
        if_lost="sessions' events and decisions are then gone, checkpoints stay and load by their path",
        busy_timeout_ms=busy_timeout_ms,
    )


def metrics_settings(busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> DatabaseSettings:
    """How the metrics file is kept."""
    return DatabaseSettings(
        migrations=METRICS_MIGRATIONS,
        synchronous="NORMAL",
        if_lost="only the charts of past sessions are then gone",
        busy_timeout_ms=busy_timeout_ms,
    )


def _as_bytes(value: object) -> bytes:
    """A stored value as this app wrote it; SQLite keeps text or a number in a BLOB column too."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
