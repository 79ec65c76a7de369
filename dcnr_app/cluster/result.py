"""The object that `demo --json`, `train --json` and `session resume --json` end with."""

from __future__ import annotations

from typing import Any

import msgspec

from dcnr_app.cluster.journal import read_decisions, read_validations
from dcnr_app.cluster.outcome import RunOutcome
from dcnr_app.store.store import Store


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """What validation losses are compared with: nats per token of simple models, and bytes per scored
    token."""

    uniform: float
    unigram: float
    bigram: float
    bits_per_byte_factor: float
    """Bits per byte = this times nats per token."""


def session_result(
    store: Store,
    *,
    session: str,
    network: str,
    dataset: str,
    vocab: int,
    scores: Scores,
    outcome: RunOutcome,
    prepare_s: float,
    checkpoint: str,
) -> dict[str, Any]:
    """The JSON object of one run; `losses` are all committed steps', those of earlier runs included;
    null for a skipped one."""
    decisions = read_decisions(store, session)
    validations = read_validations(store, session)
    last = validations[max(validations)] if validations else None
    return {
        "session": session,
        "network": network,
        "dataset": dataset,
        "vocab": vocab,
        "losses": [None if decisions[step].skip else decisions[step].loss for step in sorted(decisions)],
        "validation": [[step, validations[step]] for step in sorted(validations)],
        "validation_bits_per_byte": None if last is None else last * scores.bits_per_byte_factor,
        "baselines": {"uniform": scores.uniform, "unigram": scores.unigram, "bigram": scores.bigram},
        "max_in_flight": outcome.max_in_flight,
        "pnodes": [msgspec.to_builtins(facts) for facts in outcome.pnodes],
        "recoveries": [msgspec.to_builtins(facts) for facts in outcome.recoveries],
        "prepare_s": prepare_s,
        "train_s": outcome.train_s,
        "tokens_per_s": outcome.committed_tokens / outcome.train_s if outcome.train_s else 0.0,
        "checkpoint": checkpoint,
        "sample": outcome.sample,
        "status": "stopped" if outcome.is_stopped else "finished",
    }
