"""A Network's canonical form and id: what survives the round trip, what the id depends on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.errors import InvalidError
from dcnr_app.nodes.contract import VNode, tag_of
from dcnr_app.nodes.dropout import Dropout
from dcnr_app.nodes.graph.network import (
    MAX_ENDS,
    MAX_STORED_NODES,
    Network,
    NetworkInput,
    NetworkNode,
    context_of,
    decode_network,
    encode_network,
    network_form,
    network_id,
    split_ref,
)
from dcnr_app.nodes.layernorm import LayerNorm
from dcnr_app.nodes.linear import Linear
from dcnr_app.nodes.mask import Mask
from dcnr_app.nodes.registry import load_registry
from dcnr_app.nodes.reshape import Reshape
from tests.nodes.graph.samples import SMALL, load, replaced

_SIZES = st.integers(1, 10**6)
_FLOATS = st.floats(0, 1e6, allow_nan=False)
_VNODES: st.SearchStrategy[VNode] = st.one_of(
    st.builds(Linear, n_in=_SIZES, n_out=_SIZES, has_bias=st.booleans(), init_std=_FLOATS),
    st.builds(LayerNorm, n_dim=_SIZES, eps=st.floats(1e-12, 1.0), has_bias=st.booleans()),
    st.builds(Dropout, rate=st.floats(0, 1, exclude_max=True)),
    st.builds(Reshape, shape=st.lists(_SIZES, min_size=1, max_size=4).map(tuple)),
    st.builds(Mask, kind=st.sampled_from(["causal", "padding"]), fill=st.none() | _FLOATS),
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_NODES = st.builds(
    NetworkNode,
    name=_TEXT,
    vnode=_VNODES,
    inputs=st.lists(_TEXT, max_size=3).map(tuple),
    share=st.dictionaries(_TEXT, _TEXT, max_size=2),
    pnode=st.none() | st.integers(0, 99),
)
_INPUTS = st.builds(
    NetworkInput,
    name=_TEXT,
    shape=st.lists(_SIZES | st.just("batch"), max_size=3).map(tuple),
    dtype=st.sampled_from(["int32", "float32", "bfloat16"]),
)
NETWORKS = st.builds(
    Network,
    name=_TEXT,
    inputs=st.lists(_INPUTS, max_size=2).map(tuple),
    nodes=st.lists(_NODES, max_size=4).map(tuple),
    outputs=st.dictionaries(_TEXT, _TEXT, max_size=2),
)


@settings(deadline=None)
@given(NETWORKS)
def test_decoding_what_was_encoded_gives_the_same_network(network: Network) -> None:
    raw = encode_network(network)
    decoded = decode_network(raw, load_registry())
    assert decoded == network
    assert encode_network(decoded) == raw
    assert network_id(decoded) == network_id(network)


@settings(deadline=None)
@given(NETWORKS, _TEXT, st.integers(0, 99))
def test_the_id_ignores_name_and_placement_hints(network: Network, name: str, pnode: int) -> None:
    nodes = tuple(msgspec.structs.replace(node, pnode=pnode) for node in network.nodes)
    assert network_id(msgspec.structs.replace(network, name=name, nodes=nodes)) == network_id(network)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("type: linear, n_in", "type: linear.v1, n_in"),
        ("network: small", "network: other"),
        ("inputs: [norm]}", "inputs: ['norm:0'], pnode: 3}"),
        ("inputs: [x]}", "inputs: [x], eps: 1e-5}"),
        ("inputs: [norm]}", "inputs: [norm], init_std: 0}"),
        ("steps: 10", "steps: 11"),
        ("n_out: $width", "n_out: 8"),
        ("n_out: $width", "n_out: '${2 * 4}'"),
    ],
)
def test_other_words_for_the_same_network_keep_its_id(old: str, new: str) -> None:
    assert network_id(load(replaced(old, new)).network) == network_id(load(SMALL).network)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("layers: 2", "layers: 3"),
        ("width: 8", "width: 9"),
        ("[batch, 4]", "[batch, 5]"),
        ("    share: {weight: embed.weight}\n", ""),
        ("    has_bias: false\n", ""),
        (", logits: head", ", logits: head, hidden: block"),
        ("name: up,", "name: upper,"),
        ("inputs: [x]}", "inputs: [x], eps: 1e-6}"),
    ],
)
def test_another_network_has_another_id(old: str, new: str) -> None:
    text = replaced(old, new).replace("[x, up]", "[x, upper]" if "upper" in new else "[x, up]")
    if "batch" in old:
        text = text.replace("[batch, 4]", "[batch, 5]")
    assert network_id(load(text).network) != network_id(load(SMALL).network)


def test_every_field_of_a_vnode_is_part_of_the_id() -> None:
    network = load(SMALL).network
    original = network_id(network)
    for index, node in enumerate(network.nodes):
        for field in msgspec.structs.fields(node.vnode):
            value = getattr(node.vnode, field.name)
            other = not value if isinstance(value, bool) else value + 1
            vnode = msgspec.structs.replace(node.vnode, **{field.name: other})
            nodes = [*network.nodes]
            nodes[index] = msgspec.structs.replace(node, vnode=vnode)
            changed = msgspec.structs.replace(network, nodes=tuple(nodes))
            assert network_id(changed) != original, f"{tag_of(type(node.vnode))}.{field.name}"


FORM = network_form(load(SMALL).network)
NOT_NETWORKS = [
    {**FORM, "name": 3},
    {**FORM, "outputs": "loss"},
    {**FORM, "outputs": {"loss": 3}},
    {**FORM, "inputs": [{"name": "tokens", "shape": "batch", "dtype": "int32"}]},
    {**FORM, "nodes": [{**FORM["nodes"][0], "inputs": "tokens:0"}]},
    {**FORM, "nodes": [{**FORM["nodes"][0], "share": [1]}]},
    {**FORM, "nodes": [{**FORM["nodes"][0], "pnode": "0"}]},
]
"""The parts of a network's form, one of them of another kind."""


