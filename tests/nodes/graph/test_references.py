"""Expansion: paths, scopes, carries, wildcards, ports, order, shared parameters."""

from __future__ import annotations

import pytest

from dcnr_app.errors import InvalidError
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.linear import Linear
from tests.nodes.graph.samples import PREFIX, SMALL, inputs_of, load, replaced


def test_repeats_become_paths_and_carry_values_from_one_iteration_to_the_next() -> None:
    loaded = load(SMALL)
    assert [node.name for node in loaded.network.nodes] == [
        "embed",
        *(f"block/{index}/{name}" for index in range(2) for name in ("norm", "up", "residual")),
        "head",
        "loss",
    ]
    assert inputs_of(loaded, "block/0/norm") == ("embed:0",)
    assert inputs_of(loaded, "block/0/residual") == ("embed:0", "block/0/up:0")
    assert inputs_of(loaded, "block/1/norm") == ("block/0/residual:0",)
    assert inputs_of(loaded, "head") == ("block/1/residual:0",)


def test_overrides_replace_variables_and_what_follows_from_them() -> None:
    text = replaced("{width: 8", '{half: 4, width: "${2 * half}"')
    loaded = load(text, half=6, layers=1)
    assert loaded.variables == {"half": 6, "width": 12, "layers": 1, "vocabulary": 16}
    assert [node.name for node in loaded.network.nodes if "/" in node.name] == [
        "block/0/norm",
        "block/0/up",
        "block/0/residual",
    ]
    assert network_parameters(loaded.network)["embed.weight"].spec.shape == (16, 12)


def test_context_and_vocabulary_come_from_the_graph() -> None:
    loaded = load(SMALL)
    assert (loaded.context, loaded.vocabulary) == (4, 16)


def test_nodes_may_stand_in_any_order_and_keep_file_order_where_free() -> None:
    text = PREFIX + (
        "  - {name: last, type: add, inputs: [b, a]}\n"
        "  - {name: b, type: gelu, inputs: [embed]}\n"
        "  - {name: a, type: relu, inputs: [embed]}\n"
    )
    names = [node.name for node in load(text).network.nodes]
    assert names == ["embed", "b", "a", "last", "head", "loss"]


def test_an_inner_name_hides_an_outer_one() -> None:
    text = PREFIX + (
        "  - {name: a, type: gelu, inputs: [embed]}\n"
        "  - repeat: 1\n"
        "    name: r\n"
        "    carry: {x: a}\n"
        "    yield: {x: b}\n"
        "    nodes:\n"
        "      - {name: a, type: relu, inputs: [x]}\n"
        "      - {name: b, type: relu, inputs: [a]}\n"
        "  - {name: last, type: add, inputs: [r, a]}\n"
    )
    loaded = load(text)
    assert inputs_of(loaded, "r/0/a") == ("a:0",)
    assert inputs_of(loaded, "r/0/b") == ("r/0/a:0",)
    assert inputs_of(loaded, "last") == ("r/0/b:0", "a:0")


def test_a_nested_repeat_sees_the_carry_around_it() -> None:
    text = PREFIX + (
        "  - repeat: 2\n"
        "    name: r\n"
        "    carry: {x: embed}\n"
        "    yield: {x: sum}\n"
        "    nodes:\n"
        "      - {repeat: 2, name: h, nodes: [{name: g, type: gelu, inputs: [x]}]}\n"
        "      - {name: sum, type: add, inputs: [h/0, h/1/g]}\n"
        "  - {name: last, type: add, inputs: [r.x, r/0/sum]}\n"
    )
    loaded = load(text)
    assert inputs_of(loaded, "r/0/h/1/g") == ("embed:0",)
    assert inputs_of(loaded, "r/1/h/0/g") == ("r/0/sum:0",)
    assert inputs_of(loaded, "r/1/sum") == ("r/1/h/0/g:0", "r/1/h/1/g:0")
    assert inputs_of(loaded, "last") == ("r/1/sum:0", "r/0/sum:0")


def test_wildcards_give_all_iterations_in_order_and_the_index_picks_ports() -> None:
    text = PREFIX + (
        "  - {name: fan, type: broadcast, n_outputs: 12, inputs: [embed]}\n"
        "  - repeat: 12\n"
        "    name: heads\n"
        "    index: i\n"
        "    nodes:\n"
        '      - {name: out, type: linear, n_in: 8, n_out: 2, pnode: "${i % 4}", inputs: ["fan:${i}"]}\n'
        "  - {name: joined, type: stack, inputs: [heads/*/out]}\n"
        "  - {name: again, type: stack, inputs: [heads/*]}\n"
        "  - {name: sum, type: add, inputs: [joined, again]}\n"
        "  - {name: last, type: linear, n_in: 24, n_out: 8, inputs: [sum]}\n"
    )
    loaded = load(text)
    expected = tuple(f"heads/{index}/out:0" for index in range(12))
    assert inputs_of(loaded, "joined") == expected
    assert inputs_of(loaded, "again") == expected
    assert inputs_of(loaded, "heads/11/out") == ("fan:11",)
    hints = [node.pnode for node in loaded.network.nodes if node.name.startswith("heads/")]
    assert hints == [0, 1, 2, 3] * 3


