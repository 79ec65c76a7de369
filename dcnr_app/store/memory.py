"""The Store in memory, for tests, the simulator and runs that leave nothing behind. Touches no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from dcnr_app.clock import Clock
from dcnr_app.errors import StoreError
from dcnr_app.store.idempotent import repeated_step, stream_moved
from dcnr_app.store.store import Recorded, Row


class MemoryStore:
    """Store whose contents live as long as the object; may be used from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._is_closed = False
        self._streams: dict[str, list[Recorded]] = {}
        self._commits: dict[str, dict[int, tuple[bytes, tuple[int, ...], bool]]] = {}
        self._metrics: dict[str, dict[int, tuple[int, dict[str, float]]]] = {}
        self._tables: dict[str, dict[str, bytes]] = {}

    def append(self, stream: str, kind: str, body: bytes, *, expected_seq: int) -> int:
        """Append event number expected_seq + 1; returns it."""
        with self._lock:
            self._check_open()
            events = self._streams.setdefault(stream, [])
            if len(events) != expected_seq:
                raise stream_moved(stream, expected_seq, len(events))
            events.append(Recorded(expected_seq + 1, kind, bytes(body), self._clock.wall_ms()))
            return expected_seq + 1

    def append_commit(
        self, session: str, step: int, body: bytes, samples: Sequence[int], *, is_skipped: bool
    ) -> None:
        """The step's commit row and its ledger rows, or neither."""
        with self._lock:
            self._check_open()
            commits = self._commits.setdefault(session, {})
            if step in commits:
                raise repeated_step(session, step)
            commits[step] = (bytes(body), tuple(samples), is_skipped)

    def commits(self, session: str) -> Sequence[tuple[int, bytes]]:
        """(step, body) of all commit rows, by step."""
        with self._lock:
            self._check_open()
            return [(step, body) for step, (body, _, _) in sorted(self._commits.get(session, {}).items())]

    def ledger(self, session: str) -> Sequence[tuple[int, int, bool]]:
        """(step, sample id, is_skipped) of all counted samples, by step."""
        with self._lock:
            self._check_open()
            return [
                (step, sample, is_skipped)
                for step, (_, samples, is_skipped) in sorted(self._commits.get(session, {}).items())
                for sample in samples
            ]

    def read(self, stream: str, since: int = 0) -> Sequence[Recorded]:
        """Events after number `since`, in order."""
        with self._lock:
            self._check_open()
            return self._streams.get(stream, [])[max(since, 0) :]

    def add_metrics(self, session: str, step: int, values: Mapping[str, float], at_ms: int) -> None:
        """Merge `values` into the step's row: a value recorded again replaces the older one."""
        with self._lock:
            self._check_open()
            rows = self._metrics.setdefault(session, {})
            _, older = rows.get(step, (0, {}))
            rows[step] = (at_ms, {**older, **{name: float(value) for name, value in values.items()}})

    def metrics(self, session: str, since_step: int = 0) -> Sequence[Row]:
        """Rows `{step, at_ms, values}` with step > since_step, by step."""
        with self._lock:
            self._check_open()
            return [
                {"step": step, "at_ms": at_ms, "values": dict(values)}
                for step, (at_ms, values) in sorted(self._metrics.get(session, {}).items())
                if step > since_step
            ]

    def put(
        self, table: str, key: str, value: bytes, *, expected: bytes | None = None, create: bool = False
    ) -> bool:
        """Set a value; False if `create` or `expected` did not hold."""
        if create and expected is not None:
            raise ValueError("put takes create or expected, not both")
        with self._lock:
            self._check_open()
            entries = self._tables.setdefault(table, {})
            current = entries.get(key)
            if (create and current is not None) or (expected is not None and current != expected):
                return False
            entries[key] = bytes(value)
            return True

    def get(self, table: str, key: str) -> bytes | None:
        """A value."""
        with self._lock:
            self._check_open()
            return self._tables.get(table, {}).get(key)

    def items(self, table: str) -> Sequence[tuple[str, bytes]]:
        """All (key, value) of a table in the order in which the keys were created."""
        with self._lock:
            self._check_open()
            return list(self._tables.get(table, {}).items())

    def close(self) -> None:
        """Refuse all later calls; safe to call twice."""
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
