"""The Network: a graph of VNodes after loading and expansion. Pure; knows no YAML and no arrays.

A reference names one tensor: `<name>:<port>`, where name is a node's or a network input's. Node names of
repeated blocks are paths: `block/0/attention`. A parameter's canonical name is `<node>.<parameter>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dcnr_app.engine.backend import DType
from dcnr_app.errors import InvalidError
from dcnr_app.ids import NetworkId
from dcnr_app.nodes.contract import VNode
from dcnr_app.nodes.registry import Registry, vnode_form

Dimension = int | Literal["batch"]


class NetworkInput(msgspec.Struct, frozen=True):
    """A tensor from outside. `batch` in its shape stands for the rows of one microbatch."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: DType


class NetworkNode(msgspec.Struct, frozen=True, kw_only=True):
    """One VNode in its place. `inputs` are references; `share` maps own parameters to canonical names of
    others.

    `pnode` is a placement hint: the ordinal of a PNode, taken modulo their number. It changes no result.
    """

    name: str
    vnode: VNode
    inputs: tuple[str, ...]
    share: Mapping[str, str] = {}
    pnode: int | None = None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes in topological order. `outputs` has at least `loss`; `logits` where text can be generated."""

    name: str
    inputs: tuple[NetworkInput, ...]
    nodes: tuple[NetworkNode, ...]
    outputs: Mapping[str, str]


def ref(name: str, port: int = 0) -> str:
    """The reference to a node's output port or to a network input."""
    return f"{name}:{port}"


def split_ref(reference: str) -> tuple[str, int]:
    """(name, port) of a reference."""
    name, _, port = reference.rpartition(":")
    return name, int(port)


def network_form(network: Network, *, with_hints: bool = True) -> dict[str, Any]:
    """Plain mapping of a Network; every VNode field is written out, tags carry the version."""
    nodes = []
    for node in network.nodes:
        entry: dict[str, Any] = {
            "name": node.name,
            "vnode": vnode_form(node.vnode),
            "inputs": list(node.inputs),
            "share": dict(sorted(node.share.items())),
        }
        if with_hints:
            entry["pnode"] = node.pnode
        nodes.append(entry)
    return {
        "name": network.name,
        "inputs": [msgspec.to_builtins(entry) for entry in network.inputs],
        "nodes": nodes,
        "outputs": dict(sorted(network.outputs.items())),
    }


def encode_network(network: Network) -> bytes:
    """Canonical JSON: the wire and stored form."""
    return msgspec.json.encode(network_form(network), order="sorted")


def decode_network(raw: bytes, registry: Registry) -> Network:
    """The Network in `raw`. Raises InvalidError for what is none, or what this build does not know."""
    try:
        return _network_of(msgspec.json.decode(raw, type=dict[str, Any]), registry)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidError(
            f"a network's stored form cannot be read: {type(error).__name__}: {error}",
            fix="it may be from another version: pip install --upgrade dcnr-app",
        ) from error


def _network_of(form: Mapping[str, Any], registry: Registry) -> Network:
    nodes = tuple(
        NetworkNode(
            name=entry["name"],
            vnode=registry.decode(entry["vnode"]),
            inputs=tuple(entry["inputs"]),
            share=entry["share"],
            pnode=entry.get("pnode"),
        )
        for entry in form["nodes"]
    )
    inputs = msgspec.convert(form["inputs"], tuple[NetworkInput, ...])
    return Network(name=form["name"], inputs=inputs, nodes=nodes, outputs=form["outputs"])


def network_id(network: Network) -> NetworkId:
    """Content address: sha256 of the canonical form without the name and the placement hints, first 16 hex
    digits."""
    form = network_form(network, with_hints=False)
    del form["name"]
    return NetworkId(hashlib.sha256(msgspec.json.encode(form, order="sorted")).hexdigest()[:16])


def context_of(network: Network) -> int:
    """Tokens per sequence: the second axis of the input `tokens`."""
    shape = next(entry.shape for entry in network.inputs if entry.name == "tokens")
    return int(shape[1])
