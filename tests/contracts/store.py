"""What every Store must do. A test module makes a class of it with a `store` fixture per implementation."""

from __future__ import annotations

import math
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from dcnr_app.errors import StoreError
from dcnr_app.store.idempotent import append_once, change, commit_once, create_once
from dcnr_app.store.store import Recorded, Store


class FixedClock:
    """Wall time that moves by one millisecond at each look."""

    def __init__(self) -> None:
        self._now_ms = 1_800_000_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""
        return float(self.wall_ms())

    def wall_ms(self) -> int:
        """The next millisecond."""
        self._now_ms += 1
        return self._now_ms


class StoreContract:
    """Inherit and provide the fixture `store`."""

    def test_events_come_back_in_order_with_their_bytes(self, store: Store) -> None:
        body = bytes(range(256))
        assert store.append("s", "opened", body, expected_seq=0) == 1
        assert store.append("s", "closed", b"", expected_seq=1) == 2
        events = store.read("s")
        assert [(event.seq, event.kind, event.body) for event in events] == [
            (1, "opened", body),
            (2, "closed", b""),
        ]
        assert isinstance(events[0], Recorded)
        assert 1_800_000_000_000 < events[0].at_ms < events[1].at_ms

    def test_read_since_gives_only_later_events(self, store: Store) -> None:
        for i in range(5):
            store.append("s", "e", b"%d" % i, expected_seq=i)
        assert [event.seq for event in store.read("s", 3)] == [4, 5]
        assert list(store.read("s", 5)) == []
        assert list(store.read("s", 99)) == []
        assert list(store.read("other")) == []

    @pytest.mark.parametrize("expected_seq", [0, 2, 7])
    def test_append_elsewhere_is_refused_and_keeps_nothing(self, store: Store, expected_seq: int) -> None:
        store.append("s", "e", b"1", expected_seq=0)
        with pytest.raises(StoreError, match=f"at event 1, not {expected_seq}"):
            store.append("s", "e", b"2", expected_seq=expected_seq)
        assert [event.body for event in store.read("s")] == [b"1"]

    def test_streams_are_numbered_apart(self, store: Store) -> None:
        assert store.append("a", "e", b"", expected_seq=0) == 1
        assert store.append("b", "e", b"", expected_seq=0) == 1

    def test_commits_are_verbatim_and_by_step(self, store: Store) -> None:
        store.append_commit("s", 2, b"\x00two\xff", [5, 4], is_skipped=True)
        store.append_commit("s", 1, b'{"b": 1,  "a":2}', [9, 7], is_skipped=False)
        assert list(store.commits("s")) == [(1, b'{"b": 1,  "a":2}'), (2, b"\x00two\xff")]
        assert list(store.ledger("s")) == [(1, 9, False), (1, 7, False), (2, 5, True), (2, 4, True)]
        assert all(type(is_skipped) is bool for _, _, is_skipped in store.ledger("s"))
        assert list(store.commits("t")) == []
        assert list(store.ledger("t")) == []

    def test_repeated_step_is_refused_and_keeps_nothing(self, store: Store) -> None:
        store.append_commit("s", 1, b"first", [1, 2], is_skipped=False)
        with pytest.raises(StoreError, match="step 1 of session 's' is already committed"):
            store.append_commit("s", 1, b"second", [3], is_skipped=True)
        assert list(store.commits("s")) == [(1, b"first")]
        assert list(store.ledger("s")) == [(1, 1, False), (1, 2, False)]
        store.append_commit("t", 1, b"another session", [], is_skipped=False)

    def test_ledger_shows_a_sample_counted_twice(self, store: Store) -> None:
        store.append_commit("s", 1, b"", [3, 3], is_skipped=False)
        store.append_commit("s", 2, b"", [3, 2**62], is_skipped=False)
        assert [sample for _, sample, _ in store.ledger("s")] == [3, 3, 3, 2**62]

    def test_metrics_keep_every_bit(self, store: Store) -> None:
        values = {
            "zero": -0.0,
            "third": 1 / 3,
            "inf": math.inf,
            "tiny": 5e-324,
            "nan": math.nan,
            "whole": 2.0,
        }
        store.add_metrics("s", 1, values, at_ms=77)
        (row,) = store.metrics("s")
        assert (row["step"], row["at_ms"], list(row["values"])) == (1, 77, list(values))
        for name, value in values.items():
            assert struct.pack("<d", row["values"][name]) == struct.pack("<d", value), name

    def test_metrics_of_one_step_are_merged(self, store: Store) -> None:
        store.add_metrics("s", 1, {"loss": 2.0}, at_ms=1)
        store.add_metrics("s", 1, {"validation_loss": 3}, at_ms=2)
        store.add_metrics("s", 1, {"loss": 2.5}, at_ms=3)
        assert list(store.metrics("s")) == [
            {"step": 1, "at_ms": 3, "values": {"loss": 2.5, "validation_loss": 3.0}}
        ]

    def test_metrics_since_a_step(self, store: Store) -> None:
        for step in (3, 1, 2):
            store.add_metrics("s", step, {"loss": float(step)}, at_ms=step)
        assert [row["step"] for row in store.metrics("s")] == [1, 2, 3]
        assert [row["step"] for row in store.metrics("s", 1)] == [2, 3]
        assert list(store.metrics("s", 3)) == []
        assert list(store.metrics("t")) == []

    def test_put_and_get(self, store: Store) -> None:
        assert store.get("t", "k") is None
        assert store.put("t", "k", b"1")
        assert store.put("t", "k", b"2")
        assert store.get("t", "k") == b"2"
        assert store.get("u", "k") is None

    def test_put_with_create_writes_only_once(self, store: Store) -> None:
        assert store.put("t", "k", b"1", create=True)
        assert not store.put("t", "k", b"2", create=True)
        assert store.get("t", "k") == b"1"

    def test_put_with_expected_compares_and_sets(self, store: Store) -> None:
        assert not store.put("t", "k", b"1", expected=b"")
        assert store.get("t", "k") is None
        store.put("t", "k", b"1")
        assert not store.put("t", "k", b"3", expected=b"2")
        assert store.put("t", "k", b"2", expected=b"1")
        assert store.get("t", "k") == b"2"

    def test_put_with_both_conditions_is_a_mistake(self, store: Store) -> None:
        with pytest.raises(ValueError, match="create or expected"):
            store.put("t", "k", b"", expected=b"", create=True)

    def test_items_are_in_order_of_creation(self, store: Store) -> None:
        for key in ("b", "a", "c"):
            store.put("t", key, key.encode())
        store.put("u", "z", b"z")
        store.put("t", "a", b"changed")
        store.put("t", "b", b"changed too", expected=b"b")
        assert list(store.items("t")) == [("b", b"changed too"), ("a", b"changed"), ("c", b"c")]
        assert list(store.items("none")) == []

    def test_one_of_many_threads_wins_a_conditional_put(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda i: store.put("t", "k", b"%d" % i, create=True), range(16)))
        assert sum(won) == 1
        assert store.get("t", "k") == b"%d" % won.index(True)

    def test_change_from_many_threads_loses_no_update(self, store: Store) -> None:
        store.put("t", "n", b"0")
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: change(store, "t", "n", lambda old: b"%d" % (int(old) + 1)), range(12)))
        assert store.get("t", "n") == b"12"

    def test_change_of_a_missing_key_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="no entry 'k'"):
            change(store, "t", "k", lambda old: old)

    def test_retried_append_adds_nothing(self, store: Store) -> None:
        for _ in range(2):
            assert append_once(store, "s", "e", b"1", expected_seq=0) == 1
        assert append_once(store, "s", "e", b"2", expected_seq=1) == 2
        assert append_once(store, "s", "e", b"1", expected_seq=0) == 1
        with pytest.raises(StoreError, match="at event 2, not 0"):
            append_once(store, "s", "e", b"other", expected_seq=0)
        assert [event.body for event in store.read("s")] == [b"1", b"2"]

    @pytest.mark.parametrize(
        ("body", "samples", "is_skipped"), [(b"other", [1], False), (b"b", [2], False), (b"b", [1], True)]
    )
    def test_retried_commit_adds_nothing_and_another_decision_is_refused(
        self, store: Store, body: bytes, samples: list[int], is_skipped: bool
    ) -> None:
        for _ in range(2):
            commit_once(store, "s", 1, b"b", [1], is_skipped=False)
        with pytest.raises(StoreError, match="already committed"):
            commit_once(store, "s", 1, body, samples, is_skipped=is_skipped)
        assert list(store.ledger("s")) == [(1, 1, False)]

    def test_retried_creation_is_told_from_a_foreign_value(self, store: Store) -> None:
        assert create_once(store, "t", "k", b"mine")
        assert create_once(store, "t", "k", b"mine")
        assert not create_once(store, "t", "k", b"other")

    def test_closed_store_refuses_and_closes_again(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.read("s")
        with pytest.raises(StoreError, match="closed"):
            store.append("s", "e", b"", expected_seq=0)
