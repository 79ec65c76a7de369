"""Folders that appear whole or not at all, and files that are what they were. Knows no tokens.

A folder is filled under a hidden name and renamed; a process that dies leaves only the hidden one, which the
next creation in the same place removes. A file lock, which dies with its process, keeps creations apart.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from filelock import FileLock, Timeout

from dcnr_app.errors import DeadlineError, StoreError

MANIFEST = "manifest.json"
LOCK_TIMEOUT_S = 600.0
_PARTIAL = ".partial-"
_READ_BYTES = 1 << 20

S = TypeVar("S", bound=msgspec.Struct)


def create_once(
    parent: Path, name: str, fill: Callable[[Path], None], *, timeout_s: float = LOCK_TIMEOUT_S
) -> Path:
    """`parent/name`, filled by `fill` unless it exists already; `fill` writes the manifest.

    Raises DeadlineError if another process fills there for longer than `timeout_s`, StoreError if the disk
    does not take it.
    """
    target = parent / name
    if (target / MANIFEST).exists():
        return target
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with FileLock(parent / ".lock", timeout=timeout_s):
            if not (target / MANIFEST).exists():
                _remove_partial(parent)
                _fill_and_rename(parent, target, fill)
    except Timeout as error:
        raise DeadlineError(
            f"another process has been writing there for {timeout_s:.0f} s",
            where=str(parent),
            fix="wait for it, or end it",
        ) from error
    except OSError as error:
        raise StoreError(
            "cannot write", where=str(target), why=str(error), fix="free space, or use another home"
        ) from error
    return target


def children(parent: Path) -> Iterator[Path]:
    """Complete folders in `parent` by name."""
    if parent.is_dir():
        for path in sorted(parent.iterdir()):
            if not path.name.startswith(".") and (path / MANIFEST).exists():
                yield path


def write_manifest(folder: Path, manifest: msgspec.Struct) -> None:
    """Write `manifest` as indented JSON, on the disk when this returns."""
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    write_durably(folder / MANIFEST, raw + b"\n")


def read_manifest(folder: Path, manifest_type: type[S]) -> S:
    """The manifest in `folder`. Raises StoreError if it is absent or not of that type."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=manifest_type)
    except (OSError, msgspec.DecodeError, RecursionError) as error:  # the last: nested too deep
        raise StoreError(
            "cannot read the manifest",
            where=str(path),
            why=str(error),
            fix="delete the folder and make it anew",
        ) from error


def write_durably(path: Path, raw: bytes) -> None:
    """Write a file whose bytes are on the disk when this returns."""
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes. Raises StoreError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise StoreError("cannot read", where=str(path), why=str(error)) from error
    return digest.hexdigest()


def _remove_partial(parent: Path) -> None:
    # under the lock every partial folder belongs to a process that died
    for stale in parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale)


def _fill_and_rename(parent: Path, target: Path, fill: Callable[[Path], None]) -> None:
    if target.exists():
        raise StoreError(
            "the folder has no manifest", where=str(target), why="something else made it", fix="delete it"
        )
    partial = parent / f"{_PARTIAL}{target.name}"
    partial.mkdir()
    try:
        fill(partial)
        _sync_folder(partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
