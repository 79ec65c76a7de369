"""Cores without arrays: handles are numbers, every release is booked, outcomes are made up by the test."""

from __future__ import annotations

from typing import Any

from dcnr_app.cluster.effects import (
    Prepare,
    Release,
    RunBackward,
    RunForward,
    Send,
)
from dcnr_app.cluster.inputs import Handle, Prepared
from dcnr_app.cluster.messages import (
    AnyMessage,
)
from dcnr_app.ids import PNodeId

A, B = PNodeId("p1"), PNodeId("p2")
NOTHING_SHARED = Prepared(
    owned=(), copies_to={}, copies_from=(), sites_from=(), site_owner={}, device_class="x", pid=7
)


class Handles:
    """Numbers that stand for tensors: which were given to a core and not given back."""

    def __init__(self) -> None:
        self.open: set[Handle] = set()
        self._last = 0

    def give(self, *names: str) -> dict[str, Handle]:
        """Fresh handles by name."""
        given = {name: Handle(self._last + index + 1) for index, name in enumerate(names)}
        self._last += len(given)
        self.open |= set(given.values())
        return given

    def release(self, effect: Release) -> None:
        """Book a release; a second one of the same handle is an error."""
        for handle in effect.handles:
            assert handle in self.open, f"handle {handle} is given back twice"
            self.open.remove(handle)


def sent(effects: list[Any], kind: type[AnyMessage]) -> list[Any]:
    """Messages of a kind among effects."""
    return [
        effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def compute(effects: list[Any]) -> list[Any]:
    """Compute effects among effects."""
    return [effect for effect in effects if isinstance(effect, RunForward | RunBackward | Prepare)]
