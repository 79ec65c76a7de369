"""The Store seam: what outlives a process. Knows no cluster and no arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Row = Mapping[str, Any]


class Recorded(NamedTuple):
    """One event of a stream: its number from 1, its kind, its canonical JSON bytes, wall time in ms."""

    seq: int
    kind: str
    body: bytes
    at_ms: int


class Store(Protocol):
    """Append-only event streams (durable before they return), metrics, the sample ledger and small
    key-values.

    Blocking: callers on an event loop use a thread. Raises StoreError with what was and was not kept.
    """

    def append(self, stream: str, kind: str, body: bytes, *, expected_seq: int) -> int:
        """Append event number expected_seq + 1; returns it. Raises StoreError if the stream is elsewhere."""
        ...

    def append_commit(
        self, session: str, step: int, body: bytes, samples: Sequence[int], *, is_skipped: bool
    ) -> None:
        """One transaction: the step's commit row and its sample ledger rows. A repeated step raises
        StoreError."""
        ...

    def commits(self, session: str) -> Sequence[tuple[int, bytes]]:
        """(step, body) of all commit rows, by step."""
        ...

    def ledger(self, session: str) -> Sequence[tuple[int, int, bool]]:
        """(step, sample id, is_skipped) of all counted samples, by step."""
        ...

    def read(self, stream: str, since: int = 0) -> Sequence[Recorded]:
        """Events after number `since`, in order."""
        ...

    def add_metrics(self, session: str, step: int, values: Mapping[str, float], at_ms: int) -> None:
        """Record values of a step; may be lost at power failure, never at process death."""
        ...

    def metrics(self, session: str, since_step: int = 0) -> Sequence[Row]:
        """Rows `{step, at_ms, values}` with step > since_step, in order."""
        ...

    def put(
        self, table: str, key: str, value: bytes, *, expected: bytes | None = None, create: bool = False
    ) -> bool:
        """Set a value. With `create`, only if the key is absent; with `expected`, only over that value."""
        ...

    def get(self, table: str, key: str) -> bytes | None:
        """A value."""
        ...

    def items(self, table: str) -> Sequence[tuple[str, bytes]]:
        """All (key, value) of a table in the order in which the keys were created."""
        ...

    def close(self) -> None:
        """Close; safe to call twice."""
        ...
