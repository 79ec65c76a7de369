"""Text from a trained network, one token at a time, through the PNodes that hold it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.errors import UserError

HostArray = np.ndarray[Any, Any]
NextLogits = Callable[[Sequence[int]], Awaitable[HostArray]]


class Sampling(NamedTuple):
    """How to continue: at most `n_tokens`, at `temperature` (0: always the likeliest), drawn from `seed`."""

    n_tokens: int
    temperature: float
    seed: int


async def generate_ids(
    prompt: Sequence[int],
    next_logits: NextLogits,
    end_of_text: int,
    sampling: Sampling,
    is_enough: Callable[[], bool],
) -> list[int]:
    """Ids that follow `prompt`, up to the end of text, which is left out, or until `is_enough` says so.

    Raises UserError for an empty prompt.
    """
    if not prompt:
        raise UserError("the prompt is empty", fix="give at least one character")
    generator = np.random.Generator(np.random.Philox(key=sampling.seed))
    ids = list(prompt)
    for _ in range(sampling.n_tokens):
        if is_enough():
            break
        chosen = choose(await next_logits(ids), sampling.temperature, generator)
        if chosen == end_of_text:
            break
        ids.append(chosen)
    return ids[len(prompt) :]


def choose(logits_V: HostArray, temperature: float, generator: np.random.Generator) -> int:  # noqa: N803
    """One id drawn from softmax(logits / temperature); the likeliest at temperature 0.

    Raises UserError for logits that are not finite.
    """
    if not np.isfinite(logits_V).all():
        raise UserError(
            "the network's logits are not finite", why="it diverged", fix="train with a lower learning rate"
        )
    if temperature <= 0.0:
        return int(np.argmax(logits_V))
    scaled = logits_V.astype(np.float64) / temperature
    cumulative = np.cumsum(np.exp(scaled - scaled.max()))
    return int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))
