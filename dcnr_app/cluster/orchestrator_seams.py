"""What an orchestrator is given: batches in, durable rows out, PNodes looked after, someone who watches.
Protocols only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.effects import (
    AppendCommit,
    BeginGeneration,
    Progress,
    Recovering,
    Replanned,
    Validated,
    WorkerReady,
    WriteCheckpoint,
)
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.start_point import Parts, StartPoint
from dcnr_app.cluster.transport import HostArray, PeerTransport, Receiver
from dcnr_app.ids import PNodeId


class Feed(Protocol):
    """Input tensors by reference for the microbatches of a step or of the validation."""

    def batch(self, step: int) -> tuple[Sequence[Mapping[str, HostArray]], Sequence[int], Sequence[int]]:
        """(tensors per microbatch, target counts, sample ids)."""
        ...

    def validation(self) -> tuple[Sequence[Mapping[str, HostArray]], Sequence[int]]:
        """(tensors per microbatch, target counts)."""
        ...


class Journal(Protocol):
    """What must be durable; blocking. Raises StoreError."""

    def commit(self, effect: AppendCommit) -> None:
        """The commit row and its ledger rows."""
        ...

    def checkpoint(self, effect: WriteCheckpoint, parts: Parts) -> str:
        """A checkpoint; returns its path."""
        ...

    def begin_generation(self, effect: BeginGeneration) -> None:
        """The row by which earlier generations, and other orchestrators, are fenced off."""
        ...

    def restore(self) -> StartPoint:
        """The newest state that can be read, and the decisions made after it."""
        ...

    def record(self, effect: Progress | Validated | WorkerReady) -> None:
        """Metrics, kept unless the power fails, and facts of the PNodes."""
        ...


class Observer(Protocol):
    """Who watches: called on the event loop, must return at once."""

    def worker_ready(self, event: WorkerReady) -> None: ...
    def progress(self, event: Progress) -> None: ...
    def validated(self, event: Validated) -> None: ...
    def recovering(self, event: Recovering) -> None: ...
    def replanned(self, event: Replanned) -> None: ...


class Roster(Protocol):
    """Who is told of PNodes that go and come; called on the event loop."""

    def lost(self, pnode: PNodeId, reason: str) -> None:
        """A PNode's process ended, or cannot be reached."""
        ...

    def joined(self, member: Address, device: DeviceFacts | None = None) -> None:
        """A PNode can be used: a new one, or a new process of a known one."""
        ...

    def drain(self, pnode: PNodeId) -> None:
        """A PNode is to leave: its VNodes move first, then the crew hears of it."""
        ...


class Crew(Protocol):
    """Who looks after a session's PNodes."""

    @property
    def transport(self) -> PeerTransport:
        """The orchestrator's streams, once `start` has returned."""
        ...

    async def start(self, receiver: Receiver, roster: Roster) -> tuple[Address, ...]:
        """Make the PNodes ready; returns where each listens, the orchestrator first."""
        ...

    def evict(self, pnode: PNodeId, reason: str) -> None:
        """This PNode was given up: it must be gone before it is announced as joined again."""
        ...

    def drained(self, pnode: PNodeId) -> None:
        """This PNode has handed over all it had."""
        ...

    async def how_lost(self, within_s: float) -> tuple[PNodeId, str] | None:
        """Which PNode's process ended by a signal within that time, and how, if one did."""
        ...

    async def close(self) -> None:
        """End what was started."""
        ...
