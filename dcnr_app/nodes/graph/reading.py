"""Typed reading of YAML values: every refusal names its place. Knows expressions, not networks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as AnyMapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from dcnr_app.nodes.graph.expressions import ExpressionError, Number, substitute
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.values import (
    Entry,
    Mapping,
    Mark,
    Scalar,
    Sequence,
    Value,
    describe,
    refuse,
    shorten,
)

Variables = AnyMapping[str, Number]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def resolve_scalar(value: Scalar, variables: Variables) -> Scalar:
    """`value` with its expressions evaluated. Raises InvalidError."""
    if not isinstance(value.value, str):
        return value
    try:
        return Scalar(value.mark, substitute(value.value, variables))
    except ExpressionError as error:
        refuse(value.mark, str(error), fix=error.fix)


def plain(value: Value, variables: Variables) -> Any:
    """`value` as Python data with its expressions evaluated."""
    match value:
        case Scalar():
            return resolve_scalar(value, variables).value
        case Sequence():
            return [plain(item, variables) for item in value.items]
        case Mapping():
            return {key: plain(entry.value, variables) for key, entry in value.entries.items()}


def read(value: Value, kind: Any, variables: Variables, what: str) -> Any:
    """`value` converted to the type `kind`, strictly. `what` names it in messages. Raises InvalidError."""
    data = plain(value, variables)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        shown = resolve_scalar(value, variables) if isinstance(value, Scalar) else value
        problem = str(error).replace("`", "")
        problem = f"{what} is {describe(shown)}: {problem[0].lower()}{problem[1:]}"
        refuse(value.mark, problem, fix=_fix_for(shown, kind))


def _fix_for(shown: Value, kind: Any) -> str:
    text = shown.value if isinstance(shown, Scalar) else None
    if not isinstance(text, str):
        return ""
    if get_origin(kind) is Literal:
        return did_you_mean(text, get_args(kind))
    return "write the number without quotes" if text.strip(".+-0123456789") == "" else ""


def read_text(value: Value, variables: Variables, what: str) -> Scalar:
    """A text scalar with its expressions evaluated; `.value` is a str. Raises InvalidError."""
    found = resolve_scalar(value, variables) if isinstance(value, Scalar) else value
    if not isinstance(found, Scalar) or not isinstance(found.value, str):
        refuse(value.mark, f"{what} must be text, got {describe(found)}")
    return found


def read_name(value: Value, variables: Variables, what: str) -> str:
    """A name: letters, digits, `_` and `-`, not starting with a digit. Raises InvalidError."""
    name = str(read_text(value, variables, what).value)
    if _NAME.fullmatch(name) is None:
        refuse(
            value.mark,
            f"{shorten(name)!r} is not a valid {what}",
            why="a name starts with a letter and holds letters, digits, `_` and `-`, at most 64",
        )
    return name


def read_mapping(value: Value, what: str) -> Mapping:
    """A mapping. Raises InvalidError."""
    if not isinstance(value, Mapping):
        refuse(value.mark, f"{what} must be a mapping, got {describe(value)}")
    return value


def read_list(value: Value, what: str) -> Sequence:
    """A list. Raises InvalidError."""
    if not isinstance(value, Sequence):
        refuse(value.mark, f"{what} must be a list, got {describe(value)}", fix="write it as [a, b]")
    return value


def check_keys(mapping: Mapping, known: Iterable[str], owner: str) -> None:
    """Refuse the first key that `owner` does not know, with a suggestion. Raises InvalidError."""
    choices = tuple(known)
    for key, entry in mapping.entries.items():
        if key not in choices:
            refuse(entry.key_mark, f"{owner} has no field {shorten(key)!r}", fix=did_you_mean(key, choices))


def required(mapping: Mapping, key: str, owner: str, mark: Mark | None = None) -> Entry:
    """The entry under `key`. Raises InvalidError at `mark` (default: the mapping) if it is missing."""
    if key not in mapping.entries:
        refuse(mark or mapping.mark, f"{owner} lacks the required field {key!r}", fix=f"add `{key}: ...`")
    return mapping.entries[key]
