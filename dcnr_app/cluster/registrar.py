"""The orchestrator's books: who is admitted, by which certificates, with which codes. IO.

Everything is on disk before it is told.

Methods write files; call them off the event loop. They may be called from several threads.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster import joining_codes, membership
from dcnr_app.cluster.builds import Build
from dcnr_app.cluster.cluster_files import ClusterFiles, OwnCluster, PNodeSecret
from dcnr_app.cluster.identity import (
    AGENT_ROLE,
    ClusterAuthority,
    Credentials,
    agent_id,
    fingerprint,
    pnode_id,
)
from dcnr_app.cluster.joining_codes import CodeBook, Invite, JoiningCode
from dcnr_app.cluster.keys import sign
from dcnr_app.cluster.machine import Machine
from dcnr_app.cluster.membership import MemberRecord, Membership, PNodeRecord
from dcnr_app.cluster.pairing import Pairing, grant_text
from dcnr_app.cluster.pairing_messages import ClusterOffer, Grant, PNodeGrant
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import RefusedError, StoreError, UserError
from dcnr_app.ids import ORCHESTRATOR
from dcnr_app.settings import Home

_CODE_RANGE = 100_000
_WORKER, _ORCHESTRATOR = "worker", "orchestrator"


def create_cluster(home: Home, machine: Machine, name: str, *, n_pnodes: int, now_ms: int) -> OwnCluster:
    """Make a cluster with this machine as its orchestrator: authority, certificates, membership, all on disk.

    `now_ms` is wall-clock time. Raises RefusedError if the machine is in a cluster, UserError if nothing of
    the name can be shown, StoreError.
    """
    files = ClusterFiles(home)
    refuse_second_cluster(files)
    shown = plain_text(name)
    if not shown:
        raise UserError(f"{name!r} is no name for a cluster", why="a name holds letters that can be shown")
    cluster = secrets.token_hex(8)
    authority = ClusterAuthority.create(cluster)
    runner = authority.issue(ORCHESTRATOR, cluster, _ORCHESTRATOR)
    agent_cert = authority.certify(machine.public_key_pem, agent_id(machine.id), cluster, AGENT_ROLE)
    pnodes = tuple(
        PNodeSecret(pnode=pnode, credentials=authority.issue(pnode, cluster, _WORKER))
        for pnode in (pnode_id(machine.id, ordinal) for ordinal in range(n_pnodes))
    )
    record = MemberRecord(
        machine=machine.id,
        name=machine.name,
        role="orchestrator",
        agent_fingerprint=fingerprint(agent_cert),
        pnodes=tuple(PNodeRecord(p.pnode, fingerprint(p.credentials.cert_pem)) for p in pnodes),
        admitted_ms=now_ms,
    )
    own = OwnCluster(
        cluster=cluster,
        name=shown,
        machine=machine.id,
        role="orchestrator",
        agent=Credentials(cert_pem=agent_cert, key_pem=machine.key_pem, ca_pem=authority.ca_pem),
        pnodes=pnodes,
        orchestrator=machine.id,
        orchestrator_fingerprint=fingerprint(runner.cert_pem),
        runner=runner,
    )
    files.save_authority(authority)
    files.save_members(membership.founded(cluster, shown, record))
    files.save_codes(CodeBook())
    files.save_cluster(own)
    return own


def refuse_second_cluster(files: ClusterFiles) -> None:
    """Raise RefusedError if this machine is in a cluster already."""
    own = files.load_cluster()
    if own is not None:
        raise RefusedError(
            f"this machine is in the cluster {own.name!r} already",
            why=f"as its {own.role}; a machine is in one cluster at a time",
            fix="to leave it: dcnr-app pnode leave",
        )


class Registrar:
    """Admits machines to the cluster of which this machine is the orchestrator."""

    def __init__(self, files: ClusterFiles, machine: Machine, build: Build, clock: Clock) -> None:
        """Reads the books. Raises StoreError if they are not whole, RefusedError if this machine is not an
        orchestrator."""
        own, authority, members = files.load_cluster(), files.load_authority(), files.load_members()
        if own is None or own.role != "orchestrator":
            raise RefusedError("this machine is not the orchestrator of a cluster")
        if authority is None or members is None:
            raise StoreError(
                "the cluster's books are not whole",
                where=str(files.folder),
                why="the authority or the list of members is missing",
                fix="restore the folder from a backup",
            )
        self._files, self._machine, self._build, self._clock = files, machine, build, clock
        self._own, self._authority, self._members = own, authority, members
        self._book = files.load_codes()
        self._lock = threading.RLock()

    @property
    def membership(self) -> Membership:
        """Who is a member now."""
        return self._members

    @property
    def build(self) -> Build:
        """What the cluster runs."""
        return self._build

    @property
    def ca_fingerprint(self) -> str:
        """sha256 of the authority's certificate, hex."""
        return fingerprint(self._authority.ca_pem)

    def offer(self) -> bytes:
        """The ClusterOffer of a new attempt to join."""
        return msgspec.json.encode(
            ClusterOffer(
                public_key=self._machine.public_key_pem.decode(),
                name=self._machine.name,
                cluster=self._own.cluster,
                cluster_name=self._own.name,
                ca_pem=self._authority.ca_pem.decode(),
                build=self._build,
            )
        )

    def grant(self, pairing: Pairing) -> tuple[bytes, bytes]:
        """Certify the machine's keys, make it a member, and return the Grant with its signature.

        Raises RefusedError if the cluster is full or the machine is the orchestrator, StoreError: then it is
        no member."""
        with self._lock:
            if pairing.machine == self._machine.id:
                raise RefusedError("this machine is the orchestrator of this cluster already")
            request, cluster = pairing.request, self._own.cluster
            agent = agent_id(pairing.machine)
            agent_cert = self._authority.certify(request.public_key.encode(), agent, cluster, AGENT_ROLE)
            pnodes = [
                (pnode, self._authority.certify(key.encode(), pnode, cluster, _WORKER))
                for pnode, key in (
                    (pnode_id(pairing.machine, ordinal), key)
                    for ordinal, key in enumerate(request.pnode_keys)
                )
            ]
            record = MemberRecord(
                machine=pairing.machine,
                name=request.name,
                role="worker",
                agent_fingerprint=fingerprint(agent_cert),
                pnodes=tuple(PNodeRecord(pnode, fingerprint(cert)) for pnode, cert in pnodes),
                addresses=request.addresses,
                admitted_ms=self._clock.wall_ms(),
            )
            members = self._change(lambda old: membership.admitted(old, record))
            grant = Grant(
                agent_cert_pem=agent_cert.decode(),
                pnodes=tuple(PNodeGrant(pnode, cert.decode()) for pnode, cert in pnodes),
                orchestrator=self._machine.id,
                orchestrator_fingerprint=self._own.orchestrator_fingerprint,
                membership=members,
            )
            encoded = msgspec.json.encode(grant)
            return encoded, sign(self._machine.key_pem, grant_text(pairing.transcript, encoded))

    def remove(self, machine: str) -> Membership:
        """Take a machine out; give the new membership to the transports, which ends its streams. Raises
        RefusedError if it is no member, StoreError."""
        return self._change(lambda old: membership.removed(old, machine))

    def rename(self, machine: str, name: str) -> Membership:
        """Another name for a machine. Raises RefusedError if it is no member, UserError, StoreError."""
        shown = plain_text(name)
        if not shown:
            raise UserError(f"{name!r} is no name", why="a name holds letters that can be shown")
        return self._change(lambda old: membership.renamed(old, machine, shown))

    def relocate(self, machine: str, addresses: Sequence[str]) -> Membership:
        """Where a machine's agent was found. Raises RefusedError if it is no member, StoreError."""
        return self._change(lambda old: membership.relocated(old, machine, addresses))

    def new_code(self) -> JoiningCode:
        """A code for one machine. Raises RefusedError while too many are live, StoreError."""
        with self._lock:
            digits, now_ms = secrets.randbelow(_CODE_RANGE), self._clock.wall_ms()
            book, code = joining_codes.code_added(self._book, digits, now_ms)
            self._keep(book)
            return code

    def new_invite(
        self, hosts: Sequence[str], port: int, life_ms: int = joining_codes.INVITE_LIFE_MS
    ) -> tuple[str, JoiningCode]:
        """A link for one machine, with every address of this one's front door. Raises RefusedError while too
        many are live, StoreError."""
        with self._lock:
            token = secrets.token_urlsafe(joining_codes.TOKEN_BYTES)
            book, code = joining_codes.invite_added(self._book, token, self._clock.wall_ms(), life_ms)
            self._keep(book)
        invite = Invite(tuple(hosts), port, self.ca_fingerprint, token)
        return joining_codes.write_link(invite), code

    def codes(self) -> tuple[JoiningCode, ...]:
        """All codes and invites that are remembered, oldest first."""
        return joining_codes.tidied(self._book, self._clock.wall_ms()).codes

    def code(self, finder: str) -> JoiningCode:
        """The live code that `finder` names. Raises RefusedError if there is none, saying why."""
        return joining_codes.found(self._book, finder, self._clock.wall_ms())

    def wrong(self, code: JoiningCode) -> JoiningCode:
        """Count a wrong try; returns the code as it is then. Raises StoreError."""
        with self._lock:
            book, fresh = joining_codes.tried_wrong(self._book, self.code(code.finder))
            self._keep(book)
            return fresh

    def use(self, code: JoiningCode) -> None:
        """Spend a code: before what it admits is admitted, so that it never admits two. Raises RefusedError
        if it is spent already, StoreError."""
        with self._lock:
            self._keep(joining_codes.used(self._book, self.code(code.finder)))

    def _change(self, change: Callable[[Membership], Membership]) -> Membership:
        with self._lock:
            fresh = change(self._members)
            if fresh is not self._members:
                self._files.save_members(fresh)
                self._members = fresh
            return fresh

    def _keep(self, book: CodeBook) -> None:
        self._files.save_codes(book)
        self._book = book
