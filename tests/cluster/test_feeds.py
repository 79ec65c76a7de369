"""Batches and prompts as the tensors that a network takes from outside."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.cluster.feeds import SessionFeed, check_inputs
from dcnr_app.cluster.routes import outside_references
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import InvalidError
from dcnr_app.nodes.graph.load import load_network
from dcnr_app.nodes.registry import load_registry
from tests.cluster.local_run import CONTEXT, SETTINGS, RandomText, spread, tiny_network
from tests.e2e.place import network_text

NETWORK = tiny_network(load_registry())


def feed() -> SessionFeed:
    return SessionFeed(NETWORK, RandomText(SETTINGS), ReferenceBackend(1), {})


def test_a_batch_is_its_microbatches_by_reference_with_counts_and_samples() -> None:
    tensors, counts, samples = feed().batch(2)
    expected = RandomText(SETTINGS).batch(2)
    assert len(tensors) == SETTINGS.microbatches
    for inputs, microbatch in zip(tensors, expected, strict=True):
        assert inputs.keys() == {"tokens:0", "targets:0", "tokenizer:0"}
        assert inputs["tokenizer:0"].tobytes() == microbatch.tokens.tobytes()
        assert inputs["targets:0"].tobytes() == microbatch.targets.tobytes()
        assert {x.dtype for x in inputs.values()} == {np.dtype(np.int32)}
    assert counts == [SETTINGS.rows * CONTEXT] * SETTINGS.microbatches
    assert samples == [sample for microbatch in expected for sample in microbatch.samples]
    assert samples == list(range(SETTINGS.batch, 2 * SETTINGS.batch))


@pytest.mark.parametrize("n_ids", [1, CONTEXT - 1, CONTEXT, CONTEXT + 5])
def test_a_prompt_is_its_last_tokens_in_row_0_and_nothing_to_be_counted(n_ids: int) -> None:
    ids = list(range(100, 100 + n_ids))
    tensors, row = feed().prompt(ids, rows=2, context=CONTEXT)
    n_kept = min(n_ids, CONTEXT)
    tokens = tensors["tokenizer:0"]
    assert tokens.shape == (2, CONTEXT)
    assert tokens[0].tolist() == ids[-CONTEXT:] + [0] * (CONTEXT - n_kept)
    assert not tokens[1].any()
    assert row == n_kept - 1
    assert (tensors["targets:0"] == -1).all()


def test_each_pnode_is_sent_just_what_no_segment_makes_for_it() -> None:
    plan = spread(NETWORK, SETTINGS, 2)
    assert outside_references(NETWORK, plan) == {"p1": ("tokenizer:0",), "p2": ("targets:0",)}
    alone = outside_references(NETWORK, spread(NETWORK, SETTINGS, 1))
    assert {pnode: set(references) for pnode, references in alone.items()} == {
        "p1": {"tokenizer:0", "targets:0"}
    }


def test_a_network_with_other_inputs_is_refused_with_both_names() -> None:
    other = load_network(
        network_text().replace("targets", "wanted"), file="x.yaml", registry=load_registry()
    ).network
    with pytest.raises(InvalidError, match="takes tokens, wanted"):
        check_inputs(other)
