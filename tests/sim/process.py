"""A simulated process: it runs, stands still for a while, or is gone. Knows no session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.ids import PNodeId

if TYPE_CHECKING:
    from tests.sim.network import Link

HostArray = np.ndarray[Any, Any]


class Time(Protocol):
    """Virtual time, the same for all."""

    now_ms: float

    def after(self, delay_ms: float, act: Callable[[], None]) -> None: ...


class Process:
    """Base of the actors. Everything that happens in a process goes through `run`."""

    def __init__(self, time: Time, pnode: PNodeId, machine: str, address: str) -> None:
        self._time = time
        self.pnode = pnode
        self.machine = machine
        self.address = address
        self.links: dict[PNodeId, Link] = {}
        self.is_running = True
        self.is_frozen = False
        self._stash: deque[Callable[[], None]] = deque()
        self._ahead_ms = 0.0

    # ---- life

    def clock_ms(self) -> float:
        """This process's monotonic clock."""
        return self._time.now_ms + self._ahead_ms

    def set_clock(self, ahead_ms: float) -> None:
        """Let its monotonic clock begin elsewhere: only differences may matter."""
        self._ahead_ms = ahead_ms

    def run(self, act: Callable[[], None]) -> None:
        """Do something, or keep it for later while the process stands still; nothing if it is gone."""
        if self.is_frozen:
            self._stash.append(act)
        elif self.is_running:
            act()

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """A timer of this process."""
        self._time.after(delay_ms, lambda: self.run(act))

    def end(self) -> None:
        """The process is gone."""
        self.is_running, self.is_frozen = False, False
        self._stash.clear()

    def freeze(self) -> None:
        """Stand still: what arrives waits."""
        self.is_frozen = True

    def thaw(self, missed_ms: float, also: Callable[[], None], position: float) -> None:
        """Go on, with `also` somewhere (0.0 first, 1.0 last) among what waited. `missed_ms`: what the
        monotonic clock missed meanwhile, as that of a sleeping laptop does."""
        self.is_frozen = False
        self._ahead_ms -= missed_ms
        waiting = list(self._stash)
        self._stash.clear()
        waiting.insert(round(position * len(waiting)), also)
        for act in waiting:
            self.later(0.0, act)

    # ---- what a network needs of it

    def address_of(self, pnode: PNodeId) -> str:
        """Where a member listens, as far as this process knows; empty if it does not."""
        raise NotImplementedError

    def admits(self, sender: Process) -> bool:
        """Whether a process is a member in its present form."""
        raise NotImplementedError

    def arrive(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """A message came."""
        raise NotImplementedError

    def hear_lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with a peer broke."""
        raise NotImplementedError
