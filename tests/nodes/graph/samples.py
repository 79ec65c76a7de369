"""Small network files for the tests of this folder."""

from __future__ import annotations

from dcnr_app.nodes.graph.load import LoadedNetwork, load_network
from dcnr_app.nodes.registry import load_registry

SMALL = """\
network: small
variables: {width: 8, layers: 2, vocabulary: 16}
inputs:
  tokens: {shape: [batch, 4], dtype: int32}
  targets: {shape: [batch, 4], dtype: int32}
nodes:
  - {name: embed, type: embedder, n_tokens: $vocabulary, n_dim: $width, inputs: [tokens]}
  - repeat: $layers
    name: block
    carry: {x: embed}
    yield: {x: residual}
    nodes:
      - {name: norm, type: layernorm, n_dim: $width, inputs: [x]}
      - {name: up, type: linear, n_in: $width, n_out: $width, inputs: [norm]}
      - {name: residual, type: add, inputs: [x, up]}
  - name: head
    type: linear
    n_in: $width
    n_out: $vocabulary
    has_bias: false
    share: {weight: embed.weight}
    inputs: [block]
  - {name: loss, type: cross_entropy, inputs: [head, targets]}
outputs: {loss: loss, logits: head}
training:
  steps: 10
  batch: 8
  microbatches: 2
  optimizer: {type: adamw, learning_rate: 1e-3}
"""

PREFIX = """\
network: sample
inputs: {tokens: {shape: [batch, 4], dtype: int32}, targets: {shape: [batch, 4], dtype: int32}}
outputs: {loss: loss, logits: head}
nodes:
  - {name: embed, type: embedder, n_tokens: 16, n_dim: 8, inputs: [tokens]}
  - {name: head, type: linear, n_in: 8, n_out: 16, inputs: [last]}
  - {name: loss, type: cross_entropy, inputs: [head, targets]}
"""
"""A network whose nodes must still give `last`, (batch, 4, 8); more nodes can be appended to the text."""


def load(text: str, **overrides: int | float) -> LoadedNetwork:
    """The network in `text`, as file `net.yaml`."""
    return load_network(text, file="net.yaml", registry=load_registry(), overrides=overrides)


def inputs_of(loaded: LoadedNetwork, name: str) -> tuple[str, ...]:
    """References that feed the node."""
    return next(node.inputs for node in loaded.network.nodes if node.name == name)


def replaced(old: str, new: str) -> str:
    """SMALL with its only or first `old` replaced, which must be there."""
    assert old in SMALL
    return SMALL.replace(old, new, 1)
