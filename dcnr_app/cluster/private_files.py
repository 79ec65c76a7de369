"""Small files that only their owner may read, replaced whole. Knows no content. IO."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from dcnr_app.errors import StoreError
from dcnr_app.store.files import SYSTEM_FILES, Files

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


def ensure_private_folder(folder: Path) -> None:
    """Create the folder and its parents; close it to others if they could look into it. Raises StoreError."""
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if sys.platform != "win32" and folder.stat().st_mode & 0o077:
            folder.chmod(_FOLDER_MODE)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_private(path: Path, data: bytes, files: Files = SYSTEM_FILES) -> None:
    """Replace a file at once: a reader, or a start after a power cut, sees the old one or the new one whole.

    Raises StoreError; then the old file is as it was."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        files.sync_file(fresh)
        fresh.replace(path)
        files.sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def read_private(path: Path) -> bytes | None:
    """The file's bytes, or None if there is none. Raises StoreError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"cannot read {path.name}",
            where=str(path),
            why=error.strerror or str(error),
            fix="make it readable for you, or move it away",
        ) from error


def set_aside(folder: Path, names: tuple[str, ...], reason: str, files: Files = SYSTEM_FILES) -> Path | None:
    """Move these files of `folder` into a new folder beside them, whose name holds `reason` (a-z and -); None
    if none is there. Raises StoreError."""
    there = [name for name in names if (folder / name).exists()]
    if not there:
        return None
    aside = folder / f"set-aside-{reason}-{secrets.token_hex(3)}"
    try:
        aside.mkdir(mode=_FOLDER_MODE)
        for name in there:
            (folder / name).replace(aside / name)
        files.sync_folder(aside)
        files.sync_folder(folder)
    except OSError as error:
        raise _unwritable(aside, error) from error
    return aside


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write {path.name}",
        where=str(path),
        why=error.strerror or str(error),
        fix="free some space, or set DCNR_HOME to a folder that you can write to",
    )
