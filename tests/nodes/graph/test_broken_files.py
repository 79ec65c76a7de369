"""Broken network files: each is refused with its place, what is wrong, and a suggestion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.errors import InvalidError, UserError
from dcnr_app.nodes.graph.load import read_network_file
from tests.nodes.graph.samples import SMALL, load, replaced

WHOLE_FILES = {
    "empty": ("", "1:1", "the file is empty", "assets/networks"),
    "only comments": ("# nothing\n", "1:1", "the file is empty", ""),
    "list": ("- a\n", "1:1", "a network file is a mapping, this one is a list", "network: <name>"),
    "tab": ("network: x\n\tinputs: y\n", "2:1", "'\\t' that cannot start any token", "indent with spaces"),
    "missing section": ("network: x\n", "1:1", "lacks the required field 'inputs'", "add `inputs: ...`"),
}
"""Text, line:column, part of what, part of why or fix."""

EDITS = {
    "brace in flow": ("$width,", "$§{width},", "not valid YAML", 'write "${...}" in quotes'),
    "duplicate key": ("outputs:", "§network: b\noutputs:", "'network' stands twice", "at net.yaml:1:1"),
    "top level key": ("outputs:", "§output:", "has no field 'output'", "'outputs'?"),
    "network name": ("small", "§Small one", "'Small one' is not a valid network name", "a-z"),
    "variable value": ("width: 8", "width: §wide", "must be a number, got the text 'wide'", ""),
    "variable name": ("{width", "{§max: 1, width", "cannot be called 'max'", ""),
    "unknown variable": ("$width", "§$widht", "unknown variable 'widht'", "'width'?"),
    "yaml 1.1": ("width: 8", "width: §12:30", "12:30 can be read as a number in base 60", "1.1"),
    "dtype": ("int32", "§int23", "unknown dtype 'int23'", "'int32'?"),
    "first axis": ("[batch, 4]", "[§4, 4]", "the first axis of an input is `batch`", ""),
    "axis": ("[batch, 4]", "[batch, §-4]", "length of at least 1, got -4", ""),
    "type": ("layernorm", "§layernrom", "unknown VNode type 'layernrom'", "'layernorm'?"),
    "type version": ("layernorm", "§layernorm.v9", "'layernorm.v9'", "'layernorm.v1'?"),
    "no type": ("norm, type: layernorm, ", "§norm, ", "lacks the required field 'type'", ""),
    "field": ("n_tokens", "§n_token", "embedder.v1 has no field 'n_token'", "'n_tokens'?"),
    "missing field": (
        "embed, type: embedder, n_tokens: $vocabulary, ",
        "§embed, type: embedder, ",
        "embedder.v1 lacks the required field 'n_tokens'",
        "add `n_tokens: ...`",
    ),
    "field type": ("$vocabulary", '§"16"', "is the text '16': expected int", "without quotes"),
    "bool": ("bias: false", "bias: §no", "no can be read as the truth value false", "write false"),
    "bool from a number": ("bias: false", "bias: §1", "has_bias of linear.v1 is 1: expected bool", ""),
    "negative": ("$vocabulary", "§-3", "n_tokens of embedder.v1 is -3: a size is at least 1", ""),
    "post init": ("[x]}", "[x], eps: §0.0}", "layernorm.v1 expects eps > 0, got 0.0", ""),
    "not finite": ("[x]}", "[x], eps: §.nan}", ".nan is not a finite number", ""),
    "name": ("name: norm,", "name: §a/b,", "'a/b' is not a valid node name", "letters"),
    "duplicate name": ("name: up", "name: §norm", "the name 'norm' is given twice", "net.yaml:13:16"),
    "input's name": ("name: embed", "name: §tokens", "'tokens' is given twice", "net.yaml:4:3"),
    "carry's name": ("name: norm,", "name: §x,", "the name 'x' is given twice", "net.yaml:10:16"),
    "dangling": ("[norm]", "[§nrom]", "'nrom' is no node or input here", "'norm'?"),
    "port": ("[norm]", '[§"norm:1"]', "'block/0/norm' has no output port 1: it has 1", ""),
    "input port": ("[tokens]", '[§"tokens:1"]', "network input 'tokens', which is one tensor", ""),
    "no reference": ("[norm]", "[§a::b]", "'a::b' is not a reference", "node:1"),
    "input count": ("[norm]", "§[norm, x]", "'block/0/up' takes 1 input (x), got 2", ""),
    "inputs no list": ("[norm]", "§norm", "inputs of 'block/0/up' must be a list", "[a, b]"),
    "unused": (
        "      - {name: up",
        "      - {name: §free, type: gelu, inputs: [norm]}\n      - {name: up",
        "'block/0/free' is used by no node and is no output",
        "connect it, or remove it",
    ),
    "unused input": (
        "nodes:",
        "  §extra: {shape: [batch, 2], dtype: int32}\nnodes:",
        "the input 'extra' is used by no node",
        "",
    ),
    "cycle": (
        "norm, type: layernorm, n_dim: $width, inputs: [x]",
        "§norm, type: layernorm, n_dim: $width, inputs: [up]",
        "block/0/norm -> block/0/up -> block/0/norm",
        "cut one of these edges",
    ),
    "shape": (
        "n_out: $width, inputs: [norm]}\n      - {name: residual",
        "n_out: 9, inputs: [norm]}\n      - {name: §residual",
        "shapes do not fit at node 'block/0/residual'",
        "block/0/up float32 (4, 4, 9)",
    ),
    "shape of one edge": (
        "n_in: $width, n_out: $width, inputs: [norm]",
        "n_in: 9, n_out: $width, inputs: [§norm]",
        "linear.v1 expects x of shape (..., 9), got (4, 4, 8)",
        "it receives block/0/norm float32 (4, 4, 8)",
    ),
    "no loss": ("{loss: loss, ", "§{", "outputs has no `loss`", "<the cost node>"),
    "no logits": ("loss: loss, logits: head", "loss: §loss", "outputs has no `logits`", "`logits: head`"),
    "logits of another node": (
        "logits: head",
        "logits: §block",
        "outputs.logits names 'block/1/residual', which the cost is not made from",
        "write `logits: head`",
    ),
    "loss no cost": ("loss: loss", "loss: §head", "'head', which is no cost VNode", "mse"),
    "output": ("logits: head", "logits: §haed", "'haed' is no node or input", "'head'?"),
    "output of many": ("logits: head", "logits: §block/*", "names one tensor, 'block/*' gives 2", ""),
    "share parameter": ("embed.weight", "§embed.wieght", "'embed' has no parameter 'wieght'", "'weight'?"),
    "share own": ("{weight: embed", "{wait: §embed", "'head' has no parameter 'wait'", ""),
    "share shape": (
        "embed.weight",
        "§block/0/up.weight",
        "head.weight (16, 8) cannot share block/0/up.weight (8, 8)",
        "one shape",
    ),
    "share circle": ("embed.weight", "§head.weight", "in a circle: head.weight -> head.weight", ""),
    "pnode": ("[x]}", "[x], pnode: §-1}", "pnode is -1", ""),
    "repeat count": ("repeat: $layers", "repeat: §2000", "runs 2000 times (allowed: 1 to 1024)", ""),
    "repeat zero": ("repeat: $layers", "repeat: §0", "runs 0 times", ""),
    "repeat of a fraction": ("$layers", "§${layers / 4}", "count of the repeat 'block' is 0.5", ""),
    "repeat field": ("    carry", "    §cary", "a repeat has no field 'cary'", "'carry'?"),
    "index": ("    carry", "    index: §width\n    carry", "'width' has the name of a variable", ""),
    "no yield": (
        "{x: embed}\n    yield: {x",
        "{x: §embed}\n    yield: {y",
        "but does not yield it",
        "<node>",
    ),
    "yield": ("x: residual", "x: §residul", "'residul' is no node or input", "'residual'?"),
    "iteration": ("[block]", "[§block/2]", "'block/2' asks for iteration 2 of 2", "count from 0"),
    "no iteration": ("[block]", "[§block/up]", "needs an iteration after 'block'", "block/*/up"),
    "inside an iteration": ("[block]", "[§block/1/upp]", "'upp', which is not in 'block'", "'up'?"),
    "carry circle": ("{x: embed}\n    yield: {x: residual}", "{x: block}\n    yield: {x: §x}", "itself", ""),
    "training key": ("  steps:", "  §step:", "training has no field 'step'", "'steps'?"),
    "training value": ("batch: 8", "batch: §0", "training.batch is 0: expected int >= 1", ""),
    "training word": ("adamw", "§adam", "training.optimizer.type is the text 'adam'", "'adamw'?"),
    "training fit": (
        "batch: 8\n  microbatches: 2",
        "batch: §8\n  microbatches: 3",
        "batch 8 is not divisible by microbatches 3",
        "",
    ),
}
"""What of SMALL is replaced, by what (`§` marks the expected place), part of what, part of why or fix."""


def _refusal(text: str, place: str, what: str, hint: str) -> None:
    with pytest.raises(InvalidError) as caught:
        load(text)
    assert caught.value.where == f"net.yaml:{place}", str(caught.value)
    assert what in caught.value.what
    assert hint in f"{caught.value.why} {caught.value.fix}"
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("name", sorted(WHOLE_FILES))
def test_a_file_that_holds_no_network_is_refused(name: str) -> None:
    _refusal(*WHOLE_FILES[name])


@pytest.mark.parametrize("name", sorted(EDITS))
def test_a_broken_file_is_refused_with_its_place(name: str) -> None:
    old, new, what, hint = EDITS[name]
    text = replaced(old, new)
    before = text[: text.index("§")]
    place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    _refusal(text.replace("§", ""), place, what, hint)


_WORDS = (
    "$ { } [ ] : , - &a *a << / 1e9 ~ true '' x block 0 -1 $width ${1/0} # ! | > ? /* .weight :1 99999999999"
)
_PIECES = st.sampled_from([*_WORDS.split(), "\n", "  ", '"', "- ", "<<: ", "&a "])
_MUTATIONS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), _PIECES), min_size=1, max_size=3)


@settings(deadline=None)
@given(_MUTATIONS)
def test_a_mutated_file_loads_or_is_refused_with_its_place(
    mutations: list[tuple[float, int, str]],
) -> None:
    text = SMALL
    for place, removed, piece in mutations:
        start = int(place * len(text))
        text = text[:start] + piece + text[start + removed :]
    try:
        load(text)
    except InvalidError as error:
        assert re.fullmatch(r"net\.yaml:\d+:\d+", error.where)


def test_an_unknown_override_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidError) as caught:
        load(SMALL, widht=16)
    assert str(caught.value) == "net.yaml: the file has no variable 'widht'\n  try: did you mean 'width'?"


def test_a_second_cost_is_refused() -> None:
    second = "  - {name: loss_2, type: cross_entropy, inputs: [head, targets]}\noutputs: {more: loss_2, "
    with pytest.raises(InvalidError, match="'loss_2' is a second cost VNode"):
        load(replaced("outputs: {", second))


def test_parameters_without_a_gradient_are_refused() -> None:
    extra = "  - {name: probe, type: linear, n_in: 8, n_out: 2, inputs: [block]}\noutputs: {probe: probe, "
    with pytest.raises(InvalidError, match="'probe' has parameters, but no gradient reaches it"):
        load(replaced("outputs: {", extra))


def test_logits_are_named_with_their_port() -> None:
    fan = "  - {name: fan, type: broadcast, n_outputs: 2, inputs: [head]}\n  - {name: loss"
    text = replaced("  - {name: loss", fan).replace("[head, targets]", '["fan:1", targets]')
    with pytest.raises(
        InvalidError, match=r"'head', which the cost is not made from(.|\n)*`logits: \"fan:1\"`"
    ):
        load(text.replace("loss: loss,", 'loss: loss, other: "fan:0",'))
    fixed = text.replace("logits: head", 'logits: "fan:1", other: "fan:0"')
    assert load(fixed).vocabulary == 16


def test_a_cost_that_compares_no_logits_needs_none() -> None:
    last = "  - {name: loss, type: mse, inputs: [head, again]}\noutputs: {loss: loss}"
    again = "  - {name: again, type: gelu, inputs: [head]}\n"
    old = SMALL[SMALL.index("  - {name: loss") : SMALL.index("training:")]
    text = SMALL.replace(old, f"{again}{last}\n").replace(
        "  targets: {shape: [batch, 4], dtype: int32}\n", ""
    )
    assert load(text).vocabulary == 0


@pytest.mark.parametrize("section", ["inputs", "outputs"])
def test_over_a_thousand_inputs_or_outputs_are_refused(section: str) -> None:
    if section == "inputs":
        more = "".join(f"  x{i}: {{shape: [batch], dtype: int32}}\n" for i in range(1024))
        text = replaced("nodes:\n", f"{more}nodes:\n")
    else:
        text = replaced("logits: head}", f"logits: head, {', '.join(f'o{i}: block' for i in range(1024))}}}")
    with pytest.raises(InvalidError, match=f"the network has 102[0-9] {section}, at most 1024 are allowed"):
        load(text)


def test_a_free_port_of_a_broadcast_is_refused() -> None:
    extra = "  - {name: fan, type: broadcast, n_outputs: 2, inputs: [block]}\n  - name: head"
    text = replaced("  - name: head", extra).replace("[block]\n", '["fan:0"]\n')
    with pytest.raises(InvalidError, match="output port 1 of 'fan' is used by no node"):
        load(text)


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no network file"):
        read_network_file(tmp_path / "none.yaml")


def test_a_file_that_is_not_utf_8_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"network: a\nname: caf\xe9\n")
    with pytest.raises(InvalidError) as caught:
        read_network_file(path)
    assert caught.value.where == f"{path}:2:10"
    assert caught.value.what == "the file is not UTF-8: byte 0xE9"


def test_a_file_over_the_cap_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(InvalidError, match="over 256 KiB"):
        read_network_file(path)
