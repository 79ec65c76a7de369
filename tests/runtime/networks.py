"""Small networks for runtime tests, built from Structs."""

from __future__ import annotations

import numpy as np

from dcnr_app.nodes.add import Add
from dcnr_app.nodes.attention import Attention
from dcnr_app.nodes.broadcast import Broadcast
from dcnr_app.nodes.contract import VNode
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.dropout import Dropout
from dcnr_app.nodes.embedder import Embedder
from dcnr_app.nodes.gelu import Gelu
from dcnr_app.nodes.graph.network import Network, NetworkInput, NetworkNode
from dcnr_app.nodes.graph.training import Optimizer, TrainingSettings
from dcnr_app.nodes.layernorm import LayerNorm
from dcnr_app.nodes.linear import Linear
from dcnr_app.nodes.position import Position
from dcnr_app.nodes.split import Split

N_TOKENS, N_VOCABULARY, N_DIM, N_ROWS = 6, 11, 8, 3

SETTINGS = TrainingSettings(
    batch=2 * N_ROWS, microbatches=2, seed=7, optimizer=Optimizer(learning_rate=1e-2, weight_decay=0.1)
)


def node(name: str, vnode: VNode, *inputs: str, share: dict[str, str] | None = None) -> NetworkNode:
    """A node; inputs without a port mean port 0."""
    references = tuple(entry if ":" in entry else f"{entry}:0" for entry in inputs)
    return NetworkNode(name=name, vnode=vnode, inputs=references, share=share or {})


def small_gpt(*, rate: float = 0.0) -> Network:
    """One block with all that is awkward: skips, fan-out, aliases, unused ports, shared parameters.

    `embed.weight` has two sites, `side.weight` three, of which the first by name (`down`) comes last but one
    in the graph. Two ports of `parts` are not used. `head` makes the logits.
    """
    square = Linear(n_in=N_DIM, n_out=N_DIM)
    nodes = (
        node("embed", Embedder(n_tokens=N_VOCABULARY, n_dim=N_DIM, init_std=0.5), "tokens"),
        node("place", Position(n_positions=N_TOKENS, n_dim=N_DIM, init_std=0.5), "embed"),
        node("norm_1", LayerNorm(n_dim=N_DIM), "place"),
        node("attend", Attention(n_dim=N_DIM, n_heads=2, n_head_dim=4), "norm_1"),
        node("side", square, "norm_1"),
        node("both", Add(), "attend", "side", "norm_1"),
        node("drop", Dropout(rate=rate), "both"),
        node("skip_1", Add(), "place", "drop"),
        node("norm_2", LayerNorm(n_dim=N_DIM), "skip_1"),
        node("copies", Broadcast(n_outputs=2), "norm_2"),
        node("up", Linear(n_in=N_DIM, n_out=4 * N_DIM), "copies:0"),
        node("gelu", Gelu(), "up"),
        node("parts", Split(n_outputs=4), "gelu"),
        node("down", square, "parts:0", share={"weight": "side.weight"}),
        node("down_too", square, "parts:2", share={"weight": "side.weight"}),
        node("skip_2", Add(), "skip_1", "down", "copies:1", "down_too"),
        node("norm_3", LayerNorm(n_dim=N_DIM), "skip_2"),
        node(
            "head",
            Linear(n_in=N_DIM, n_out=N_VOCABULARY, has_bias=False),
            "norm_3",
            share={"weight": "embed.weight"},
        ),
        node("cost", CrossEntropy(), "head", "targets"),
    )
    inputs = tuple(NetworkInput(name, ("batch", N_TOKENS), "int32") for name in ("tokens", "targets"))
    return Network(name="small", inputs=inputs, nodes=nodes, outputs={"loss": "cost:0", "logits": "head:0"})


def small_batch(step: int, microbatch: int) -> dict[str, np.ndarray]:
    """Input tensors of one microbatch by reference; some targets are not counted."""
    generator = np.random.default_rng((step, microbatch))
    shape = (N_ROWS, N_TOKENS)
    targets = generator.integers(-1, N_VOCABULARY, shape)
    return {
        "tokens:0": generator.integers(0, N_VOCABULARY, shape).astype(np.int32),
        "targets:0": targets.astype(np.int32),
    }
