"""Which faults there are, in which order they come, and when. Pure; knows no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from dcnr_app.errors import UserError

Kind = Literal["kill", "kill-two", "stop-short", "pause-all", "orchestrator", "stop"]

KINDS: Final[Mapping[Kind, str]] = {
    "kill": "a worker process is killed",
    "kill-two": "two worker processes are killed at once",
    "stop-short": "a worker process stands still for two seconds, which must be forgiven",
    "pause-all": "all processes stand still for two seconds, which must be forgiven",
    "orchestrator": "the session's process is killed and started again",
    "stop": "a worker process stands still until it is given up",
}
SILENT: Final[Kind] = "stop"
"""The one kind that only silence betrays: it takes seconds to notice."""
FORGIVEN: Final[tuple[Kind, ...]] = ("stop-short", "pause-all")
_BLOCK = 5
_SILENT_PLACE = 2  # in each block of five, so that a run of three has its silent one too


def fault_times_s(duration_s: float, every_s: float) -> tuple[float, ...]:
    """When faults come: every `every_s`, half of it before the first and after the last.

    Raises UserError if there is no room for one.
    """
    n_faults = int(duration_s / every_s + 1e-9)
    if n_faults < 1:
        raise UserError(
            f"in {duration_s:g} s there is no room for a fault every {every_s:g} s",
            where="--every",
            fix="give more --minutes or a smaller --every",
        )
    return tuple((number + 0.5) * every_s for number in range(n_faults))


def fault_order(kinds: Sequence[Kind], n_faults: int, draw: Callable[[int], int]) -> tuple[Kind, ...]:
    """So many faults of these kinds, each as often as the others as far as that goes; of any five in a row
    at most one is silent.

    `draw(n)` gives a number from 0 to n - 1. Raises UserError if all kinds are silent.
    """
    loud = [kind for kind in kinds if kind != SILENT]
    if not loud:
        raise UserError(
            f"{SILENT} alone would be more than one silent fault in five",
            where="--kinds",
            fix=f"name another kind too: {', '.join(kind for kind in KINDS if kind != SILENT)}",
        )
    order: list[Kind] = []
    deck: list[Kind] = []
    for number in range(n_faults):
        if SILENT in kinds and number % _BLOCK == _SILENT_PLACE:
            order.append(SILENT)
            continue
        deck = deck or list(loud)
        order.append(deck.pop(draw(len(deck))))
    return tuple(order)


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Kinds by their names, with commas in between; empty for all. Raises UserError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    chosen = tuple(kind for kind in KINDS if not names or kind in names)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise UserError(
            f"there is no kind of fault {unknown[0]!r}", where="--kinds", why=f"known are {', '.join(KINDS)}"
        )
    return chosen
