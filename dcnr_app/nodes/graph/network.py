"""The Network: a graph of VNodes after loading and expansion. Pure; knows no YAML and no arrays.

A reference names one tensor: `<name>:<port>`, where name is a node's or a network input's. Node names of
repeated blocks are paths: `block/0/attention`. A parameter's canonical name is `<node>.<parameter>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dcnr_app.engine.backend import DType
from dcnr_app.errors import InvalidError
from dcnr_app.ids import NetworkId
from dcnr_app.nodes.contract import VNode
from dcnr_app.nodes.registry import Registry, vnode_form

MAX_STORED_NODES = 100_000
MAX_PORTS = 100_000
MAX_ENDS = 1024
"""Most nodes of a stored form; output ports of all nodes together; inputs, or outputs, of a network.

Shapes are inferred for every port, so that a few bytes must not be able to ask for a billion of them."""

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
    """(name, port) of a reference. Raises InvalidError for what is none."""
    name, _, port = reference.rpartition(":")
    try:
        return name, int(port)
    except ValueError as error:
        raise InvalidError(f"{reference!r} is no reference to a tensor") from error


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


class _NodeForm(msgspec.Struct, frozen=True):
    name: str
    vnode: dict[str, Any]
    inputs: tuple[str, ...]
    share: dict[str, str]
    pnode: int | None = None


class _NetworkForm(msgspec.Struct, frozen=True):
    name: str
    inputs: Annotated[tuple[NetworkInput, ...], Meta(max_length=MAX_ENDS)]
    nodes: Annotated[tuple[_NodeForm, ...], Meta(max_length=MAX_STORED_NODES)]
    outputs: Annotated[dict[str, str], Meta(max_length=MAX_ENDS)]


def decode_network(raw: bytes, registry: Registry) -> Network:
    """The Network in `raw`. Raises InvalidError for what is none or too large, or what this build does not
    know."""
    try:
        form = msgspec.json.decode(raw, type=_NetworkForm)
        nodes = tuple(
            NetworkNode(
                name=entry.name,
                vnode=registry.decode(entry.vnode),
                inputs=entry.inputs,
                share=entry.share,
                pnode=entry.pnode,
            )
            for entry in form.nodes
        )
        n_ports = sum(int(getattr(node.vnode, "n_outputs", 1)) for node in nodes)
        if n_ports > MAX_PORTS:
            raise ValueError(f"its nodes have {n_ports} output ports, at most {MAX_PORTS} are allowed")
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidError(
            f"a network's stored form cannot be read: {type(error).__name__}: {error}",
            fix="it may be from another version: pip install --upgrade dcnr-app",
        ) from error
    return Network(name=form.name, inputs=form.inputs, nodes=nodes, outputs=form.outputs)


def network_id(network: Network) -> NetworkId:
    """Content address: sha256 of the canonical form without the name and the placement hints, first 16 hex
    digits."""
    form = network_form(network, with_hints=False)
    del form["name"]
    return NetworkId(hashlib.sha256(msgspec.json.encode(form, order="sorted")).hexdigest()[:16])


def context_of(network: Network) -> int:
    """Tokens per sequence: the second axis of the input `tokens`. Raises InvalidError if there is none."""
    for entry in network.inputs:
        if entry.name == "tokens" and len(entry.shape) > 1:
            length = entry.shape[1]
            if isinstance(length, int) and length > 0:
                return length
    raise InvalidError(
        f"the network {network.name!r} has no input `tokens` of rows and tokens",
        why="the second axis of its shape is the number of tokens per sequence",
        fix="declare `tokens: {shape: [batch, LENGTH], dtype: int32}` among the inputs",
    )
