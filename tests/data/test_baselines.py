"""Baselines against counting with dictionaries, and bits per byte."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.data.baselines import ALPHAS, bits_per_byte, measure_baselines, target_bytes
from dcnr_app.data.cursor import BatchCursor, CursorSettings
from dcnr_app.data.shards import ShardWriter, TokenStream
from dcnr_app.data.source import Microbatch
from tests.data.corpus import built, trained


def _stream(folder: Path, documents: list[list[int]], shard_tokens: int) -> TokenStream:
    with ShardWriter(folder, "train", "uint32", shard_tokens) as writer:
        for ids in documents:
            writer.add(np.array(ids))
        return TokenStream(folder, writer.close(), "uint32")


def _brute(train: list[int], scored: list[tuple[int, int]], n_vocab: int) -> tuple[float, float, float]:
    """(unigram, best bigram, its alpha) with plain dictionaries."""
    tokens, pairs, firsts = Counter(train), Counter(pairwise(train)), Counter(train[:-1])

    def unigram(w: int) -> float:
        return (tokens[w] + 1) / (len(train) + n_vocab)

    def bigram(alpha: float) -> float:
        probabilities = [(pairs[v, w] + alpha * unigram(w)) / (firsts[v] + alpha) for v, w in scored]
        return -sum(map(math.log, probabilities)) / len(scored)

    best = min(ALPHAS, key=bigram)
    return -sum(math.log(unigram(w)) for _, w in scored) / len(scored), bigram(best), best


@pytest.mark.parametrize("n_vocab", [7, 262_144])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_counting_agrees_with_dictionaries(
    tmp_path_factory: pytest.TempPathFactory, n_vocab: int, data: st.DataObject
) -> None:
    token = st.sampled_from([0, 1, 2, n_vocab - 1, n_vocab // 2])
    documents = data.draw(st.lists(st.lists(token, min_size=1, max_size=20), min_size=1, max_size=8))
    scored = data.draw(st.lists(st.tuples(token, token), min_size=1, max_size=12))
    stream = _stream(tmp_path_factory.mktemp("s"), documents, data.draw(st.integers(1, 30)))
    tokens_12, targets_12 = np.zeros((3, 4), np.int32), np.full((3, 4), -1, np.int32)
    tokens_12.flat[: len(scored)] = [v for v, _ in scored]
    targets_12.flat[: len(scored)] = [w for _, w in scored]
    batches = (Microbatch(tokens_12, targets_12, (), len(scored)),)
    found = measure_baselines(stream, batches, n_vocab)
    unigram, bigram, alpha = _brute([t for ids in documents for t in ids], scored, n_vocab)
    assert found.n_targets == len(scored)
    assert found.uniform == pytest.approx(math.log(n_vocab), rel=1e-12)
    assert found.unigram == pytest.approx(unigram, rel=1e-9)
    assert found.bigram == pytest.approx(bigram, rel=1e-9)
    assert found.bigram_alpha == alpha or found.bigram == pytest.approx(bigram, rel=1e-12)


def test_pairs_across_chunks_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(0, 5, 101).tolist()
    stream = _stream(tmp_path, [ids[:40], ids[40:]], 30)
    tokens, targets = np.array([ids[:-1]], np.int32), np.array([ids[1:]], np.int32)
    batches = (Microbatch(tokens, targets, (0,), 100),)
    whole = measure_baselines(stream, batches, 5)
    for size in (1, 2, 50, 100):
        monkeypatch.setattr("dcnr_app.data.baselines._CHUNK_TOKENS", size)
        assert measure_baselines(stream, batches, 5) == whole


def test_probabilities_of_the_baselines_sum_to_one(tmp_path: Path) -> None:
    stream = _stream(tmp_path, [[1, 2, 1, 3, 1, 2, 0]], 30)
    total_unigram = total_bigram = 0.0
    for token in range(5):
        batch = Microbatch(np.array([[1]], np.int32), np.array([[token]], np.int32), (0,), 1)
        found = measure_baselines(stream, (batch,), 5)
        total_unigram += math.exp(-found.unigram)
        alpha = 1.0
        seen = {2: 2, 3: 1}.get(token, 0)
        total_bigram += (seen + alpha * math.exp(-found.unigram)) / (3 + alpha)
    assert total_unigram == pytest.approx(1.0)
    assert total_bigram == pytest.approx(1.0)


def test_each_baseline_is_below_the_one_before_on_text(tmp_path: Path) -> None:
    dataset, tokenizer = built(tmp_path), trained(tmp_path)
    source = BatchCursor(
        dataset, CursorSettings(seed=1, batch=8, microbatches=2, context=32, validation_sequences=18)
    )
    found = measure_baselines(dataset.train, source.validation(), tokenizer.n_vocab)
    assert found.n_targets == 18 * 32
    assert found.bigram < found.unigram < found.uniform


def test_target_bytes_are_the_bytes_of_the_targets_text(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path)
    ids = [*tokenizer.encode("naïve 漢字 😀 the the"), 0]
    targets = np.array([[*ids, -1, -1]], np.int32)
    batch = Microbatch(np.zeros_like(targets), targets, (0,), len(ids))
    assert target_bytes((batch,), tokenizer) == len("naïve 漢字 😀 the the".encode())


def test_a_uniform_guess_over_bytes_is_eight_bits_per_byte() -> None:
    assert bits_per_byte(math.log(256), 1000, 1000) == pytest.approx(8.0)
    assert bits_per_byte(math.log(256), 1000, 4000) == pytest.approx(2.0)
