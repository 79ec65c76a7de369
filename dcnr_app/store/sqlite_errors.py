"""SQLite's error codes in words for people: the one place that maps them. Knows no tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dcnr_app.errors import StoreError


def explain(error: sqlite3.Error, path: Path, if_lost: str) -> StoreError:
    """The one place where SQLite's error codes become words for people."""
    where, why = str(path), str(error)
    match primary_code(error):
        case sqlite3.SQLITE_FULL:
            return StoreError(
                "the disk is full: nothing of this write was kept, all earlier ones were",
                where=where,
                why=why,
                fix="free some space; the write can then be tried again",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                "the database is locked by another program: nothing of this write was kept",
                where=where,
                why=why,
                fix="close what holds it (a backup tool, a database browser) and try again",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, why, if_lost)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return StoreError(
                "the database cannot be written or opened",
                where=where,
                why=why,
                fix="give your user write permission on the file and its folder, or set DCNR_HOME elsewhere",
            )
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                "the disk failed: it is unknown whether this write was kept; all later ones are refused",
                where=where,
                why=why,
                fix="check the disk and start again; what was acknowledged before is kept",
            )
        case _:
            return StoreError("the database refused", where=where, why=why)


def damaged(path: Path, finding: str, if_lost: str) -> StoreError:
    """The error for a file whose contents do not fit together."""
    return StoreError(
        "the database is damaged",
        where=str(path),
        why=finding,
        fix=f"move {path.name}, {path.name}-wal and {path.name}-shm elsewhere and start again; {if_lost}",
    )


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension."""
    # The low byte is the primary code; errors that the Python module itself raises carry none.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
