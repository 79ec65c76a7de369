"""Node list of a file -> NetworkNodes: repeats unrolled, references and shared parameters resolved.

Names become paths (`block/0/norm_1`). Order is file order; sorting and checks of the whole graph come later.
"""

from __future__ import annotations

import keyword
from typing import NamedTuple

from dcnr_app.nodes.graph.building import VNodeBuilder
from dcnr_app.nodes.graph.network import NetworkNode, split_ref
from dcnr_app.nodes.graph.reading import (
    Variables,
    check_keys,
    read,
    read_list,
    read_mapping,
    read_name,
    read_text,
    required,
)
from dcnr_app.nodes.graph.references import References
from dcnr_app.nodes.graph.scopes import Leaf, Repeat, Scope
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.values import Mapping, Mark, Scalar, Value, refuse, shorten
from dcnr_app.nodes.registry import Registry

MAX_NODES = 20_000
MAX_REPEAT = 1024
MAX_PNODE = 2**31
MAX_SHARE_CHAIN = 32

_REPEAT_FIELDS = ("repeat", "name", "index", "carry", "yield", "nodes")


class NodePlace(NamedTuple):
    """Where a node and each of its inputs stand in the file."""

    mark: Mark
    inputs: tuple[Mark, ...]


class Expanded(NamedTuple):
    """Nodes in file order, their places by name, and the top scope and resolver for the file's outputs."""

    nodes: tuple[NetworkNode, ...]
    places: dict[str, NodePlace]
    scope: Scope
    references: References


def expand_nodes(items: Value, variables: Variables, inputs: dict[str, Mark], registry: Registry) -> Expanded:
    """Unroll and resolve the file's `nodes`. Raises InvalidError with the place."""
    scope = Scope("", variables)
    expander = _Expander(VNodeBuilder(registry), inputs)
    expander.declare(items, scope)
    references = References(inputs)
    leaves = {leaf.path: leaf for leaf in expander.leaves}
    nodes: list[NetworkNode] = []
    places: dict[str, NodePlace] = {}
    shares = _Shares(leaves, references)
    for leaf in expander.leaves:
        found: list[str] = []
        marks: list[Mark] = []
        for item in leaf.inputs.items:
            resolved = references.resolve(item, leaf.scope, f"an input of {leaf.path!r}")
            found += resolved
            marks += [item.mark] * len(resolved)
        places[leaf.path] = NodePlace(leaf.mark, tuple(marks))
        _check_input_count(leaf, len(found))
        nodes.append(
            NetworkNode(
                name=leaf.path,
                vnode=leaf.vnode,
                inputs=tuple(found),
                share={own: shares.canonical(leaf, own) for own, _ in leaf.share},
                pnode=leaf.pnode,
            )
        )
    return Expanded(tuple(nodes), places, scope, references)


def _check_input_count(leaf: Leaf, n_found: int) -> None:
    ports = leaf.vnode.in_ports
    fits = n_found >= len(ports) if leaf.vnode.is_variadic else n_found == len(ports)
    if not fits:
        at_least = "at least " if leaf.vnode.is_variadic else ""
        plural = "" if len(ports) == 1 else "s"
        refuse(
            leaf.inputs.mark,
            f"{leaf.path!r} takes {at_least}{len(ports)} input{plural} ({', '.join(ports)}), got {n_found}",
        )


class _Expander:
    """Declares nodes scope by scope and counts them."""

    def __init__(self, builder: VNodeBuilder, inputs: dict[str, Mark]) -> None:
        self.leaves: list[Leaf] = []
        self._builder = builder
        self._inputs = inputs
        self._marks: dict[str, Mark] = {}

    def declare(self, items: Value, scope: Scope) -> None:
        """Declare every node of a list, repeats unrolled. Raises InvalidError."""
        listed = read_list(items, "nodes")
        if not listed.items:
            refuse(listed.mark, "the list of nodes is empty")
        for item in listed.items:
            form = read_mapping(item, "a node")
            if "repeat" in form.entries:
                self._declare_repeat(form, scope)
            else:
                self._declare_leaf(form, scope)

    def _declare_name(self, form: Mapping, scope: Scope, kind: str) -> tuple[str, Mark]:
        entry = required(form, "name", kind)
        mark = entry.value.mark
        name = read_name(entry.value, scope.variables, "node name")
        earlier = self._marks.get(scope.prefix + name)
        if earlier is None and not scope.prefix:
            earlier = self._inputs.get(name)
        if earlier is None and scope.repeat is not None and name in scope.repeat.carry:
            earlier = scope.repeat.carry[name].mark
        if earlier is not None:
            refuse(mark, f"the name {name!r} is given twice", why=f"it was given before at {earlier}")
        self._marks[scope.prefix + name] = mark
        return name, mark

    def _declare_leaf(self, form: Mapping, scope: Scope) -> None:
        name, mark = self._declare_name(form, scope, "the node")
        if len(self.leaves) >= MAX_NODES:
            refuse(mark, f"the network has over {MAX_NODES} nodes", fix="lower the `repeat:` counts")
        path = scope.prefix + name
        vnode = self._builder.build(form, mark, scope.variables)
        inputs = read_list(required(form, "inputs", f"{path!r}", mark).value, f"inputs of {path!r}")
        leaf = Leaf(path, mark, scope, vnode, inputs, _shares_of(form, scope), _pnode_of(form, scope))
        scope.members[name] = leaf
        self.leaves.append(leaf)

    def _declare_repeat(self, form: Mapping, scope: Scope) -> None:
        check_keys(form, _REPEAT_FIELDS, "a repeat")
        name, mark = self._declare_name(form, scope, "the repeat")
        count_entry = form.entries["repeat"]
        count = read(count_entry.value, int, scope.variables, f"the count of the repeat {name!r}")
        if not 1 <= count <= MAX_REPEAT:
            refuse(
                count_entry.value.mark, f"the repeat {name!r} runs {count} times (allowed: 1 to {MAX_REPEAT})"
            )
        body = required(form, "nodes", f"the repeat {name!r}", mark).value
        carry = _named_references(form, "carry", scope)
        yields = _named_references(form, "yield", scope)
        for carried, source in carry.items():
            if carried not in yields:
                refuse(
                    source.mark,
                    f"the repeat {name!r} carries {carried!r} but does not yield it",
                    fix=f"add `yield: {{{carried}: <node>}}`",
                )
        repeat = Repeat(scope.prefix + name, mark, scope, carry, yields, [], {})
        scope.members[name] = repeat
        index_name = _index_name(form, scope)
        for index in range(count):
            variables = {**scope.variables, index_name: index} if index_name else scope.variables
            iteration = Scope(f"{repeat.path}/{index}/", variables, repeat, index)
            repeat.iterations.append(iteration)
            self.declare(body, iteration)


