"""One SQLite file behind one connection: transactions, schema versions, errors in words. Knows no tables."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import msgspec

from dcnr_app.errors import StoreError
from dcnr_app.store.sqlite_errors import damaged, explain, primary_code
from dcnr_app.store.standing import Identity, check_standing, identities_of

BUSY_TIMEOUT_MS = 5000


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the files.

    `migrations[i]` holds the statements that lead from schema version i to i + 1. `if_lost` says what
    moving the file aside would cost.
    """

    migrations: tuple[tuple[str, ...], ...]
    synchronous: Literal["FULL", "NORMAL"]
    if_lost: str
    busy_timeout_ms: int = BUSY_TIMEOUT_MS


class Database:
    """A writer of one SQLite file in WAL mode. May be used from several threads; they take turns."""

    def __init__(self, path: Path, settings: DatabaseSettings, guards: tuple[Path, ...] = ()) -> None:
        """Open or create the file, check it and bring its schema up to date.

        `guards` are other files, as a lock, without which nothing may be written either.
        Raises StoreError if it is damaged, locked, read-only, or made by a newer app.
        """
        self._path = path
        self._settings = settings
        self._lock = RLock()
        self._broken_by: StoreError | None = None
        self._standing: Mapping[Path, Identity] = {}
        self._connection: sqlite3.Connection | None = None
        with self._in_words():
            # The mode is the user's alone whatever the umask; SQLite gives -wal and -shm the same.
            path.touch(mode=0o600, exist_ok=True)
            connection = self._connection = _connect(str(path), settings, is_uri=False)
            try:
                _refuse_newer(path, settings, self._schema_version(connection))
                self._quick_check(connection)
                self._set_durability(connection)
                self._migrate(connection)
                self._standing = identities_of((path, path.with_name(f"{path.name}-wal"), *guards))
            except BaseException:
                self._connection = None
                connection.close()
                raise

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SELECT: one short snapshot."""
        with self._lock, self._in_words():
            return self._open_connection().execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its start; durable when the block ends, or undone.

        Raises StoreError, also if the file is not at its path any more. After a disk error all later writes
        are refused: the system may have dropped the pages that it could not write, so that a second sync
        would succeed without them.
        """
        with self._lock, self._in_words():
            if self._broken_by is not None:
                raise self._broken_by
            connection = self._open_connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                check_standing(self._standing)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close; safe to call twice."""
        with self._lock, self._in_words():
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError("the store is closed", where=str(self._path))
        return self._connection

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            said = explain(error, self._path, self._settings.if_lost)
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                self._broken_by = said
            raise said from error
        except OSError as error:
            raise StoreError(
                "the database cannot be created", where=str(self._path), why=error.strerror or str(error)
            ) from error

    def _schema_version(self, connection: sqlite3.Connection) -> int:
        return _schema_version(connection, self._path, self._settings.if_lost)

    def _quick_check(self, connection: sqlite3.Connection) -> None:
        ((finding,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
        if finding != "ok":
            raise damaged(self._path, str(finding), self._settings.if_lost)

    def _set_durability(self, connection: sqlite3.Connection) -> None:
        ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
        if mode != "wal":
            raise StoreError(
                f"SQLite kept journal mode {mode!r} instead of WAL",
                where=str(self._path),
                why="network file systems cannot share memory between processes",
                fix="set DCNR_HOME to a folder on a local disk",
            )
        connection.execute(f"PRAGMA synchronous={self._settings.synchronous}")
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync=1")
            connection.execute("PRAGMA checkpoint_fullfsync=1")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        newest = len(self._settings.migrations)
        # Also when there is nothing to do: SQLite opens a file that it may not write for reading, without a
        # word, and even grants BEGIN IMMEDIATE; only a write tells.
        with self.transaction():
            version = self._schema_version(connection)
            if version == 0:
                connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
                connection.execute("INSERT INTO schema_version VALUES (0)")
            for statements in self._settings.migrations[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute("UPDATE schema_version SET version = ?", (newest,))


class DatabaseReader:
    """A reader of one SQLite file that another process may be writing. A writer never waits for it."""

    def __init__(self, path: Path, settings: DatabaseSettings) -> None:
        """Touches nothing: the file may not exist yet, and is looked for at each read until it does."""
        self._path = path
        self._settings = settings
        self._lock = RLock()
        self._is_closed = False
        self._connection: sqlite3.Connection | None = None

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SELECT; none while nothing was stored. Raises StoreError."""
        with self._lock:
            if self._is_closed:
                raise StoreError("the store is closed", where=str(self._path))
            try:
                connection = self._find()
                return [] if connection is None else connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise explain(error, self._path, self._settings.if_lost) from error

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Always raises StoreError."""
        raise StoreError(
            "this store is open for reading only; nothing was written",
            where=str(self._path),
            fix="write through the process that holds the home",
        )

    def close(self) -> None:
        """Close; safe to call twice."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _find(self) -> sqlite3.Connection | None:
        if self._connection is None and self._path.is_file():
            connection = _connect(f"{self._path.absolute().as_uri()}?mode=ro", self._settings, is_uri=True)
            try:
                version = _schema_version(connection, self._path, self._settings.if_lost)
                _refuse_newer(self._path, self._settings, version)
            except BaseException:
                connection.close()
                raise
            if version == 0:
                connection.close()
            else:
                self._connection = connection
        return self._connection


def _connect(name: str, settings: DatabaseSettings, *, is_uri: bool) -> sqlite3.Connection:
    # Threads are kept apart by the owner's lock. isolation_level None: transactions begin where we say.
    return sqlite3.connect(
        name,
        timeout=settings.busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        uri=is_uri,
    )


def _schema_version(connection: sqlite3.Connection, path: Path, if_lost: str) -> int:
    """From 1; 0 if the file is still empty. Raises StoreError if it is there and no such number."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone():
        return 0
    try:
        found = [row[0] for row in connection.execute("SELECT version FROM schema_version LIMIT 2")]
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        raise damaged(path, f"its schema version cannot be read: {error}", if_lost) from error
    # It is written in one transaction with the tables, so that nobody ever sees it empty or 0.
    if len(found) != 1 or not isinstance(found[0], int) or found[0] < 1:
        shown = ", ".join(repr(version)[:40] for version in found) or "nothing"
        raise damaged(path, f"its schema version is {shown} instead of one number from 1", if_lost)
    return found[0]


def _refuse_newer(path: Path, settings: DatabaseSettings, version: int) -> None:
    known = len(settings.migrations)
    if version > known:
        raise StoreError(
            f"this home was written by a newer dcnr-app (schema {version}; this one knows {known})",
            where=str(path),
            why="an older app could damage what it does not know; nothing was changed",
            fix="pip install --upgrade dcnr-app",
        )
