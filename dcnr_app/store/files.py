"""Durable file operations, one per method, so that a test can make any of them fail. Knows no checkpoint."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dcnr_app.engine.tensorfile import write_tensors
from dcnr_app.errors import StoreError

if sys.platform == "darwin":
    import fcntl


class Files:
    """The file system. Methods raise OSError as the system gives it."""

    def make_folder(self, path: Path) -> None:
        """Create a folder that only its owner can read, and its parents; it may exist."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write a new file; not durable before `sync_file`."""
        path.write_bytes(data)

    def write_tensors(
        self, path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]
    ) -> None:
        """Write a new tensor file. Raises StoreError, with the system's OSError as its cause."""
        write_tensors(path, tensors, metadata)

    def sync_file(self, path: Path) -> None:
        """Return when the file's bytes are on the disk."""
        with path.open("rb+") as file:
            _sync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """Return when the folder's names are on the disk (Windows keeps them without being asked)."""
        if sys.platform == "win32":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a folder its new name at once."""
        source.rename(target)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and what is in it."""
        shutil.rmtree(path)

    def free_bytes(self, path: Path) -> int:
        """Bytes that this user may still write on the disk of `path`."""
        return shutil.disk_usage(path).free


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # macOS's fsync stops at the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


SYSTEM_FILES = Files()


def check_free_bytes(path: Path, need: int, files: Files = SYSTEM_FILES) -> None:
    """Raise StoreError with both figures if the disk of `path` has less than `need` bytes free."""
    free = files.free_bytes(path)
    if free < need:
        raise StoreError(
            f"the disk has {free / 1e6:.1f} MB free, and {need / 1e6:.1f} MB are needed",
            where=str(path),
            why="nothing was written, and nothing that was there is lost",
            fix="free some space, or set DCNR_HOME to a folder on a larger disk",
        )
