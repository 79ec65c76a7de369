"""A session's Crew of PNodes that their machines' agents look after: this end has only their streams. IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcnr_app.cluster.addresses import host_port
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import Credentials, fingerprint
from dcnr_app.cluster.membership import dial_address
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.orchestrator_seams import Roster
from dcnr_app.cluster.pnode import members_of
from dcnr_app.cluster.runner_lines import PNodeDrained, PNodeEvicted, RunnerEvent
from dcnr_app.cluster.transport import PeerTransport, Receiver
from dcnr_app.errors import InvariantError
from dcnr_app.ids import ORCHESTRATOR, PNodeId

_LOOPBACK = "127.0.0.1"
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  # the peer port admits certificates of the membership only


class RemoteCrew:
    """`joined` and `gone` pass on what the agents say; evictions and drained PNodes go to `tell`."""

    def __init__(
        self,
        credentials: Credentials,
        cluster: str,
        hosts: Sequence[str],
        members: Sequence[Address],
        tell: Callable[[RunnerEvent], None],
    ) -> None:
        self._credentials = credentials
        self._cluster = cluster
        self._hosts = tuple(hosts) or (_LOOPBACK,)
        self._members = {member.pnode: member for member in members}
        self._tell = tell
        self._roster: Roster | None = None
        self._transport: PeerTransport | None = None

    @property
    def transport(self) -> PeerTransport:
        """The orchestrator's streams. Raises InvariantError before `start` has made them."""
        if self._transport is None:
            raise InvariantError("the crew has no transport before it starts")
        return self._transport

    async def start(self, receiver: Receiver, roster: Roster) -> tuple[Address, ...]:
        """Listen; the PNodes themselves run already."""
        bind = _LOOPBACK if self._hosts == (_LOOPBACK,) else _ALL_ADDRESSES
        self._transport = GrpcTransport(ORCHESTRATOR, self._credentials, self._cluster, host=bind)
        port = (await self._transport.start(receiver)).rpartition(":")[2]
        address = dial_address([host_port(host, int(port)) for host in self._hosts])
        own = Address(ORCHESTRATOR, address, fingerprint(self._credentials.cert_pem))
        self._roster = roster
        self._admit()
        return (own, *self._members.values())

    def joined(self, member: Address, device: DeviceFacts | None) -> None:
        """A PNode can be used: new, or with a new process."""
        self._members[member.pnode] = member
        if self._roster is not None:
            self._admit()
            self._roster.joined(member, device)

    def gone(self, pnode: PNodeId, reason: str) -> None:
        """A PNode's machine says nothing any more."""
        self._members.pop(pnode, None)
        if self._roster is not None:
            self._admit()
            self._roster.lost(pnode, reason)

    def drain(self, pnode: PNodeId) -> None:
        """A PNode is to leave after it has handed over what it has."""
        if self._roster is not None:
            self._roster.drain(pnode)

    def evict(self, pnode: PNodeId, reason: str) -> None:
        """Given up: no word of it is taken any more, and its agent is to start it anew."""
        self._members.pop(pnode, None)
        self._admit()
        self._tell(PNodeEvicted(pnode, reason))

    def drained(self, pnode: PNodeId) -> None:
        """It has handed over all it had."""
        self._members.pop(pnode, None)
        self._admit()
        self._tell(PNodeDrained(pnode))

    async def how_lost(self, within_s: float) -> tuple[PNodeId, str] | None:
        """Not known here: processes of other machines are not seen."""
        del within_s
        return None

    async def close(self) -> None:
        """End the streams; the PNodes go on waiting for the next session."""
        if self._transport is not None:
            await self._transport.close()

    def _admit(self) -> None:
        self.transport.set_members(members_of(self._members.values()))
