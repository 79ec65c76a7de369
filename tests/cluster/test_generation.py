"""Text one token at a time: drawn from the softmax of the logits, and ended in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from dcnr_app.cluster.generation import Sampling, choose, generate_ids
from dcnr_app.errors import UserError

N_VOCABULARY, END = 6, 5


async def next_number(ids: Sequence[int]) -> np.ndarray:
    """Logits that leave no doubt about the number after the last one."""
    return np.where(np.arange(N_VOCABULARY) == ids[-1] + 1, 50.0, 0.0).astype(np.float32)


def generated(prompt: Sequence[int], n_tokens: int = 10, enough_after: int = 100) -> list[int]:
    """Ids after the prompt; `enough_after` that many the person has seen enough."""
    asked = iter(range(100))
    sampling = Sampling(n_tokens=n_tokens, temperature=0.5, seed=3)
    return asyncio.run(generate_ids(prompt, next_number, END, sampling, lambda: next(asked) >= enough_after))


def test_generation_ends_at_the_end_of_text_at_the_limit_or_when_it_is_enough() -> None:
    assert generated([0]) == [1, 2, 3, 4]
    assert generated([0], n_tokens=2) == [1, 2]
    assert generated([0], enough_after=3) == [1, 2, 3]
    assert generated([0], enough_after=0) == []


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        generated([])


def test_temperature_0_takes_the_likeliest() -> None:
    logits = np.array([0.0, 3.0, 2.9], np.float32)
    draw = np.random.default_rng(0)
    assert {choose(logits, 0.0, draw) for _ in range(50)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_each_temperature(temperature: float) -> None:
    logits = np.array([1.0, 0.0, -1.0, 2.0], np.float32)
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = weights / weights.sum()
    draw = np.random.Generator(np.random.Philox(key=1))
    n = 20_000
    counts = np.bincount([choose(logits, temperature, draw) for _ in range(n)], minlength=4)
    # four standard deviations of a binomial count
    assert (np.abs(counts / n - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_large_logits_do_not_overflow(shift: float) -> None:
    logits = np.array([shift, shift + 60.0], np.float32)
    assert choose(logits, 1.0, np.random.default_rng(0)) == 1


def test_a_vanishing_temperature_is_the_likeliest_too() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert choose(np.array([0.0, 1.0], np.float32), 1e-6, np.random.default_rng(0)) == 1
