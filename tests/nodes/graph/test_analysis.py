"""Facts about graphs: shapes, edges, gradients."""

from __future__ import annotations

import pytest

from dcnr_app.nodes.gelu import Gelu
from dcnr_app.nodes.graph.analysis import ShapeError, gradient_references, infer_shapes, network_edges
from dcnr_app.nodes.graph.network import Network, NetworkInput, NetworkNode
from dcnr_app.nodes.linear import Linear
from tests.nodes.graph.samples import SMALL, load


def _chain(*nodes: NetworkNode) -> Network:
    return Network(name="n", inputs=(NetworkInput("x", ("batch", 4), "float32"),), nodes=nodes, outputs={})


def test_shapes_scale_with_the_rows_of_a_microbatch() -> None:
    network = load(SMALL).network
    assert infer_shapes(network, 5)["head:0"].shape == (5, 4, 16)
    assert infer_shapes(network, 2)["head:0"].shape == (2, 4, 16)


def test_a_shape_that_does_not_fit_names_node_and_edges() -> None:
    network = _chain(NetworkNode(name="a", vnode=Linear(n_in=3, n_out=2), inputs=("x:0",)))
    with pytest.raises(ShapeError) as caught:
        infer_shapes(network, 6)
    assert caught.value.node == "a"
    assert caught.value.why == "it receives x float32 (6, 4)"


def test_a_port_that_does_not_exist_names_the_slot() -> None:
    network = _chain(
        NetworkNode(name="a", vnode=Gelu(), inputs=("x:0",)),
        NetworkNode(name="b", vnode=Gelu(), inputs=("a:1",)),
    )
    with pytest.raises(ShapeError, match="'a' has no output port 1: it has 1") as caught:
        infer_shapes(network, 6)
    assert (caught.value.node, caught.value.slot) == ("b", 0)


def test_edges_come_in_the_order_of_target_and_slot() -> None:
    keys = [edge.key for edge in network_edges(load(SMALL, layers=1).network)]
    assert keys == [
        "tokens:0>embed:0",
        "embed:0>block/0/norm:0",
        "block/0/norm:0>block/0/up:0",
        "embed:0>block/0/residual:0",
        "block/0/up:0>block/0/residual:1",
        "block/0/residual:0>head:0",
        "head:0>loss:0",
        "targets:0>loss:1",
    ]


def test_gradients_flow_wherever_a_parameter_lies_above() -> None:
    wanted = gradient_references(load(SMALL, layers=1).network)
    assert wanted == {
        "embed:0",
        "block/0/norm:0",
        "block/0/up:0",
        "block/0/residual:0",
        "head:0",
    }
