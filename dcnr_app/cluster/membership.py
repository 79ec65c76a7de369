"""Which machines form a cluster: a value with an epoch that only its orchestrator raises. Pure.

A removed machine leaves a tombstone, so that no older copy of the membership brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from dcnr_app.cluster.identity import AGENT_ROLE, agent_id
from dcnr_app.cluster.transport import Member
from dcnr_app.errors import RefusedError
from dcnr_app.ids import PNodeId

MachineRole = Literal["orchestrator", "worker"]

MAX_MEMBERS: Final = 256
_MAX_TOMBSTONES: Final = 1024  # the oldest go first: their certificates are refused for not being members
_PNODE_ROLE: Final = "worker"


class PNodeRecord(msgspec.Struct, frozen=True):
    """A PNode that was certified, and the sha256 of its certificate (hex)."""

    pnode: PNodeId
    fingerprint: str


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted machine. `addresses` are where its agent listens, `host:port`, best first; `admitted_ms`
    is wall-clock time, for people."""

    machine: str
    name: str
    role: MachineRole
    agent_fingerprint: str
    pnodes: tuple[PNodeRecord, ...]
    addresses: tuple[str, ...] = ()
    admitted_ms: int = 0
    admitted_epoch: int = 0


class Tombstone(msgspec.Struct, frozen=True):
    """A machine that was removed, and at which epoch."""

    machine: str
    epoch: int


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The members of one cluster, sorted by machine id."""

    cluster: str
    name: str
    epoch: int
    members: tuple[MemberRecord, ...]
    removed: tuple[Tombstone, ...] = ()

    def find(self, machine: str) -> MemberRecord | None:
        """The record of a machine, or None if it is no member."""
        return next((member for member in self.members if member.machine == machine), None)

    @property
    def orchestrator(self) -> MemberRecord | None:
        """The machine that holds the cluster's authority."""
        return next((member for member in self.members if member.role == "orchestrator"), None)

    def was_removed(self, machine: str) -> bool:
        """Whether it was a member once and is none now."""
        return self.find(machine) is None and any(stone.machine == machine for stone in self.removed)


def founded(cluster: str, name: str, first: MemberRecord) -> Membership:
    """A new cluster of one machine."""
    empty = Membership(cluster=cluster, name=name, epoch=0, members=())
    return admitted(empty, first)


def admitted(membership: Membership, record: MemberRecord) -> Membership:
    """With this machine, in place of an older record of it; a removed one may come back this way only.

    Raises RefusedError if the cluster is full."""
    epoch = membership.epoch + 1
    others = [member for member in membership.members if member.machine != record.machine]
    if len(others) >= MAX_MEMBERS:
        raise RefusedError(
            f"the cluster {membership.name!r} is full",
            why=f"it has {MAX_MEMBERS} machines",
            fix="remove one that is not needed: dcnr-app pnode forget PNODE",
        )
    fresh = msgspec.structs.replace(record, admitted_epoch=epoch)
    return _changed(
        membership,
        [*others, fresh],
        [stone for stone in membership.removed if stone.machine != record.machine],
    )


def removed(membership: Membership, machine: str) -> Membership:
    """Without this machine. Raises RefusedError if it is no member, or holds the cluster's authority."""
    record = _must_find(membership, machine)
    if record.role == "orchestrator":
        raise RefusedError(
            f"{record.name} cannot be removed", why="it holds the cluster's authority: it is the cluster"
        )
    stone = Tombstone(machine, membership.epoch + 1)
    others = [member for member in membership.members if member.machine != machine]
    return _changed(membership, others, [*membership.removed, stone])


def renamed(membership: Membership, machine: str, name: str) -> Membership:
    """With another name for a machine; unchanged if it has that name. Raises RefusedError if it is no
    member."""
    return _replaced(membership, machine, lambda record: msgspec.structs.replace(record, name=name))


