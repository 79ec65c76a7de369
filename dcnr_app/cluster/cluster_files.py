"""What a machine keeps of its cluster, under `<home>/cluster/`: files that only their owner may read. IO.

`cluster.json` is written last and removed first: where it is, the others are whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from dcnr_app.cluster.identity import ClusterAuthority, Credentials
from dcnr_app.cluster.joining_codes import CodeBook
from dcnr_app.cluster.machine import CLUSTER_FILES
from dcnr_app.cluster.membership import MachineRole, Membership
from dcnr_app.cluster.private_files import ensure_private_folder, read_private, set_aside, write_private
from dcnr_app.errors import RefusedError, StoreError
from dcnr_app.ids import PNodeId
from dcnr_app.settings import Home
from dcnr_app.store.files import SYSTEM_FILES, Files

_T = TypeVar("_T")
_CLUSTER, _AUTHORITY_KEY, _AUTHORITY, _MEMBERS, _CODES = CLUSTER_FILES


class PNodeSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A PNode of this machine with what it proves itself with."""

    pnode: PNodeId
    credentials: Credentials


class OwnCluster(msgspec.Struct, frozen=True, kw_only=True):
    """This machine's place in its cluster. `runner` is what a session's process proves itself with, on the
    orchestrator only; `orchestrator_fingerprint` is the sha256 of that certificate, which workers expect."""

    cluster: str
    name: str
    machine: str
    role: MachineRole
    agent: Credentials
    pnodes: tuple[PNodeSecret, ...]
    orchestrator: str
    orchestrator_fingerprint: str
    runner: Credentials | None = None

    @property
    def ca_pem(self) -> bytes:
        """The certificate of the cluster's authority."""
        return self.agent.ca_pem


class ClusterFiles:
    """The files of one home. Loading raises StoreError for a file that cannot be read or is not whole."""

    def __init__(self, home: Home, files: Files = SYSTEM_FILES) -> None:
        self.folder: Path = home.root / "cluster"
        self._files = files

    def load_cluster(self) -> OwnCluster | None:
        """This machine's place in its cluster, or None if it is in none."""
        return self._load(_CLUSTER, OwnCluster, "this machine then is in no cluster and can join again")

    def save_cluster(self, own: OwnCluster) -> None:
        """Keep it. Raises StoreError."""
        self._save(_CLUSTER, msgspec.json.encode(own))

    def load_members(self) -> Membership | None:
        """The membership as it was last known, or None."""
        return self._load(_MEMBERS, Membership, "a worker hears of its cluster's members again")

    def save_members(self, membership: Membership) -> None:
        """Keep it. Raises StoreError."""
        self._save(_MEMBERS, msgspec.json.encode(membership))

    def load_codes(self) -> CodeBook:
        """The codes and invites that were given out; none if the file is not there."""
        return self._load(_CODES, CodeBook, "invites given out before are then void") or CodeBook()

    def save_codes(self, book: CodeBook) -> None:
        """Keep them. Raises StoreError."""
        self._save(_CODES, msgspec.json.encode(book))

    def load_authority(self) -> ClusterAuthority | None:
        """The cluster's authority, or None if this machine does not hold it."""
        key_pem, ca_pem = read_private(self.folder / _AUTHORITY_KEY), read_private(self.folder / _AUTHORITY)
        if key_pem is None and ca_pem is None:
            return None
        where = str(self.folder / _AUTHORITY_KEY)
        if key_pem is None or ca_pem is None:
            missing = _AUTHORITY_KEY if key_pem is None else _AUTHORITY
            raise StoreError(f"{missing} of this cluster is missing", where=where, fix=_RESTORE)
        try:
            return ClusterAuthority(key_pem, ca_pem)
        except (ValueError, TypeError, RefusedError) as error:
            raise StoreError(
                "the authority of this cluster cannot be read", where=where, why=str(error), fix=_RESTORE
            ) from error

    def save_authority(self, authority: ClusterAuthority) -> None:
        """Keep it. Raises StoreError."""
        self._save(_AUTHORITY_KEY, authority.key_pem)
        self._save(_AUTHORITY, authority.ca_pem)

    def drop_cluster(self, reason: str) -> Path | None:
        """Be in no cluster any more; the files are kept in the folder that is returned, None if there were
        none. `reason` is part of its name (a-z, -). Raises StoreError."""
        return set_aside(self.folder, CLUSTER_FILES, reason, self._files)

    def _load(self, name: str, kind: type[_T], consequence: str) -> _T | None:
        path = self.folder / name
        data = read_private(path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"{name} cannot be read",
                where=str(path),
                why=str(error) if data else "it is empty",
                fix=f"restore it from a backup, or move it away: {consequence}",
            ) from error

    def _save(self, name: str, data: bytes) -> None:
        ensure_private_folder(self.folder)
        write_private(self.folder / name, data, self._files)


_RESTORE = "restore the folder from a backup; without the authority no machine can be admitted any more"
