"""Baselines: the loss that counting alone reaches, which a trained network must beat. Knows no networks.

Legend: V vocabulary · N training tokens · c counts. All cross-entropies are nats per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dcnr_app.data.shards import TokenStream
from dcnr_app.data.source import Microbatch
from dcnr_app.data.tokenizer import Tokenizer

ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0)
_CHUNK_TOKENS = 1 << 20

Counts = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, np.dtype[np.float64]]


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """Nats per token on the validation targets: uniform, unigram, bigram with the best `bigram_alpha`."""

    uniform: float
    unigram: float
    bigram: float
    bigram_alpha: float
    n_targets: int


class _Pairs(msgspec.Struct, frozen=True):
    """The validation pairs and what training says of them, each (n,) over the n different pairs."""

    n_scored: Counts
    n_seen: Counts
    n_first: Counts
    unigram: Values


def measure_baselines(train: TokenStream, validation: Sequence[Microbatch], n_vocab: int) -> Baselines:
    """Count all training tokens and score the targets of `validation` (those >= 0).

    unigram     p(w)   = (c(w) + 1) / (N + V)
    bigram      p(w|v) = (c(v, w) + α p(w)) / (c(v) + α)     (Dirichlet prior; MacKay & Peto 1995)
    α is the best of ALPHAS on the validation targets themselves: that favours the baseline, so a network that
    beats it does not owe that to a badly set α.
    """
    first, second = _scored_pairs(validation)
    keys, n_scored = np.unique(first * n_vocab + second, return_counts=True)
    n_token, n_first, n_seen = _count(train, keys, n_vocab)
    unigram = (n_token + 1) / (train.n_tokens + n_vocab)
    pairs = _Pairs(n_scored, n_seen, n_first[keys // n_vocab], unigram[keys % n_vocab])
    losses = {alpha: _bigram(pairs, alpha) for alpha in ALPHAS}
    best = min(losses, key=losses.__getitem__)
    return Baselines(
        uniform=math.log(n_vocab),
        unigram=-float(np.average(np.log(pairs.unigram), weights=n_scored)),
        bigram=losses[best],
        bigram_alpha=best,
        n_targets=len(second),
    )


def target_bytes(validation: Sequence[Microbatch], tokenizer: Tokenizer) -> int:
    """UTF-8 bytes of text that the validation targets stand for; end of text stands for none."""
    ids, counts = np.unique(_scored_pairs(validation)[1], return_counts=True)
    return sum(
        len(tokenizer.bytes_of(token)) * n for token, n in zip(ids.tolist(), counts.tolist(), strict=True)
    )


def bits_per_byte(nats_per_token: float, n_targets: int, n_bytes: int) -> float:
    """A mean loss in nats per token as bits per byte of text, which does not depend on the tokenizer."""
    return nats_per_token * n_targets / (math.log(2.0) * n_bytes)


def _scored_pairs(validation: Sequence[Microbatch]) -> tuple[Counts, Counts]:
    first, second = [], []
    for batch in validation:
        is_scored = batch.targets >= 0
        first.append(batch.tokens[is_scored])
        second.append(batch.targets[is_scored])
    # int64: V² passes 2³² from V = 65 537
    return np.concatenate(first).astype(np.int64), np.concatenate(second).astype(np.int64)


def _count(train: TokenStream, keys: Counts, n_vocab: int) -> tuple[Counts, Counts, Counts]:
    """(c of each token, c of each token as the first of a pair, c of the pairs `keys`, which are sorted).

    Only the scored pairs are counted: memory grows with the validation targets, not with V² or N.
    """
    n_token = np.zeros(n_vocab, dtype=np.int64)
    n_seen = np.zeros(len(keys), dtype=np.int64)
    is_start = True
    last = 0
    for chunk in train.chunks(_CHUNK_TOKENS):
        ids = chunk.astype(np.int64)
        # a chunk repeats the token before it, so that no pair is lost
        n_token += np.bincount(ids if is_start else ids[1:], minlength=n_vocab)
        is_start = False
        last = int(ids[-1])
        seen = ids[:-1] * n_vocab + ids[1:]
        place = np.minimum(np.searchsorted(keys, seen), len(keys) - 1)
        n_seen += np.bincount(place[keys[place] == seen], minlength=len(keys))
    n_first = n_token.copy()
    n_first[last] -= 1
    return n_token, n_first, n_seen


def _bigram(pairs: _Pairs, alpha: float) -> float:
    probability = (pairs.n_seen + alpha * pairs.unigram) / (pairs.n_first + alpha)
    return -float(np.average(np.log(probability), weights=pairs.n_scored))