def test_two_values_can_be_carried_and_swapped() -> None:
    text = PREFIX + (
        "  - {name: other, type: relu, inputs: [embed]}\n"
        "  - repeat: 3\n"
        "    name: r\n"
        "    carry: {x: embed, y: other}\n"
        "    yield: {x: y, y: g}\n"
        "    nodes:\n"
        "      - {name: g, type: gelu, inputs: [x]}\n"
        "  - {name: last, type: add, inputs: [r.x, r.y]}\n"
    )
    loaded = load(text)
    assert [inputs_of(loaded, f"r/{index}/g") for index in range(3)] == [
        ("embed:0",),
        ("other:0",),
        ("r/0/g:0",),
    ]
    assert inputs_of(loaded, "last") == ("r/1/g:0", "r/2/g:0")


def test_a_value_handed_through_a_thousand_iterations_needs_no_recursion() -> None:
    text = PREFIX + (
        "  - repeat: 1000\n"
        "    name: r\n"
        "    carry: {x: embed, y: embed}\n"
        "    yield: {x: x, y: g}\n"
        "    nodes:\n"
        "      - {name: g, type: gelu, inputs: [y]}\n"
        "  - {name: last, type: add, inputs: [r.x, r.y]}\n"
    )
    assert inputs_of(load(text), "last") == ("embed:0", "r/999/g:0")


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("r", "'r' has several yielded values"),
        ("r.z", "asks for 'z', which is not yielded"),
        ("r.x:1", "has no ports"),
        ("h", "names the repeat 'h', which carries nothing"),
        ("h/*", "does not say which of 2 nodes"),
        ("embed/0", "reaches into 'embed', which is one VNode"),
        ("h/0/b/0", "reaches into 'h/0/b', which is one VNode"),
        ("h/9999999", "needs an iteration after 'h'"),
    ],
)
def test_references_that_name_no_single_thing_are_refused(reference: str, what: str) -> None:
    text = PREFIX + (
        "  - repeat: 2\n"
        "    name: r\n"
        "    carry: {x: embed, y: embed}\n"
        "    yield: {x: g, y: g}\n"
        "    nodes: [{name: g, type: add, inputs: [x, y]}]\n"
        "  - repeat: 2\n"
        "    name: h\n"
        "    nodes: [{name: a, type: gelu, inputs: [r.x]}, {name: b, type: gelu, inputs: [a]}]\n"
        f"  - {{name: last, type: add, inputs: ['{reference}', h/0/b, h/1/b]}}\n"
    )
    with pytest.raises(InvalidError) as caught:
        load(text)
    assert what in caught.value.what


def test_shared_parameters_follow_to_the_owner() -> None:
    text = PREFIX + (
        "  - {name: a, type: linear, n_in: 8, n_out: 8, share: {weight: b.weight}, inputs: [embed]}\n"
        "  - {name: b, type: linear, n_in: 8, n_out: 8, share: {weight: c.weight}, inputs: [a]}\n"
        "  - {name: c, type: linear, n_in: 8, n_out: 8, inputs: [b]}\n"
        "  - {name: last, type: gelu, inputs: [c]}\n"
    )
    loaded = load(text)
    shares = {node.name: dict(node.share) for node in loaded.network.nodes if isinstance(node.vnode, Linear)}
    assert shares == {"head": {}, "a": {"weight": "c.weight"}, "b": {"weight": "c.weight"}, "c": {}}
    parameter = network_parameters(loaded.network)["c.weight"]
    assert parameter.sites == (("a", "weight"), ("b", "weight"), ("c", "weight"))


def test_parameters_that_share_in_a_circle_are_refused() -> None:
    text = PREFIX + (
        "  - {name: a, type: linear, n_in: 8, n_out: 8, share: {weight: b.weight}, inputs: [embed]}\n"
        "  - {name: b, type: linear, n_in: 8, n_out: 8, share: {weight: a.weight}, inputs: [a]}\n"
        "  - {name: last, type: gelu, inputs: [b]}\n"
    )
    with pytest.raises(InvalidError, match=r"a\.weight -> b\.weight -> a\.weight"):
        load(text)
