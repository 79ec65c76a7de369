"""Names in network files -> references of tensors. Knows scopes, not VNodes.

node · node:1            a node's output port, looked up in the innermost scope first, then outwards
x                        inside a repeat: its carried value
block · block.x          after a repeat: what its last iteration yields
block/2/norm · heads/*/out · heads/*    inside an iteration, or all of them in order
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NoReturn

from dcnr_app.nodes.graph.network import ref
from dcnr_app.nodes.graph.reading import read_text
from dcnr_app.nodes.graph.scopes import Leaf, Repeat, Scope
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.values import Mark, Value, refuse, shorten

MAX_REFERENCES = 100_000
MAX_TRAIL = 40

_FORM = re.compile(r"(?P<path>[^:.]+)(?:\.(?P<own>[^:.]+))?(?::(?P<port>[0-9]{1,5}))?")


class _Wanted:
    """A reference being resolved: its text and place, and the repeats that it has passed through."""

    def __init__(self, text: str, mark: Mark, trail: tuple[str, ...]) -> None:
        form = _FORM.fullmatch(text)
        if form is None:
            refuse(mark, f"{shorten(text)!r} is not a reference", fix="write node, node:1 or block/0/node")
        self.text = shorten(text)
        self.mark = mark
        self.trail = trail
        self.parts = form["path"].split("/")
        self.own: str | None = form["own"]
        self.port: int | None = int(form["port"]) if form["port"] is not None else None

    def fail(self, why: str, fix: str = "") -> NoReturn:
        """Raise InvalidError for this reference."""
        refuse(self.mark, f"{self.text!r} {why}", fix=fix)


class References:
    """Resolves references; counts them, so that wildcards cannot multiply without end."""

    def __init__(self, inputs: Collection[str]) -> None:
        self._inputs = inputs
        self._n_found = 0

    def resolve(self, value: Value, scope: Scope, what: str) -> list[str]:
        """References of all tensors that `value` names, in order. Raises InvalidError."""
        text = read_text(value, scope.variables, what)
        return list(self._find(_Wanted(str(text.value), value.mark, ()), scope))

    def resolve_one(self, value: Value, scope: Scope, what: str, trail: tuple[str, ...] = ()) -> str:
        """The reference of the one tensor that `value` names. Raises InvalidError."""
        text = read_text(value, scope.variables, what)
        found = list(self._find(_Wanted(str(text.value), value.mark, trail), scope))
        if len(found) != 1:
            refuse(value.mark, f"{what} names one tensor, {shorten(str(text.value))!r} gives {len(found)}")
        return found[0]

    def _find(self, wanted: _Wanted, scope: Scope) -> Iterator[str]:
        head = wanted.parts[0]
        visible: list[str] = []
        place: Scope | None = scope
        while place is not None:
            if place.repeat is not None and head in place.repeat.carry:
                yield self._carried_value(wanted, place.repeat, place.index, head)
                return
            if head in place.members:
                yield from self._descend(wanted, place.members[head], wanted.parts[1:])
                return
            visible += [*(place.repeat.carry if place.repeat else ()), *place.members]
            place = place.outer
        if head not in self._inputs:
            wanted.fail("is no node or input here", did_you_mean(head, [*visible, *self._inputs]))
        if len(wanted.parts) > 1 or wanted.own is not None or wanted.port:
            wanted.fail(f"reaches into the network input {head!r}, which is one tensor", f"write {head}")
        yield self._count(ref(head), wanted)

    def _carried_value(self, wanted: _Wanted, repeat: Repeat, iteration: int, name: str) -> str:
        if len(wanted.parts) > 1 or wanted.own is not None or wanted.port:
            wanted.fail(f"reaches into the carried value {name!r}, which is one tensor", f"write {name}")
        # From iteration 0 upwards, so that a value handed through many iterations needs no recursion.
        for index in range(iteration + 1):
            if (index, name) in repeat.carried:
                continue
            source = repeat.carry[name] if index == 0 else repeat.yields[name]
            place = repeat.outer if index == 0 else repeat.iterations[index - 1]
            trail = self._extend(wanted, f"{repeat.path}/{index}: {name}")
            repeat.carried[index, name] = self.resolve_one(source, place, f"the carry {name!r}", trail)
        return self._count(repeat.carried[iteration, name], wanted)

    def _descend(self, wanted: _Wanted, member: Leaf | Repeat, rest: list[str]) -> Iterator[str]:
        if isinstance(member, Leaf):
            if rest or wanted.own is not None:
                wanted.fail(f"reaches into {member.path!r}, which is one VNode", "write node or node:port")
            yield self._count(ref(member.path, wanted.port or 0), wanted)
            return
        if not rest:
            if not member.carry:
                wanted.fail(
                    f"names the repeat {member.path!r}, which carries nothing from one iteration to the next",
                    f"{wanted.text}/* gives the values of all iterations",
                )
            yield self._yielded(wanted, member, member.iterations[-1])
            return
        for iteration in self._iterations(wanted, member, rest[0]):
            if len(rest) == 1:
                yield from self._iteration_value(wanted, member, iteration)
                continue
            inner = iteration.members.get(rest[1])
            if inner is None:
                wanted.fail(
                    f"names {rest[1]!r}, which is not in {member.path!r}",
                    did_you_mean(rest[1], iteration.members),
                )
            yield from self._descend(wanted, inner, rest[2:])

    def _iterations(self, wanted: _Wanted, repeat: Repeat, part: str) -> list[Scope]:
        if part == "*":
            return repeat.iterations
        if not part.isdecimal() or len(part) > 5:
            wanted.fail(
                f"needs an iteration after {repeat.path!r}, got {shorten(part)!r}",
                f"write {repeat.path}/*/{part} or {repeat.path}/0/{part}",
            )
        if int(part) >= len(repeat.iterations):
            wanted.fail(
                f"asks for iteration {int(part)} of {len(repeat.iterations)}", "iterations count from 0"
            )
        return [repeat.iterations[int(part)]]

    def _iteration_value(self, wanted: _Wanted, repeat: Repeat, iteration: Scope) -> Iterator[str]:
        if repeat.yields:
            yield self._yielded(wanted, repeat, iteration)
        elif len(iteration.members) == 1:
            yield from self._descend(wanted, next(iter(iteration.members.values())), [])
        else:
            wanted.fail(
                f"does not say which of {len(iteration.members)} nodes of the iteration is meant",
                f"write {wanted.text}/<node>, one of: {', '.join(list(iteration.members)[:12])}",
            )

    def _yielded(self, wanted: _Wanted, repeat: Repeat, iteration: Scope) -> str:
        if wanted.port is not None:
            wanted.fail("names a yielded value, which has no ports")
        name = wanted.own
        if name is None:
            if len(repeat.yields) != 1:
                wanted.fail(
                    "has several yielded values", f"write {wanted.text}.<one of: {', '.join(repeat.yields)}>"
                )
            name = next(iter(repeat.yields))
        if name not in repeat.yields:
            wanted.fail(f"asks for {name!r}, which is not yielded", did_you_mean(name, repeat.yields))
        trail = self._extend(wanted, f"{repeat.path}/{iteration.index} yields {name}")
        return self.resolve_one(repeat.yields[name], iteration, f"the yield {name!r}", trail)

    def _extend(self, wanted: _Wanted, step: str) -> tuple[str, ...]:
        if step in wanted.trail:
            loop = wanted.trail[wanted.trail.index(step) :]
            wanted.fail(f"leads back to itself: {' -> '.join([*loop, step])}")
        if len(wanted.trail) >= MAX_TRAIL:
            wanted.fail(f"is handed on by more than {MAX_TRAIL} repeats")
        return (*wanted.trail, step)

    def _count(self, reference: str, wanted: _Wanted) -> str:
        self._n_found += 1
        if self._n_found > MAX_REFERENCES:
            wanted.fail(f"brings the network to over {MAX_REFERENCES} connections")
        return reference