@pytest.mark.parametrize("form", NOT_NETWORKS)
def test_a_part_of_another_kind_is_refused_in_words(form: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="cannot be read"):
        decode_network(msgspec.json.encode(form), load_registry())


def fan(n_outputs: int, name: str = "fan") -> dict[str, Any]:
    """The stored form of a node that asks for so many tensors."""
    vnode = {"type": "broadcast.v1", "n_outputs": n_outputs}
    return {"name": name, "vnode": vnode, "inputs": ["tokens:0"], "share": {}}


NODE = FORM["nodes"][0]
TOO_LARGE = {
    "one node's ports": ({"nodes": [fan(10**9)]}, "1000000000 output ports"),
    "all nodes' ports": ({"nodes": [fan(1000, f"n{i}") for i in range(101)]}, "101000 output ports"),
    "nodes": ({"nodes": [NODE] * (MAX_STORED_NODES + 1)}, f"length <= {MAX_STORED_NODES}"),
    "inputs": ({"inputs": FORM["inputs"] * MAX_ENDS}, f"length <= {MAX_ENDS}"),
    "outputs": ({"outputs": {f"o{i}": "loss:0" for i in range(MAX_ENDS + 1)}}, f"length <= {MAX_ENDS}"),
}


@pytest.mark.parametrize(("parts", "reason"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_form_that_asks_for_too_much_is_refused_with_the_reason(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidError) as caught:
        decode_network(msgspec.json.encode({**FORM, **parts}), load_registry())
    assert reason in caught.value.what


def test_a_form_at_the_limits_is_read() -> None:
    nodes = [fan(1000, f"n{i}") for i in range(100)]
    outputs = {f"o{i}": "loss:0" for i in range(MAX_ENDS)}
    decoded = decode_network(
        msgspec.json.encode({**FORM, "nodes": nodes, "outputs": outputs}), load_registry()
    )
    assert (len(decoded.nodes), len(decoded.outputs)) == (100, MAX_ENDS)


@pytest.mark.parametrize(
    "inputs", [(), (("tokens", ()),), (("tokens", ("batch",)),), (("tokens", ("batch", 0)),)]
)
def test_a_network_without_tokens_has_no_context_and_says_so(inputs: tuple[Any, ...]) -> None:
    entries = tuple(NetworkInput(name, shape, "int32") for name, shape in inputs)
    network = msgspec.structs.replace(load(SMALL).network, inputs=entries)
    with pytest.raises(InvalidError, match=r"no input `tokens`(.|\n)*declare"):
        context_of(network)
    assert context_of(load(SMALL).network) == 4


@pytest.mark.parametrize("text", ["", "a", "a:", "a:b", ":"])
def test_what_is_no_reference_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidError, match="no reference to a tensor"):
        split_ref(text)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"nodes": 1}', b'{"a":' * 100_000, b"\xff"])
def test_bytes_that_are_no_network_are_refused_in_words(raw: bytes) -> None:
    with pytest.raises(InvalidError, match="cannot be read"):
        decode_network(raw, load_registry())
