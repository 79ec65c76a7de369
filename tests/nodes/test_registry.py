"""The registry finds all types, resolves names, and loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

import dcnr_app.nodes as package
from dcnr_app.nodes.contract import VNode, tag_of
from dcnr_app.nodes.linear import Linear
from dcnr_app.nodes.registry import Registry, load_registry, vnode_form


class Doubler(VNode, frozen=True, kw_only=True, tag="doubler.v1"):
    """An older type."""


class NewDoubler(VNode, frozen=True, kw_only=True, tag="doubler.v10"):
    """A newer one: 10 is after 9 as a number, not as text."""


class MiddleDoubler(VNode, frozen=True, kw_only=True, tag="doubler.v9"):
    """One between them."""


class OtherDoubler(VNode, frozen=True, kw_only=True, tag="doubler.v1"):
    """Another type with a tag that is taken."""


def test_all_types_are_found() -> None:
    assert set(load_registry().names()) >= {
        *("tokenizer", "embedder", "position", "rope", "linear", "layernorm", "mask", "attention_head"),
        *("attention", "gelu", "relu", "dropout", "broadcast", "split", "stack", "concat", "add"),
        *("multiply", "reshape", "cross_entropy", "mse"),
    }


def test_tags_carry_a_version_and_are_sorted() -> None:
    tags = load_registry().tags()
    assert list(tags) == sorted(tags)
    assert all(tag.rsplit(".v", 1)[1].isdigit() for tag in tags)


def test_one_file_holds_one_type_named_like_it() -> None:
    for tag, vnode_type in load_registry().types().items():
        assert vnode_type.__module__ == f"{package.__name__}.{tag.rsplit('.v', 1)[0]}"


def test_bare_name_means_the_newest_version() -> None:
    registry = Registry([Doubler, NewDoubler, MiddleDoubler])
    assert registry.resolve("doubler") is NewDoubler
    assert registry.resolve("doubler.v1") is Doubler


def test_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="doubler"):
        load_registry().resolve("doubler")


def test_two_types_with_one_tag_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tag doubler\.v1 is borne by"):
        Registry([Doubler, OtherDoubler])


def test_same_type_twice_is_one_type() -> None:
    assert Registry([Linear, Linear]).tags() == (tag_of(Linear),)


def test_bare_name_decodes_to_the_versioned_type() -> None:
    vnode = load_registry().decode({"type": "linear", "n_in": 2, "n_out": 3})
    assert vnode == Linear(n_in=2, n_out=3)
    assert vnode_form(vnode)["type"] == "linear.v1"


def test_bad_field_is_a_validation_error_that_says_why() -> None:
    with pytest.raises(msgspec.ValidationError, match="n_in > 0, got -2"):
        load_registry().decode({"type": "linear", "n_in": -2, "n_out": 3})


def test_types_load_no_array_library_and_nothing_heavy() -> None:
    script = (
        "import json, sys\n"
        "from dcnr_app.nodes.registry import load_registry\n"
        "count = len(load_registry().tags())\n"
        "print(json.dumps([count, sorted({name.partition('.')[0] for name in sys.modules})]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=50, capture_output=True, text=True
    )
    count, loaded = json.loads(run.stdout)
    assert count == len(load_registry().tags())
    heavy = {"mlx", "cupy", "numba", "textual", "litestar", "boto3", "grpc", "zeroconf", "numpy"}
    assert heavy & set(loaded) == set()
