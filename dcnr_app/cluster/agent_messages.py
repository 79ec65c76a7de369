"""What agents say to each other over their streams: how a machine is, who is a member, what to do. Pure."""

from __future__ import annotations

import msgspec

from dcnr_app.cluster.message import Message
from dcnr_app.ids import PNodeId

RESTING = "resting"
"""State of a PNode whose owner does not want it to work now."""


class PNodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One PNode as its machine's agent sees it. `address` is what gRPC dials; empty while it does not listen.

    `facts` are its measured rates as canonical JSON (cluster/devices.py), empty until they are known."""

    pnode: PNodeId
    address: str
    fingerprint: str
    pid: int
    state: str
    why: str = ""
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    device: str = ""
    device_class: str = ""
    facts: bytes = b""


class AgentStatus(Message, frozen=True, kw_only=True, tag="agent-status.v1"):
    """A worker's agent to the orchestrator's, every second. `addresses` are where it listens, `host:port`,
    best first; `epoch` is that of the membership it holds."""

    machine: str
    name: str
    version: str
    addresses: tuple[str, ...]
    epoch: int
    pnodes: tuple[PNodeReport, ...]
    limits: str = ""


class AgentLeaves(Message, frozen=True, kw_only=True, tag="agent-leaves.v1"):
    """A worker's agent ends, or leaves the cluster for good."""

    machine: str
    for_good: bool


class MembershipUpdate(Message, frozen=True, kw_only=True, tag="membership-update.v1"):
    """The orchestrator's agent to the others: who is a member now. `membership` is its JSON."""

    membership: bytes


class RestartPNode(Message, frozen=True, kw_only=True, tag="restart-pnode.v1"):
    """The orchestrator's agent: end this process of a PNode, which a session has given up, and start another.
    Nothing happens if its process is another one by now."""

    pnode: PNodeId
    pid: int
