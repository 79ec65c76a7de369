"""What the process of a session under chaos is told on stdin and says on stdout, one JSON object a line.
Pure."""

from __future__ import annotations

import msgspec


class SessionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what to train. With `session` that session goes on, and only `until_step` counts too.

    `until_step` ends the run with a stop once so many steps are committed (0: on request only).
    """

    session: str = ""
    network: str = ""
    dataset: str = ""
    workers: int = 3
    steps: int = 1_000_000
    seed: int | None = None
    until_step: int = 0


class _Line(msgspec.Struct, frozen=True, tag_field="line"):
    """Base of what is said."""


class Began(_Line, frozen=True, tag="began"):
    """The session is recorded."""

    session: str
    checkpoint_every: int


class Planned(_Line, frozen=True, tag="planned"):
    """A plan is taken up; the session goes on after `step`."""

    pnodes: tuple[str, ...]
    step: int


class PNodeReady(_Line, frozen=True, tag="ready"):
    """A PNode took up the plan, in this process."""

    pnode: str
    pid: int


class Stepped(_Line, frozen=True, tag="stepped"):
    """A step was committed, or replayed after a recovery."""

    step: int
    tokens: int
    is_replay: bool


class Noticed(_Line, frozen=True, tag="noticed"):
    """Something was lost, or the plan changes: the session recovers by itself."""

    reason: str


class Over(_Line, frozen=True, tag="over"):
    """The session's run is over: finished, stopped, or failed with an error in words."""

    status: str
    error: str = ""


Line = Began | Planned | PNodeReady | Stepped | Noticed | Over
