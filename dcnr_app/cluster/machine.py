"""This machine's identity: its key, its id and name, and that they stay on this machine. IO.

A copied data folder must not give two machines one id, so the key is bound to the machine: beside it lies a
salted hash of what the system calls the machine. Where that differs, the folder came from elsewhere.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import msgspec

from dcnr_app.cluster.keys import key_fingerprint, machine_id, new_key_pem, public_pem
from dcnr_app.cluster.machine_binding import machine_binding
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.cluster.private_files import ensure_private_folder, read_private, set_aside, write_private
from dcnr_app.errors import RefusedError, StoreError, UserError
from dcnr_app.settings import Home

KEY_FILE = "machine.key"
NOTE_FILE = "machine.json"
CLUSTER_FILES = ("cluster.json", "authority.key", "authority.pem", "members.json", "invites.json")
"""What belongs to the key: it goes where the key goes."""

_LOCK_S = 10.0
_SALT_BYTES = 16


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """This machine. `id` is the hash of its public key; `name` is for people and may change; `notices` say
    what a person should know about how it was loaded."""

    id: str
    name: str
    key_pem: bytes
    public_key_pem: bytes
    notices: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """sha256 of the public key, hex; the id is its beginning."""
        return key_fingerprint(self.public_key_pem)

    def __repr__(self) -> str:
        """Without the private key, so that no log can hold it."""
        return f"Machine(id={self.id!r}, name={self.name!r})"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside the key."""

    salt: str
    binding: str
    name: str


def load_machine(home: Home, *, binding: Callable[[], str] = machine_binding, name: str = "") -> Machine:
    """This machine's identity, made at first use; the same at every later start and in every process.

    `binding` says what machine this is; `name` is used for a new identity, else the host's name. Raises
    StoreError if the files cannot be read or written.
    """
    folder = home.root / "cluster"
    ensure_private_folder(folder)
    with _lock(folder):
        return _load_or_create(folder, binding(), plain_text(name) or _host_name())


def rename_machine(home: Home, machine: Machine, name: str) -> Machine:
    """The same machine under another name. Raises UserError if nothing of the name can be shown, and
    StoreError."""
    shown = plain_text(name)
    if not shown:
        raise UserError(f"{name!r} is no name", why="a name holds letters that can be shown")
    folder = home.root / "cluster"
    with _lock(folder):
        note = _read_note(folder)
        if note is not None:
            _write_note(folder, msgspec.structs.replace(note, name=shown))
    return msgspec.structs.replace(machine, name=shown)


def _load_or_create(folder: Path, binding: str, name: str) -> Machine:
    note = _read_note(folder)
    key_pem = read_private(folder / KEY_FILE)
    if key_pem is None:
        if note is None:
            return _create(folder, binding, name, ())
        return _replace(folder, binding, name, "the key of this machine is missing")
    if note is None:  # the first start ended between the two files
        note = _bound(binding, name)
        _write_note(folder, note)
    if note.binding != _hashed(note.salt, binding):
        return _replace(folder, binding, name, "this data folder was copied from another machine")
    return _machine(folder, key_pem, note.name or name, ())


def _create(folder: Path, binding: str, name: str, notices: tuple[str, ...]) -> Machine:
    key_pem = new_key_pem()
    write_private(folder / KEY_FILE, key_pem)
    _write_note(folder, _bound(binding, name))
    return _machine(folder, key_pem, name, notices)


def _replace(folder: Path, binding: str, name: str, why: str) -> Machine:
    """A new identity in place of one that is not this machine's; the old files are kept."""
    was_member = (folder / CLUSTER_FILES[0]).exists()
    # The key goes last but for its note: an end in between leaves what this start saw.
    aside = set_aside(folder, (*CLUSTER_FILES, KEY_FILE, NOTE_FILE), "another-machine")
    notice = f"{why}: it got a new id"
    if was_member:
        notice += " and is in no cluster any more; join again with `dcnr-app join`"
    if aside is not None:
        notice += f" (the old files are kept in {aside})"
    return _create(folder, binding, name, (notice,))


def _machine(folder: Path, key_pem: bytes, name: str, notices: tuple[str, ...]) -> Machine:
    try:
        public_key_pem = public_pem(key_pem)
    except RefusedError as error:
        raise StoreError(
            "the key of this machine cannot be read",
            where=str(folder / KEY_FILE),
            why=f"{error.what}: {error.why}",
            fix="restore the file, or move it away: this machine then gets a new id",
        ) from error
    return Machine(
        id=machine_id(public_key_pem),
        name=name,
        key_pem=key_pem,
        public_key_pem=public_key_pem,
        notices=notices,
    )


def _bound(binding: str, name: str) -> _Note:
    salt = secrets.token_hex(_SALT_BYTES)
    return _Note(salt=salt, binding=_hashed(salt, binding), name=name)


def _hashed(salt: str, binding: str) -> str:
    return hashlib.sha256(f"dcnr machine\n{salt}\n{binding}".encode()).hexdigest()


def _read_note(folder: Path) -> _Note | None:
    path = folder / NOTE_FILE
    data = read_private(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=_Note)
    except msgspec.MsgspecError as error:
        raise StoreError(
            "what binds this folder to this machine cannot be read",
            where=str(path),
            why=str(error),
            fix="move the file away: it is made anew, and the machine keeps its id",
        ) from error


def _write_note(folder: Path, note: _Note) -> None:
    write_private(folder / NOTE_FILE, msgspec.json.encode(note))


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time makes or changes the identity."""
    path = folder / "machine.lock"
    try:
        with filelock.FileLock(path, mode=0o600, timeout=_LOCK_S):
            yield
    except filelock.Timeout as error:
        raise StoreError(
            "another process holds this machine's identity",
            where=str(path),
            why=f"it did not let go within {_LOCK_S:.0f} s",
            fix="end the other dcnr-app process and try again",
        ) from error


def _host_name() -> str:
    return plain_text(socket.gethostname().partition(".")[0]) or "machine"