def relocated(membership: Membership, machine: str, addresses: Sequence[str]) -> Membership:
    """With the addresses at which a machine's agent was found; unchanged if they are known. Raises
    RefusedError if it is no member."""
    return _replaced(
        membership, machine, lambda record: msgspec.structs.replace(record, addresses=tuple(addresses))
    )


def merged(own: Membership, other: Membership) -> Membership:
    """What to hold after hearing of another copy: the one with the higher epoch, and of both all tombstones,
    so that no machine comes back that was removed after it was admitted.

    Raises RefusedError if they are of different clusters."""
    if own.cluster != other.cluster:
        raise RefusedError(
            f"a membership of cluster {other.cluster} does not concern this one", why=f"this is {own.cluster}"
        )
    newer, older = (other, own) if other.epoch > own.epoch else (own, other)
    stones = {stone.machine: stone for stone in older.removed}
    for stone in newer.removed:
        if stone.machine not in stones or stone.epoch > stones[stone.machine].epoch:
            stones[stone.machine] = stone
    members = tuple(
        member
        for member in newer.members
        if member.machine not in stones or stones[member.machine].epoch < member.admitted_epoch
    )
    kept = {member.machine for member in members}
    gone = [stone for stone in stones.values() if stone.machine not in kept]
    return msgspec.structs.replace(newer, members=members, removed=_sorted_stones(gone))


def agent_members(membership: Membership) -> tuple[Member, ...]:
    """The agents of all machines, as a transport takes them."""
    return tuple(
        Member(
            pnode=agent_id(record.machine),
            address=dial_address(record.addresses),
            fingerprint=record.agent_fingerprint,
            role=AGENT_ROLE,
        )
        for record in membership.members
    )


def pnode_members(membership: Membership, addresses: Mapping[PNodeId, str]) -> tuple[Member, ...]:
    """The PNodes that listen somewhere, as a transport takes them; `addresses` says where each listens."""
    return tuple(
        Member(
            pnode=entry.pnode, address=addresses[entry.pnode], fingerprint=entry.fingerprint, role=_PNODE_ROLE
        )
        for record in membership.members
        for entry in record.pnodes
        if entry.pnode in addresses
    )


def dial_address(addresses: Sequence[str]) -> str:
    """One address that gRPC dials to try all of these `host:port` in turn; empty if there is none.

    Source: gRPC name resolution, the `ipv4:` and `ipv6:` schemes, which hold one family each: IPv6 ones are
    left out beside IPv4 ones.
    """
    if len(addresses) <= 1:
        return addresses[0] if addresses else ""
    version_4 = [address for address in addresses if not address.startswith("[")]
    return "ipv4:" + ",".join(version_4) if version_4 else "ipv6:" + ",".join(addresses)


def _must_find(membership: Membership, machine: str) -> MemberRecord:
    record = membership.find(machine)
    if record is None:
        raise RefusedError(
            f"{machine} is not a member of {membership.name!r}", fix="see who is: dcnr-app pnode ls"
        )
    return record


def _replaced(
    membership: Membership, machine: str, change: Callable[[MemberRecord], MemberRecord]
) -> Membership:
    old = _must_find(membership, machine)
    new = change(old)
    if new == old:
        return membership
    others = [member for member in membership.members if member.machine != machine]
    return _changed(membership, [*others, new], membership.removed)


def _changed(
    membership: Membership, members: Sequence[MemberRecord], stones: Sequence[Tombstone]
) -> Membership:
    return msgspec.structs.replace(
        membership,
        epoch=membership.epoch + 1,
        members=tuple(sorted(members, key=lambda member: member.machine)),
        removed=_sorted_stones(stones),
    )


def _sorted_stones(stones: Sequence[Tombstone]) -> tuple[Tombstone, ...]:
    return tuple(sorted(stones, key=lambda stone: (stone.epoch, stone.machine))[-_MAX_TOMBSTONES:])
