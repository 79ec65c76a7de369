"""The batch cursor: what each step holds, epochs, restoring, validation batches, the ledger's expectation."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.data.cursor import BatchCursor, CursorSettings, epoch_order
from dcnr_app.data.dataset import Dataset
from dcnr_app.data.expected import expected_samples
from dcnr_app.data.source import BatchSource, CursorState, Microbatch
from dcnr_app.errors import UserError
from tests.data.corpus import built

SETTINGS = CursorSettings(seed=3, batch=12, microbatches=3, context=64, validation_sequences=10)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return built(tmp_path_factory.mktemp("home"))


def _with(**changes: int) -> CursorSettings:
    return msgspec.structs.replace(SETTINGS, **changes)


def _equal(left: tuple[Microbatch, ...], right: tuple[Microbatch, ...]) -> bool:
    return len(left) == len(right) and all(
        a.samples == b.samples
        and np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.targets, b.targets)
        and a.target_count == b.target_count
        for a, b in zip(left, right, strict=True)
    )


def test_a_step_holds_its_windows_and_their_next_tokens(dataset: Dataset) -> None:
    cursor: BatchSource = BatchCursor(dataset, SETTINGS)
    stream = dataset.train.read(0, dataset.train.n_tokens)
    n_windows = (len(stream) - 1) // 64
    batch = cursor.batch(40)
    assert len(batch) == 3
    for part in batch:
        assert part.tokens.shape == part.targets.shape == (4, 64)
        assert part.tokens.dtype == part.targets.dtype == np.int32
        assert part.target_count == 4 * 64
        for row, sample in enumerate(part.samples):
            start = sample % n_windows * 64
            assert np.array_equal(part.tokens[row], stream[start : start + 64])
            assert np.array_equal(part.targets[row], stream[start + 1 : start + 65])


def test_each_epoch_takes_every_window_once(dataset: Dataset) -> None:
    cursor = BatchCursor(dataset, SETTINGS)
    n = cursor.n_windows
    steps = -(-3 * n // 12)
    samples = [s for step in range(1, steps + 1) for part in cursor.batch(step) for s in part.samples]
    assert n % 12, "a batch must span two epochs here"
    for epoch in range(3):
        assert sorted(samples[epoch * n : (epoch + 1) * n]) == list(range(epoch * n, (epoch + 1) * n))


def _philox4x64(key: tuple[int, int], counter: int) -> list[int]:
    """One block of Philox4x64-10 from the paper (Salmon et al. 2011, §4.3), in Python's integers."""
    words, (k0, k1), low = [counter, 0, 0, 0], key, 2**64 - 1
    for _ in range(10):
        p0, p1 = words[0] * 0xD2E7470EE14C6C93, words[2] * 0xCA5A826395121157
        words = [(p1 >> 64) ^ words[1] ^ k0, p1 & low, (p0 >> 64) ^ words[3] ^ k1, p0 & low]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & low, (k1 + 0xBB67AE8584CAA73B) & low
    return words


@pytest.mark.parametrize(("seed", "epoch"), [(1, 0), (2**63 - 1, 7)])
def test_an_epochs_order_sorts_the_words_of_philox(seed: int, epoch: int) -> None:
    # NumPy counts before it draws: the first block is number 1
    words = [word for block in range(1, 26) for word in _philox4x64((seed, epoch), block)]
    assert epoch_order(seed, epoch, 100).tolist() == sorted(range(100), key=words.__getitem__)


def test_orders_differ_by_seed_and_epoch() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in (1, 2, 2**63 - 1) for epoch in (0, 1)}
    assert len(orders) == 6


def test_the_same_step_gives_the_same_in_any_order_of_asking(dataset: Dataset) -> None:
    walked, jumped = BatchCursor(dataset, SETTINGS), BatchCursor(dataset, SETTINGS)
    forward = {step: walked.batch(step) for step in range(1, 60)}
    for step in (59, 1, 30, 31, 2, 58):
        assert _equal(jumped.batch(step), forward[step])


def test_a_restored_state_continues_where_it_was_saved(dataset: Dataset) -> None:
    cursor = BatchCursor(dataset, SETTINGS)
    state = CursorState(0)
    for _ in range(9):
        _, state = cursor.batch_at(state)
    saved = msgspec.json.encode(state)
    expected, _ = cursor.batch_at(state)
    again, after = BatchCursor(dataset, SETTINGS).batch_at(msgspec.json.decode(saved, type=CursorState))
    assert _equal(again, expected)
    assert _equal(again, cursor.batch(10))
    assert after == CursorState(120)


