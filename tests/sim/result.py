"""How a simulated network misbehaves, and what a session must give whatever it does."""

from __future__ import annotations

from typing import Any, NamedTuple


class Chaos(NamedTuple):
    """How the network misbehaves: messages are late by up to `late_ms` and arrive twice with `twice`."""

    seed: int = 0
    late_ms: float = 0.0
    twice: float = 0.0


ORDERLY = Chaos()


class Result(NamedTuple):
    """What must not depend on the plan or the network: decisions, validation losses, the last state."""

    decisions: tuple[Any, ...]
    validations: dict[int, float]
    ledger: tuple[tuple[int, int, bool], ...]
    bits: dict[tuple[str, str], bytes]
