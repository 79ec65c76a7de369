"""What expansion works on: scopes, leaves and repeats. Data only."""

from __future__ import annotations

from typing import NamedTuple

from dcnr_app.nodes.contract import VNode
from dcnr_app.nodes.graph.reading import Variables
from dcnr_app.nodes.graph.values import Mark, Scalar, Sequence


class Scope:
    """The names of the file's top level, or of one iteration of one repeat."""

    def __init__(
        self, prefix: str, variables: Variables, repeat: Repeat | None = None, index: int = 0
    ) -> None:
        self.prefix = prefix
        self.variables = variables
        self.repeat = repeat
        self.index = index
        self.members: dict[str, Leaf | Repeat] = {}

    @property
    def outer(self) -> Scope | None:
        """The scope around the repeat, None at the top level."""
        return self.repeat.outer if self.repeat is not None else None


class Leaf(NamedTuple):
    """A VNode in its place, its references not yet resolved."""

    path: str
    mark: Mark
    scope: Scope
    vnode: VNode
    inputs: Sequence
    share: tuple[tuple[str, Scalar], ...]
    pnode: int | None


class Repeat(NamedTuple):
    """A repeated block: one scope per iteration, in order."""

    path: str
    mark: Mark
    outer: Scope
    carry: dict[str, Scalar]
    yields: dict[str, Scalar]
    iterations: list[Scope]
    carried: dict[tuple[int, str], str]
    """References found so far, by iteration and carry name."""