def test_microbatching_changes_no_sample(dataset: Dataset) -> None:
    by_parts = [BatchCursor(dataset, _with(microbatches=parts)).batch(5) for parts in (1, 3, 12)]
    samples = [tuple(chain.from_iterable(part.samples for part in batch)) for batch in by_parts]
    assert len(set(samples)) == 1
    assert [len(batch) for batch in by_parts] == [1, 3, 12]


def test_the_ledgers_expectation_is_what_the_cursor_hands_out(dataset: Dataset) -> None:
    cursor = BatchCursor(dataset, SETTINGS)
    handed_out = [
        tuple(chain.from_iterable(part.samples for part in cursor.batch(step))) for step in range(1, 61)
    ]
    assert 2 * cursor.n_windows < 60 * 12
    assert list(expected_samples(3, cursor.n_windows, 12, 60)) == handed_out


@given(st.integers(0, 2**63 - 1), st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_the_expectation_counts_each_window_once_per_epoch(seed: int, n: int, batch: int, steps: int) -> None:
    samples = list(chain.from_iterable(expected_samples(seed, n, batch, steps)))
    assert len(samples) == len(set(samples)) == batch * steps
    whole = len(samples) // n * n
    assert Counter(sample % n for sample in samples[:whole]) == (
        dict.fromkeys(range(n), whole // n) if whole else {}
    )


@pytest.mark.parametrize(("n", "batch"), [(0, 4), (-1, 4), (5, 0)])
def test_an_expectation_of_nothing_is_refused_at_once(n: int, batch: int) -> None:
    with pytest.raises(UserError, match=f"{n} windows of training text, {batch} in a batch"):
        expected_samples(3, n, batch, 1)


def test_validation_windows_are_spread_and_the_last_part_is_padded(dataset: Dataset) -> None:
    cursor = BatchCursor(dataset, SETTINGS)
    stream = dataset.validation.read(0, dataset.validation.n_tokens)
    parts = cursor.validation()
    assert [part.tokens.shape for part in parts] == [(4, 64)] * 3
    assert [part.target_count for part in parts] == [256, 256, 128]
    last = parts[-1]
    assert np.all(last.tokens[2:] == 0)
    assert np.all(last.targets[2:] == -1)
    assert np.all(last.targets[:2] >= 0)
    windows = list(chain.from_iterable(part.samples for part in parts))
    n_windows = (len(stream) - 1) // 64
    assert windows == [i * n_windows // 10 for i in range(10)]
    assert np.array_equal(parts[1].tokens[1], stream[windows[5] * 64 : windows[5] * 64 + 64])
    assert np.array_equal(parts[1].targets[1], stream[windows[5] * 64 + 1 : windows[5] * 64 + 65])
    assert _equal(parts, BatchCursor(dataset, _with(seed=99)).validation())


def test_validation_takes_all_windows_if_there_are_fewer_than_asked(dataset: Dataset) -> None:
    cursor = BatchCursor(dataset, _with(validation_sequences=10_000))
    windows = list(chain.from_iterable(part.samples for part in cursor.validation()))
    assert windows == list(range((dataset.validation.n_tokens - 1) // 64))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 3000}, "a batch needs 3000"),
        ({"context": 4000, "batch": 1, "microbatches": 1}, "validation text"),
        ({"microbatches": 5}, "not divisible"),
        ({"batch": 0}, "at least 1"),
        ({"validation_sequences": 0}, "at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(dataset: Dataset, changes: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        BatchCursor(dataset, _with(**changes))


def test_step_zero_is_refused(dataset: Dataset) -> None:
    with pytest.raises(UserError, match="step 0"):
        BatchCursor(dataset, SETTINGS).batch(0)


def test_a_dataset_can_be_used_after_its_cursor_was_made_elsewhere(dataset: Dataset, tmp_path: Path) -> None:
    other = built(tmp_path)
    assert other.manifest == dataset.manifest
    assert _equal(BatchCursor(other, SETTINGS).batch(7), BatchCursor(dataset, SETTINGS).batch(7))
