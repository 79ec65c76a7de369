"""Values of a network file with their places: the seam between YAML and everything that reads it."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from dcnr_app.errors import InvalidError


class Mark(NamedTuple):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        """file:line:column."""
        return f"{self.file}:{self.line}:{self.column}"


class Scalar(NamedTuple):
    """Text, a number, a truth value or nothing."""

    mark: Mark
    value: str | int | float | bool | None

    @property
    def size(self) -> int:
        """One value."""
        return 1


class Sequence(NamedTuple):
    """A list; `size` counts the values in it with aliases expanded."""

    mark: Mark
    items: tuple[Value, ...]
    size: int


class Entry(NamedTuple):
    """A value under its key, with the key's place."""

    key_mark: Mark
    value: Value


class Mapping(NamedTuple):
    """A mapping with text keys in file order; `size` counts the values in it with aliases expanded."""

    mark: Mark
    entries: dict[str, Entry]
    size: int


Value = Scalar | Sequence | Mapping


def refuse(mark: Mark, what: str, *, why: str = "", fix: str = "") -> NoReturn:
    """Raise InvalidError for the place `mark`."""
    raise InvalidError(what, where=str(mark), why=why, fix=fix)


def describe(value: Value) -> str:
    """What a value is, for messages: `a list`, `the text 'abc'`, `3`."""
    match value:
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
        case Scalar(value=None):
            return "nothing"
        case Scalar(value=str(text)):
            return f"the text {shorten(text)!r}"
        case Scalar(value=bool(truth)):
            return "true" if truth else "false"
        case Scalar(value=number):
            return str(number)


def shorten(text: str) -> str:
    """`text`, cut to what fits into a message."""
    return text if len(text) <= 60 else text[:57] + "..."
