"""Random small networks and placements: skips, fan-out, shared weights, logits beside the cost's path."""

from __future__ import annotations

from hypothesis import strategies as st

from dcnr_app.ids import PNodeId
from dcnr_app.nodes.add import Add
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.embedder import Embedder
from dcnr_app.nodes.gelu import Gelu
from dcnr_app.nodes.graph.network import Network, NetworkInput, NetworkNode
from dcnr_app.nodes.layernorm import LayerNorm
from dcnr_app.nodes.linear import Linear
from dcnr_app.nodes.tokenizer import Tokenizer
from tests.runtime.networks import node

N_DIM, N_TOKENS, N_VOCABULARY, ROWS = 4, 8, 16, 2
INPUTS = tuple(NetworkInput(name, ("batch", N_TOKENS), "int32") for name in ("tokens", "targets"))


def network_of(middle: list[NetworkNode], side: str = "") -> Network:
    """tokenizer -> embed -> `middle` -> sum of all that is not used yet -> head -> loss.

    With `side`, the logits come from a head of their own on that VNode, off the cost's path.
    """
    used = {reference for entry in middle for reference in entry.inputs}
    open_ends = [entry.name for entry in middle if f"{entry.name}:0" not in used] or ["embed"]
    nodes = [
        node("tokenizer", Tokenizer(), "tokens"),
        node("embed", Embedder(n_tokens=N_VOCABULARY, n_dim=N_DIM, init_std=0.5), "tokenizer"),
        *middle,
        node("total", Add(), *open_ends, "embed"),
        node("head", Linear(n_in=N_DIM, n_out=N_VOCABULARY), "total"),
        node("loss", CrossEntropy(), "head", "targets"),
    ]
    if side:
        nodes.append(node("side", Linear(n_in=N_DIM, n_out=N_VOCABULARY), side))
    outputs = {"loss": "loss:0", "logits": "side:0" if side else "head:0"}
    return Network(name="random", inputs=INPUTS, nodes=tuple(nodes), outputs=outputs)


@st.composite
def networks(draw: st.DrawFn, max_middle: int = 5) -> Network:
    """Networks of 4 to 5 + max_middle VNodes besides the tokenizer."""
    middle: list[NetworkNode] = []
    for index in range(draw(st.integers(0, max_middle))):
        sources = st.sampled_from(["embed", *(entry.name for entry in middle)])
        kind = draw(st.sampled_from(["linear", "gelu", "layernorm", "add"]))
        first = draw(sources)
        match kind:
            case "linear":
                owners = [e.name for e in middle if isinstance(e.vnode, Linear) and not e.share]
                owner = draw(st.sampled_from(["", *owners]))
                share = {"weight": f"{owner}.weight"} if owner else {}
                made = node(f"n{index}", Linear(n_in=N_DIM, n_out=N_DIM), first, share=share)
            case "gelu":
                made = node(f"n{index}", Gelu(), first)
            case "layernorm":
                made = node(f"n{index}", LayerNorm(n_dim=N_DIM), first)
            case _:
                made = node(f"n{index}", Add(), first, draw(sources))
        middle.append(made)
    side = draw(st.sampled_from(["", "embed", *(entry.name for entry in middle)]))
    return network_of(middle, side)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Network, dict[str, PNodeId], tuple[PNodeId, ...]]:
    """A network, a PNode for each VNode, and the PNodes in use."""
    network = draw(networks())
    pnodes = [PNodeId(name) for name in "abc"[: draw(st.integers(1, 3))]]
    places = {entry.name: draw(st.sampled_from(pnodes)) for entry in network.nodes}
    used = tuple(sorted({places[entry.name] for entry in network.nodes if not entry.vnode.is_host}))
    return network, places, used
