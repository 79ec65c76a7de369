"""Where the agent of a home can be asked: its port and token, for processes of the same user. IO."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import msgspec
import psutil

from dcnr_app.cluster.private_files import ensure_private_folder, read_private, write_private
from dcnr_app.errors import RefusedError
from dcnr_app.settings import Home
from dcnr_app.store.lock import is_process


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that runs in a home. `started_s` (seconds since 1970) tells it from a later process with its
    pid. Whoever reads the token may do what the user may."""

    pid: int
    started_s: float
    port: int
    token: str

    def __repr__(self) -> str:
        """Without the token, so that no log can hold it."""
        return f"AgentFile(pid={self.pid}, port={self.port})"


def agent_path(home: Home) -> Path:
    """The file."""
    return home.root / "cluster" / "agent.json"


@contextmanager
def held_by_agent(home: Home) -> Iterator[None]:
    """One agent at a time per home: the lock dies with its process. Raises RefusedError if another has it."""
    folder = agent_path(home).parent
    ensure_private_folder(folder)
    lock = filelock.FileLock(folder / "agent.lock", mode=0o600, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        found = read_agent_file(home)
        raise RefusedError(
            "an agent runs in this home already" + (f": process {found.pid}" if found else ""),
            where=str(home.root),
            fix="see it with: dcnr-app status; end it with: dcnr-app down",
        ) from error
    try:
        yield
    finally:
        lock.release()


def write_agent_file(home: Home, port: int, token: str) -> None:
    """This process is the agent of the home. Raises StoreError."""
    me = psutil.Process()
    ensure_private_folder(agent_path(home).parent)
    note = AgentFile(pid=me.pid, started_s=me.create_time(), port=port, token=token)
    write_private(agent_path(home), msgspec.json.encode(note))


def drop_agent_file(home: Home) -> None:
    """No agent runs any more."""
    agent_path(home).unlink(missing_ok=True)


def read_agent_file(home: Home) -> AgentFile | None:
    """The agent that runs in the home; None if none does, also where a dead one left its file. Raises
    StoreError if the file cannot be read."""
    raw = read_private(agent_path(home))
    if raw is None:
        return None
    try:
        note = msgspec.json.decode(raw, type=AgentFile)
    except msgspec.MsgspecError:
        return None
    return note if is_running(note) else None


def is_running(note: AgentFile) -> bool:
    """Whether the agent's process lives, also when its file is gone already."""
    return is_process(note.pid, note.started_s)
