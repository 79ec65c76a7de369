"""What an agent and the process that runs its session say to each other: one JSON line each. Pure.

The first line to the process is a RunnerBootstrap, the others are RunnerCommands; it answers with
RunnerEvents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.messages import Address
from dcnr_app.ids import PNodeId


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to train: a new session of a network on a dataset, or, with `session`, a recorded one.

    `settings` are flags over the network's `training:` section, as `train` has them.
    """

    network: str = ""
    dataset: str = ""
    session: str = ""
    settings: Mapping[str, Any] = {}
    prompt: str = "def "


class RunnerBootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """Who the orchestrator of the session is, on which of this machine's addresses PNodes can reach it, and
    which PNodes there are. Keys travel here only: never in arguments or files."""

    cluster: str
    certificate_pem: str
    key_pem: str
    authority_pem: str
    hosts: tuple[str, ...]
    members: tuple[Address, ...]
    request: SessionRequest
    devices: tuple[DeviceFacts, ...] = ()
    """What was measured of the PNodes, as far as it is known."""

    def __repr__(self) -> str:
        """Without the private key, so that no log can hold it."""
        return f"RunnerBootstrap(cluster={self.cluster!r}, request={self.request!r})"


class _Command(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of commands."""


class PNodeJoined(_Command, frozen=True, tag="joined"):
    """A PNode can be used: new, or with a new process."""

    member: Address
    device: DeviceFacts | None = None


class PNodeGone(_Command, frozen=True, tag="gone"):
    """A PNode's machine says nothing any more, or its process ended."""

    pnode: PNodeId
    reason: str


class DrainPNode(_Command, frozen=True, tag="drain"):
    """Move a PNode's VNodes to others at the next step boundary."""

    pnode: PNodeId


class StopSession(_Command, frozen=True, tag="stop"):
    """Stop at the next step boundary, with a checkpoint."""


RunnerCommand = PNodeJoined | PNodeGone | DrainPNode | StopSession


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of events."""


class SessionBegun(_Event, frozen=True, tag="begun"):
    """The session is recorded under this id."""

    session: str
    network: str
    steps: int


class SessionPlanned(_Event, frozen=True, tag="planned"):
    """A generation goes on after `step` on these PNodes; VNode -> PNode."""

    generation: int
    step: int
    assignment: Mapping[str, PNodeId]


class SessionStepped(_Event, frozen=True, tag="stepped"):
    """A step was committed, or replayed."""

    step: int
    loss: float
    is_replay: bool


class SessionNoted(_Event, frozen=True, tag="noted"):
    """A line for the person."""

    text: str


class PNodeEvicted(_Event, frozen=True, tag="evicted"):
    """A PNode was given up: its process must end before it may come back."""

    pnode: PNodeId
    reason: str


class PNodeDrained(_Event, frozen=True, tag="drained"):
    """A PNode has handed over all it had."""

    pnode: PNodeId


class SessionEnded(_Event, frozen=True, tag="ended"):
    """The session stopped, finished or failed; then `error` says why and `exit_code` of which kind it is."""

    session: str
    status: str
    error: str = ""
    exit_code: int = 0


RunnerEvent = (
    SessionBegun | SessionPlanned | SessionStepped | SessionNoted | PNodeEvicted | PNodeDrained | SessionEnded
)
