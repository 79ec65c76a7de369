"""One node form -> one VNode: type, fields, hyper-parameters. Knows VNode types only through the registry."""

from __future__ import annotations

import re

import msgspec

from dcnr_app.nodes.contract import VNode, tag_of
from dcnr_app.nodes.graph.network import MAX_PORTS
from dcnr_app.nodes.graph.reading import Variables, read, read_text, required
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.values import Mapping, Mark, Scalar, refuse, shorten
from dcnr_app.nodes.registry import Registry

PLACE_FIELDS = ("name", "type", "inputs", "share", "pnode")
"""Fields of a node form that say where the VNode stands, not what it is."""


class VNodeBuilder:
    """Builds VNodes; remembers the fields of each type, since msgspec computes them anew at every call."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._n_ports = 0
        self._fields: dict[type[VNode], dict[str, msgspec.structs.FieldInfo]] = {}

    def build(self, form: Mapping, mark: Mark, variables: Variables) -> VNode:
        """The VNode of `form`. Raises InvalidError that names the field and its place."""
        type_entry = required(form, "type", "the node", mark)
        vnode_type = self._type(read_text(type_entry.value, variables, "type"))
        known = self._known(vnode_type)
        title = tag_of(vnode_type)
        values: dict[str, object] = {}
        for key, entry in form.entries.items():
            if key in PLACE_FIELDS:
                continue
            if key not in known:
                fix = did_you_mean(key, (*known, *PLACE_FIELDS))
                refuse(entry.key_mark, f"{title} has no field {shorten(key)!r}", fix=fix)
            what = f"{key} of {title}"
            values[key] = read(entry.value, known[key].type, variables, what)
            self._check_size(key, values[key], entry.value.mark, what)
        for name, field in known.items():
            if field.required and name not in values:
                refuse(mark, f"{title} lacks the required field {name!r}", fix=f"add `{name}: ...`")
        try:
            return self._registry.decode({**values, "type": title})
        except (msgspec.ValidationError, ValueError) as error:
            refuse(_blamed(str(error), form, mark), f"{title} refuses its fields: {error}")

    def _check_size(self, key: str, value: object, mark: Mark, what: str) -> None:
        if not key.startswith("n_") or not isinstance(value, int):
            return
        if value < 1:
            refuse(mark, f"{what} is {value}: a size is at least 1")
        if key == "n_outputs":
            # Every port becomes a tensor spec, so their number is capped before shapes are inferred.
            self._n_ports += value
            if self._n_ports > MAX_PORTS:
                refuse(mark, f"{what} brings the network to over {MAX_PORTS} output ports")

    def _type(self, name: Scalar) -> type[VNode]:
        text = str(name.value)
        try:
            return self._registry.resolve(text)
        except KeyError:
            base, has_version, _ = text.rpartition(".v")
            tags = [tag for tag in self._registry.tags() if tag.rpartition(".v")[0] == base]
            choices = tags if has_version and tags else self._registry.names()
            refuse(name.mark, f"unknown VNode type {shorten(text)!r}", fix=did_you_mean(text, choices))

    def _known(self, vnode_type: type[VNode]) -> dict[str, msgspec.structs.FieldInfo]:
        if vnode_type not in self._fields:
            self._fields[vnode_type] = {field.name: field for field in msgspec.structs.fields(vnode_type)}
        return self._fields[vnode_type]


def _blamed(message: str, form: Mapping, mark: Mark) -> Mark:
    """The place of the first field that the message names, else the node's."""
    for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", message):
        if word in form.entries and word not in PLACE_FIELDS:
            return form.entries[word].value.mark
    return mark
