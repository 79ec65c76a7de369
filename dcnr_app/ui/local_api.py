"""What command line and user interfaces ask of this machine's agent: plain data and one protocol. Pure.

Every verb raises a DcnrError with what, where, why and fix; nothing is half done then. Figures that are not
known are None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

Role = Literal["none", "orchestrator", "worker"]
Presence = Literal["live", "suspect", "offline"]


class PNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One PNode of the cluster. `memory_bytes` is its process's; `state`: starting, idle, training, failed,
    or empty where its agent says nothing."""

    pnode: str
    machine: str
    name: str
    presence: Presence
    is_this_machine: bool
    state: str = ""
    why: str = ""
    address: str = ""
    pid: int | None = None
    device: str = ""
    device_class: str = ""
    memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    silent_ms: float | None = None
    vnodes: tuple[str, ...] = ()
    limits: str = ""
    """What its machine's owner lets the app use, in words."""
    device_facts: Mapping[str, Any] | None = None
    """Measured rates, as cluster/devices.py has them."""


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the cluster."""

    machine: str
    name: str
    role: Role
    presence: Presence
    is_this_machine: bool
    addresses: tuple[str, ...] = ()
    version: str = ""
    silent_ms: float | None = None
    limits: str = ""


class NeighbourView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine heard on the local network, member or not."""

    machine: str
    name: str
    role: Role
    cluster: str
    cluster_name: str
    presence: Presence
    version: str
    device: str
    addresses: tuple[str, ...]
    front_door_port: int
    is_member: bool = False
    is_duplicate: bool = False


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that wants to join this one's cluster; see cluster/pending_join.py."""

    machine: str
    name: str
    address: str
    digits: str
    device: str
    version: str
    n_pnodes: int
    step: str
    why: str
    is_confirmed: bool
    is_admitted: bool
    note: str
    remaining_ms: float


class JoiningView(msgspec.Struct, frozen=True, kw_only=True):
    """How far this machine's own joining is: "none", "reaching", "comparing" (show the digits, ask whether
    they are the same), "waiting" (for the orchestrator's user), "joined" or "failed" (then `error`)."""

    step: str = "none"
    digits: str = ""
    cluster_name: str = ""
    orchestrator: str = ""
    place: str = ""
    error: str = ""
    exit_code: int = 0


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The session that this machine's agent runs, if any. `events` are its newest lines, oldest first."""

    session: str = ""
    status: str = "none"
    network: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    generation: int = 0
    assignment: Mapping[str, str] = {}
    events: tuple[str, ...] = ()
    error: str = ""
    exit_code: int = 0


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """This machine in one look."""

    role: Role
    machine: str
    name: str
    pnode: str
    """This machine's first PNode; empty outside a cluster."""
    cluster: str
    cluster_name: str
    version: str
    pid: int
    started_ms: int
    front_door_port: int
    addresses: tuple[str, ...]
    n_machines: int
    n_live: int
    n_pending: int
    session: str
    notices: tuple[str, ...] = ()
    silence: str = ""
    """Why nobody is heard on the network, where that can be said."""


class StartSession(msgspec.Struct, frozen=True, kw_only=True):
    """A new session of a network on a dataset, or with `session` a recorded one; `settings` are flags of
    `train`."""

    network: str = ""
    dataset: str = ""
    session: str = ""
    settings: Mapping[str, Any] = {}
    prompt: str = "def "


class InviteView(msgspec.Struct, frozen=True, kw_only=True):
    """An invite: a link for one machine, its QR code as text, or a code to type."""

    link: str
    qr: str
    code: str
    host: str
    port: int
    expires_s: float


class LocalApi(Protocol):
    """The agent, as everybody on this machine who holds its token sees it."""

    async def status(self) -> StatusView:
        """This machine."""
        ...

    async def machines(self) -> tuple[MachineView, ...]:
        """All machines of the cluster; empty outside one."""
        ...

    async def pnodes(self) -> tuple[PNodeView, ...]:
        """All PNodes of the cluster; empty outside one."""
        ...

    async def neighbours(self) -> tuple[NeighbourView, ...]:
        """Machines heard on the network, the nearest cluster's orchestrators first."""
        ...

    async def start_cluster(self, name: str) -> StatusView:
        """Make this machine the orchestrator of a new cluster. Refused if it is in one."""
        ...

    async def join(self, target: str, code: str) -> JoiningView:
        """Begin to join: `target` is a cluster's or machine's name or id as heard, `host[:port]`, or an
        invite link; with `code` without comparing digits. Returns at once."""
        ...

    async def joining(self) -> JoiningView:
        """How far that is."""
        ...

    async def answer(self, verdict: Literal["match", "mismatch", "cancel"]) -> JoiningView:
        """What the person here says of the digits."""
        ...

    async def pending(self) -> tuple[PendingView, ...]:
        """Machines that want to join this one's cluster."""
        ...

    async def admit(self, machine: str) -> PendingView:
        """Admit one; `machine` is its id, name or digits. Refused if none or several fit."""
        ...

    async def reject(self, machine: str) -> PendingView:
        """Reject one."""
        ...

    async def invite(self, *, with_code: bool) -> InviteView:
        """A link (or, `with_code`, a code to type) for one machine."""
        ...

    async def rename(self, machine: str, name: str) -> MachineView:
        """Another name; `machine` is an id, a PNode's id or a name."""
        ...

    async def drain(self, machine: str) -> MachineView:
        """Move its VNodes to others and use it no more until it is renewed by a restart of its agent."""
        ...

    async def forget(self, machine: str) -> MachineView:
        """Take it out of the cluster at once; its streams end."""
        ...

    async def leave(self) -> StatusView:
        """This machine leaves its cluster."""
        ...

    async def start_session(self, request: StartSession) -> SessionView:
        """Train on the cluster; returns when the session is recorded."""
        ...

    async def stop_session(self) -> SessionView:
        """Stop at the next step boundary, with a checkpoint; returns at once."""
        ...

    async def session(self) -> SessionView:
        """The session that runs or ran last."""
        ...

    async def shut_down(self) -> None:
        """End the agent; a running session ends with it and goes on when the agent starts again."""
        ...
