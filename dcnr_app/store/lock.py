"""One writer per home: a file lock that dies with its process, and a note beside it that says who holds it.

The lock decides; the note only informs. Readers never touch the lock, so they are in no writer's way.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import filelock
import msgspec
import psutil

from dcnr_app.errors import RefusedError, StoreError
from dcnr_app.settings import Home
from dcnr_app.store.standing import Identity, identity_of

# Start times are whole clock ticks, computed anew by each reader from the boot time.
_START_TOLERANCE_S = 2.0


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a home. `started_s` (seconds since 1970) tells it from a later process
    with its pid.
    """

    pid: int
    doing: str
    started_s: float


class HomeLock:
    """The exclusive right to write in a home. Use as a context manager, or `acquire` and `release`."""

    def __init__(self, home: Home, doing: str) -> None:
        """`doing` is what others are told, e.g. "training session s-20261130-224501-ab12"."""
        self._home = home
        self._doing = doing
        self._identity: Identity = None
        self._lock = filelock.FileLock(home.lock, mode=0o600, blocking=False, thread_local=False)

    def acquire(self) -> None:
        """Take the home at once, creating its folders. Raises RefusedError if another process has it."""
        self._home.ensure()
        try:
            self._lock.acquire()
        except filelock.Timeout as error:
            raise _refusal(self._home) from error
        except OSError as error:
            raise StoreError(
                "the home cannot be locked", where=str(self._home.lock), why=error.strerror or str(error)
            ) from error
        self._identity = identity_of(self._home.lock)
        try:
            _write_note(self._home.lock_holder, self._doing)
        except OSError as error:
            self._lock.release()
            raise StoreError(
                "the home cannot be written", where=str(self._home.root), why=error.strerror or str(error)
            ) from error

    def release(self) -> None:
        """Give the home back; safe to call twice."""
        if self._lock.is_locked:
            # The note goes first: while the lock is held nobody else can have written it. If the home was
            # replaced meanwhile, the note that stands there is another's.
            if identity_of(self._home.lock) == self._identity:
                self._home.lock_holder.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> Self:
        """Acquire."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()


def holder(home: Home) -> Holder | None:
    """Who holds the home, if its process lives. For display; only `HomeLock.acquire` decides."""
    try:
        note = msgspec.json.decode(home.lock_holder.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return note if is_process(note.pid, note.started_s) else None


def is_process(pid: int, started_s: float) -> bool:
    """Whether the process that began at `started_s` (seconds since 1970) under this pid lives. A zombie does
    not: it was killed and only waits for its parent; its locks are gone."""
    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - started_s) < _START_TOLERANCE_S
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _write_note(path: Path, doing: str) -> None:
    me = psutil.Process()
    note = Holder(pid=me.pid, doing=doing, started_s=me.create_time())
    # Replaced whole, so that a reader never sees half a note.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(note))
    fresh.replace(path)


def _refusal(home: Home) -> RefusedError:
    found = holder(home)
    if found is None:
        return RefusedError(
            "another process holds this home",
            where=str(home.root),
            why="it is just starting or ending; one process at a time may write here",
            fix="try again, or use another home (DCNR_HOME)",
        )
    return RefusedError(
        f"process {found.pid} holds this home: {found.doing}",
        where=str(home.root),
        why="one process at a time may write here; nothing was changed",
        fix="wait until it ends, stop it, or use another home (DCNR_HOME)",
    )
