"""An agent's streams with the other agents of its cluster: statuses to the orchestrator, orders back. IO.

The worker dials; the orchestrator answers at the addresses that the worker's status names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dcnr_app.cluster.agent_messages import AgentLeaves, AgentStatus, MembershipUpdate, RestartPNode
from dcnr_app.cluster.cluster_files import OwnCluster
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import agent_id
from dcnr_app.cluster.membership import Membership, agent_members, dial_address
from dcnr_app.cluster.messages import AnyMessage, TensorHeader
from dcnr_app.cluster.transport import HostArray, Member
from dcnr_app.errors import PeerError, UserError
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
_SEND_S = 3.0
OfAgents = AgentStatus | AgentLeaves | MembershipUpdate | RestartPNode


class AgentLink:
    """Implements the transport's Receiver. `heard` gets each message with its sender's machine."""

    def __init__(self, own: OwnCluster, host: str, port: int, heard: Callable[[str, OfAgents], None]) -> None:
        self._heard = heard
        self._make = partial(GrpcTransport, agent_id(own.machine), own.agent, own.cluster, host=host)
        self._transport = self._make(port=port)
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._membership: Membership | None = None
        self._connected: set[str] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen; on any port if the usual one is taken. Raises UserError if that cannot be done either."""
        try:
            listening = await self._transport.start(self)
        except UserError:
            self._transport = self._make(port=0)
            self._admit()
            listening = await self._transport.start(self)
        self.port = int(listening.rpartition(":")[2])

    async def close(self) -> None:
        """End all streams."""
        await self._transport.close()

    def is_connected(self, machine: str) -> bool:
        """Whether a stream with this machine was alive at the last message."""
        return machine in self._connected

    def set_membership(self, membership: Membership) -> None:
        """From now on these are the members; the streams of others end."""
        self._membership = membership
        self._admit()

    def set_addresses(self, machine: str, addresses: Sequence[str]) -> bool:
        """Where a machine's agent listens, `host:port`, best first; returns whether that is news."""
        fresh = tuple(addresses)
        if not fresh or self._addresses.get(machine) == fresh:
            return False
        self._addresses[machine] = fresh
        self._admit()
        return True

    async def tell(self, machine: str, message: OfAgents, timeout_s: float = _SEND_S) -> str:
        """Send; returns an empty text, or why it did not arrive."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._transport.send(agent_id(machine), message, {})
        except (PeerError, TimeoutError) as error:
            return str(error) or f"no answer within {timeout_s:g} s"
        self._connected.add(machine)
        return ""

    def _admit(self) -> None:
        if self._membership is None:
            return
        members: list[Member] = []
        for record, member in zip(self._membership.members, agent_members(self._membership), strict=True):
            address = dial_address(self._addresses.get(record.machine, record.addresses))
            members.append(
                Member(pnode=member.pnode, address=address, fingerprint=member.fingerprint, role=member.role)
            )
        self._transport.set_members(members)

    # ---- the transport's Receiver

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Agents take no tensors, and only their own messages."""
        del sender
        if headers or not isinstance(message, OfAgents):
            return "an agent takes only what agents say"
        return ""

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """A message arrived."""
        del tensors
        machine = sender.removeprefix(agent_id(""))
        self._connected.add(machine)
        if isinstance(message, OfAgents):
            self._heard(machine, message)
        else:
            _LOG.warning("agent_refused machine=%s message=%r", machine, message)

    def lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with an agent broke."""
        machine = peer.removeprefix(agent_id(""))
        self._connected.discard(machine)
        _LOG.info("agent_lost machine=%s reason=%s", machine, reason)
