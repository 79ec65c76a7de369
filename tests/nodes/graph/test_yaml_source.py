"""YAML values with places, and the caps against hostile files."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from dcnr_app.errors import InvalidError
from dcnr_app.nodes.graph.reading import plain
from dcnr_app.nodes.graph.values import Mapping, Sequence
from dcnr_app.nodes.graph.yaml_source import MAX_DEPTH, parse_yaml
from tests.nodes.graph.samples import PREFIX, SMALL, load

_LEVELS = range(1, 16)
BOMBS = {
    "lists": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in _LEVELS)
    ),
    "many aliases": "a0: &a0 x\nlist: [" + ", ".join(["*a0"] * 65) + "]\n",
    "merge keys": (
        "a0: &a0 {"
        + ", ".join(f"k{i}: 1" for i in range(500))
        + "}\n"
        + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}], z{i}: 1}}\n" for i in _LEVELS)
    ),
}


def test_values_keep_line_and_column() -> None:
    root = parse_yaml("a: 1\nlist:\n  - x\n  - {b: 2.5}\n", "f.yaml")
    listed = root.entries["list"].value
    assert isinstance(listed, Sequence)
    inner = listed.items[1]
    assert isinstance(inner, Mapping)
    assert str(root.entries["list"].key_mark) == "f.yaml:2:1"
    assert str(inner.entries["b"].value.mark) == "f.yaml:4:9"


def test_scalars_follow_yaml_1_2() -> None:
    text = "{a: 1, b: -2.5, c: 3e-3, d: true, e: ~, f: '1', g: word, h: 1., i: .5, j: '', k: +7, l: 089}"
    expected = {
        "a": 1, "b": -2.5, "c": 3e-3, "d": True, "e": None, "f": "1", "g": "word",
        "h": 1.0, "i": 0.5, "j": "", "k": 7, "l": "089",
    }  # fmt: skip
    found = plain(parse_yaml(text, "f"), {})
    assert found == expected
    assert [type(found[key]) for key in expected] == [type(value) for value in expected.values()]


def test_anchors_and_merge_keys_work() -> None:
    text = "base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nlist: [*base, *base]\n"
    found = plain(parse_yaml(text, "f"), {})
    assert found["use"] == {"a": 1, "b": 3}
    assert found["list"] == [{"a": 1, "b": 2}, {"a": 1, "b": 2}]


def test_of_several_merged_mappings_the_earlier_wins() -> None:
    text = "x: &x {a: 1}\ny: &y {a: 2, b: 2}\nuse: {<<: [*x, *y]}\n"
    assert plain(parse_yaml(text, "f"), {})["use"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "text", ["no", "Yes", "on", "OFF", "12:30", "010", "0x1F", "0b1", "1_000", "2020-01-02"]
)
def test_what_yaml_1_1_reads_otherwise_is_refused(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_yaml(f"a: {text}\n", "f")
    assert caught.value.where == "f:1:4"
    assert caught.value.what.startswith(f"{text} can be read as")
    assert f"'{text}' in quotes" in caught.value.fix
    assert plain(parse_yaml(f"a: '{text}'\n", "f"), {}) == {"a": text}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: .nan", "f:1:4", ".nan is not a finite number"),
        ("a: -.inf", "f:1:4", "-.inf is not a finite number"),
        ("a: 1e999", "f:1:4", "1e999 is too large"),
        ("a: " + "9" * 5000, "f:1:4", "has over 40 characters"),
        ("a: !!python/object:os.system x", "f:1:4", "tags are not allowed"),
        ("a: 1\n---\nb: 2", "f:2:1", "more than one document"),
        ("1: a", "f:1:1", "a key must be text, got 1"),
        ("[a]: b", "f:1:1", "a key must be text, got a list"),
        ("a: &x [*x]", "f:1:8", "the alias *x contains itself"),
        ("a: *x", "f:1:4", "the alias *x has no anchor before it"),
        ("a: {<<: 3}", "f:1:9", "`<<` takes a mapping"),
        ("a: \x07", "f:1:4", "the character U+0007"),
        ("a: 'x", "f:1:6", "not valid YAML"),
        ("a: [1,\nb: 2", "f:2:5", "(while parsing a flow sequence from line 1 on)"),
    ],
)
def test_refusals_name_the_place(text: str, where: str, what: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_yaml(text, "f")
    assert caught.value.where == where
    assert what in caught.value.what


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_a_thousand_levels_are_refused_without_recursion(opening: str) -> None:
    with pytest.raises(InvalidError, match=f"nested more than {MAX_DEPTH} deep"):
        parse_yaml(opening * 1000, "f")


def test_a_large_file_is_refused() -> None:
    with pytest.raises(InvalidError, match="over 256 KiB"):
        parse_yaml("#" * (256 * 1024 + 1), "f")


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_alias_bombs_are_refused_by_name_in_little_time_and_memory(name: str) -> None:
    started = time.process_time()
    load(SMALL)
    good_s = time.process_time() - started
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InvalidError, match=r"the alias \*a\d") as caught:
        load(BOMBS[name])
    bomb_s = time.process_time() - started
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.where.startswith("net.yaml:")
    # Processor time, measured with the tracer on (about 4x): far below what an expanded bomb would take.
    assert bomb_s < good_s + 0.4
    assert peak_bytes < 20e6


def test_nested_repeats_cannot_multiply_without_end() -> None:
    body = "  - {name: a, type: gelu, inputs: [embed]}\n"
    for level in range(8):
        inner = "".join(f"    {line}\n" for line in body.splitlines())
        body = f"  - repeat: 1000\n    name: r{level}\n    nodes:\n{inner}"
    with pytest.raises(InvalidError, match="over 20000 nodes"):
        load(PREFIX + body)


def test_wildcards_cannot_multiply_without_end() -> None:
    many = ", ".join(["wide/*"] * 100)
    text = (
        PREFIX
        + "  - {name: last, type: gelu, inputs: [embed]}\n"
        + "  - {repeat: 1000, name: wide, nodes: [{name: a, type: gelu, inputs: [embed]}]}\n"
        + f"  - {{repeat: 1000, name: deep, nodes: [{{name: b, type: stack, inputs: [{many}]}}]}}\n"
    )
    with pytest.raises(InvalidError, match="over 100000 connections"):
        load(text)


def test_ports_cannot_multiply_without_end() -> None:
    text = PREFIX + "  - {name: last, type: broadcast, n_outputs: 1000000000, inputs: [embed]}\n"
    with pytest.raises(InvalidError, match="over 100000 output ports"):
        load(text)
