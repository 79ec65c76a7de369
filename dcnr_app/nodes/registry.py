"""The set of VNode types, found by looking into this folder: a new type is a new file and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import dcnr_app.nodes as package
from dcnr_app.nodes.contract import VNode, tag_of


class Registry:
    """VNode types by tag. `linear` means the newest `linear.v<n>`."""

    def __init__(self, types: Iterable[type[VNode]]) -> None:
        """Raises ValueError when two types bear one tag."""
        self._by_tag: dict[str, type[VNode]] = {}
        for vnode_type in types:
            tag = tag_of(vnode_type)
            other = self._by_tag.setdefault(tag, vnode_type)
            if other is not vnode_type:
                raise ValueError(f"tag {tag} is borne by {other.__module__} and {vnode_type.__module__}")

    def tags(self) -> tuple[str, ...]:
        """All tags, sorted."""
        return tuple(sorted(self._by_tag))

    def names(self) -> tuple[str, ...]:
        """Type names without versions, sorted."""
        return tuple(sorted({tag.rsplit(".v", 1)[0] for tag in self._by_tag}))

    def types(self) -> Mapping[str, type[VNode]]:
        """Types by tag."""
        return dict(self._by_tag)

    def resolve(self, name: str) -> type[VNode]:
        """The type for `linear.v1` or, newest, `linear`. Raises KeyError(name)."""
        if name in self._by_tag:
            return self._by_tag[name]
        versions = [tag for tag in self._by_tag if tag.rsplit(".v", 1)[0] == name]
        if not versions:
            raise KeyError(name)
        return self._by_tag[max(versions, key=lambda tag: int(tag.rsplit(".v", 1)[1]))]

    def decode(self, form: Mapping[str, Any]) -> VNode:
        """A VNode from its mapping form (`type` plus fields).

        Raises KeyError for an unknown type, msgspec.ValidationError for a bad field.
        """
        vnode_type = self.resolve(str(form["type"]))
        return msgspec.convert({**form, "type": tag_of(vnode_type)}, vnode_type)


def load_registry() -> Registry:
    """All VNode types that the modules of this folder define."""
    found: list[type[VNode]] = []
    for module_info in pkgutil.iter_modules(package.__path__):
        if module_info.ispkg:
            continue
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        found.extend(
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, VNode)
            and value is not VNode
            and value.__module__ == module.__name__
            and not value.__name__.startswith("_")
        )
    return Registry(found)


def vnode_form(vnode: VNode) -> dict[str, Any]:
    """The mapping form of a VNode with every field, its tag under `type`."""
    form: dict[str, Any] = msgspec.to_builtins(vnode)
    for field in msgspec.structs.fields(vnode):
        form.setdefault(field.name, msgspec.to_builtins(getattr(vnode, field.name)))
    return form