def _index_name(form: Mapping, scope: Scope) -> str | None:
    if "index" not in form.entries:
        return None
    value = form.entries["index"].value
    name = read_name(value, scope.variables, "index name")
    if not name.isidentifier() or keyword.iskeyword(name):
        refuse(value.mark, f"an index cannot be called {name!r}", fix="choose another name, without `-`")
    if name in scope.variables:
        refuse(value.mark, f"the index {name!r} has the name of a variable", fix="choose another name")
    return name


def _named_references(form: Mapping, key: str, scope: Scope) -> dict[str, Scalar]:
    """Carry or yield: names to reference texts; expressions in them are evaluated where they are used."""
    if key not in form.entries:
        return {}
    named: dict[str, Scalar] = {}
    for name, entry in read_mapping(form.entries[key].value, key).entries.items():
        read_name(Scalar(entry.key_mark, name), scope.variables, f"{key} name")
        if not isinstance(entry.value, Scalar) or not isinstance(entry.value.value, str):
            read_text(entry.value, scope.variables, f"{key} {name!r}")
        else:
            named[name] = entry.value
    return named


def _shares_of(form: Mapping, scope: Scope) -> tuple[tuple[str, Scalar], ...]:
    if "share" not in form.entries:
        return ()
    entries = read_mapping(form.entries["share"].value, "share").entries
    return tuple(
        (own, read_text(entry.value, scope.variables, f"share of {own!r}")) for own, entry in entries.items()
    )


def _pnode_of(form: Mapping, scope: Scope) -> int | None:
    if "pnode" not in form.entries:
        return None
    value = form.entries["pnode"].value
    pnode: int = read(value, int, scope.variables, "pnode")
    if not 0 <= pnode < MAX_PNODE:
        refuse(value.mark, f"pnode is {pnode}: it is an ordinal that counts from 0")
    return pnode


class _Shares:
    """Finds the canonical name of each shared parameter and checks that the shapes agree."""

    def __init__(self, leaves: dict[str, Leaf], references: References) -> None:
        self._leaves = leaves
        self._references = references

    def canonical(self, leaf: Leaf, own: str) -> str:
        """`<node>.<parameter>` that owns the values of `own`. Raises InvalidError."""
        mark = dict(leaf.share)[own].mark
        params = leaf.vnode.params()
        if own not in params:
            refuse(mark, f"{leaf.path!r} has no parameter {shorten(own)!r}", fix=did_you_mean(own, params))
        seen = [f"{leaf.path}.{own}"]
        owner, parameter = self._target(leaf, own)
        while True:
            name = f"{owner.path}.{parameter}"
            if name in seen:
                refuse(mark, f"parameters share in a circle: {' -> '.join([*seen, name])}")
            if parameter not in dict(owner.share):
                break
            if len(seen) >= MAX_SHARE_CHAIN:
                refuse(
                    mark, f"{seen[0]} shares by way of over {MAX_SHARE_CHAIN} others", fix="name the owner"
                )
            seen.append(name)
            owner, parameter = self._target(owner, parameter)
        mine, theirs = params[own], owner.vnode.params()[parameter]
        if mine.shape != theirs.shape:
            refuse(
                mark,
                f"{leaf.path}.{own} {mine.shape} cannot share {name} {theirs.shape}",
                why="shared parameters have one shape",
            )
        return name

    def _target(self, leaf: Leaf, own: str) -> tuple[Leaf, str]:
        text = dict(leaf.share)[own]
        node, _, parameter = str(text.value).rpartition(".")
        if not node or not parameter:
            refuse(
                text.mark, f"{shorten(str(text.value))!r} names no parameter", fix="write <node>.<parameter>"
            )
        what = f"the share of {own!r}"
        reference = self._references.resolve_one(Scalar(text.mark, node), leaf.scope, what)
        path = split_ref(reference)[0]
        target = self._leaves.get(path)
        params = target.vnode.params() if target is not None else {}
        if target is None or parameter not in params:
            refuse(
                text.mark,
                f"{path!r} has no parameter {shorten(parameter)!r}",
                fix=did_you_mean(parameter, params),
            )
        return target, parameter
