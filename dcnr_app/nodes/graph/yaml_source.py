"""YAML text -> a tree of values that keep their line and column. Knows YAML, not networks.

Built from PyYAML's event stream, which is iterative: no nesting can exhaust the stack, and depth, aliases and
the number of values are checked before anything is expanded. Scalars follow YAML 1.2; a plain scalar that
YAML 1.1 reads otherwise (`no`, `12:30`, `010`) is refused, since people read it in two ways.
"""

from __future__ import annotations

import math
import re
from typing import NoReturn

import yaml

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

MAX_FILE_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 64
MAX_VALUES = 50_000

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_MAX_NUMBER_LENGTH = 40
_MERGE = "<<"


def parse_yaml(text: str, file: str) -> Mapping:
    """The one mapping in `text`. Raises InvalidError with the place for anything else."""
    start = Mark(file, 1, 1)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        refuse(
            start,
            f"the file is over {MAX_FILE_BYTES // 1024} KiB",
            fix="use `repeat:` for nodes that come many times",
        )
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(error, text, file)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(file, before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        code = error.character if isinstance(error.character, int) else ord(error.character)
        refuse(
            mark,
            f"the file holds the character U+{code:04X}, which YAML does not allow",
            fix="save the file as plain UTF-8 text",
        )
    if builder.root is None or (isinstance(builder.root, Scalar) and builder.root.value is None):
        refuse(start, "the file is empty", fix="start from one of the networks in assets/networks")
    if not isinstance(builder.root, Mapping):
        refuse(
            builder.root.mark,
            f"a network file is a mapping, this one is {describe(builder.root)}",
            fix="start with `network: <name>`",
        )
    return builder.root


def _refuse_syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> NoReturn:
    place = error.problem_mark or error.context_mark
    line, column = (place.line, place.column) if place is not None else (0, 0)
    lines = text.splitlines()
    source = lines[line] if line < len(lines) else ""
    fix = "check the brackets, quotes and indentation at this place"
    if source[column : column + 1] == "\t":
        fix = "indent with spaces: YAML does not allow tabs"
    elif "${" in source:
        fix = 'inside [...] and {...}, write "${...}" in quotes'
    elif "%" in source or "`" in source or "@" in source:
        fix = "text that starts with % ` or @ needs quotes"
    problem = error.problem or "cannot be read"
    context = f" ({error.context})" if error.context else ""
    if context and error.context_mark is not None and error.context_mark.line != line:
        context = f" ({error.context} from line {error.context_mark.line + 1} on)"
    refuse(Mark(file, line + 1, column + 1), f"this is not valid YAML: {problem}{context}", fix=fix)


class _Open:
    """A list or mapping whose end has not come yet."""

    def __init__(self, mark: Mark, anchor: str | None, *, is_mapping: bool) -> None:
        self.mark = mark
        self.anchor = anchor
        self.is_mapping = is_mapping
        self.size = 1
        self.items: list[Value] = []
        self.entries: dict[str, Entry] = {}
        self.merged: dict[str, Entry] = {}
        self.key: Scalar | None = None

    def add(self, value: Value) -> None:
        """Take the next item, key or value."""
        self.size += value.size
        if not self.is_mapping:
            self.items.append(value)
        elif self.key is None:
            self.key = self._check_key(value)
        else:
            key, self.key = self.key, None
            if key.value == _MERGE:
                self._merge(value)
            else:
                self.entries[str(key.value)] = Entry(key.mark, value)

    def close(self) -> Value:
        """The finished value. Own keys win over merged ones."""
        if self.is_mapping:
            return Mapping(self.mark, {**self.merged, **self.entries}, self.size)
        return Sequence(self.mark, tuple(self.items), self.size)

    def _check_key(self, value: Value) -> Scalar:
        if not isinstance(value, Scalar) or not isinstance(value.value, str):
            refuse(value.mark, f"a key must be text, got {describe(value)}", fix="put the key in quotes")
        if value.value in self.entries:
            refuse(
                value.mark,
                f"the key {shorten(value.value)!r} stands twice",
                why=f"it was given before at {self.entries[value.value].key_mark}",
                fix="remove one of them",
            )
        return value

    def _merge(self, value: Value) -> None:
        sources = value.items if isinstance(value, Sequence) else (value,)
        for source in sources:
            if not isinstance(source, Mapping):
                refuse(value.mark, f"`<<` takes a mapping or a list of mappings, got {describe(source)}")
            # YAML's merge type: of several sources the earlier one wins.
            self.merged = {**source.entries, **self.merged}


class _Builder:
    """Turns parser events into values, with caps. One document only."""

    def __init__(self, file: str) -> None:
        self.root: Value | None = None
        self._file = file
        self._open: list[_Open] = []
        self._anchors: dict[str, Value] = {}
        self._n_aliases = 0
        self._n_values = 0
        self._n_documents = 0
        self._resolver = yaml.resolver.Resolver()

    def take(self, event: yaml.Event) -> None:
        """Handle the next event."""
        place = event.start_mark
        mark = Mark(self._file, place.line + 1, place.column + 1) if place else Mark(self._file, 1, 1)
        match event:
            case yaml.DocumentStartEvent():
                self._n_documents += 1
                if self._n_documents > 1:
                    refuse(mark, "the file holds more than one document", fix="remove the second `---`")
            case yaml.AliasEvent():
                self._add(self._alias(event.anchor or "", mark), None)
            case yaml.ScalarEvent():
                self._refuse_tag(event.tag, mark)
                plain = event.implicit[0]
                self._count(mark, 1, "")
                value = self._scalar(event.value, mark) if plain else Scalar(mark, event.value)
                self._add(value, event.anchor)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._refuse_tag(event.tag, mark)
                self._count(mark, 1, "")
                if len(self._open) >= MAX_DEPTH:
                    refuse(mark, f"values are nested more than {MAX_DEPTH} deep")
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                self._open.append(_Open(mark, event.anchor, is_mapping=is_mapping))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self._open.pop()
                self._add(done.close(), done.anchor)

    def _add(self, value: Value, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = value
        if self._open:
            self._open[-1].add(value)
        else:
            self.root = value

    def _alias(self, anchor: str, mark: Mark) -> Value:
        if any(opened.anchor == anchor for opened in self._open):
            refuse(mark, f"the alias *{shorten(anchor)} contains itself")
        if anchor not in self._anchors:
            refuse(
                mark, f"the alias *{shorten(anchor)} has no anchor before it", fix=f"mark one with &{anchor}"
            )
        self._n_aliases += 1
        if self._n_aliases > MAX_ALIASES:
            refuse(mark, f"the alias *{shorten(anchor)} is use {self._n_aliases} (at most {MAX_ALIASES})")
        value = self._anchors[anchor]
        self._count(mark, value.size, f" with the alias *{shorten(anchor)} ({value.size} values) expanded")
        return value

    def _count(self, mark: Mark, n: int, because: str) -> None:
        self._n_values += n
        if self._n_values > MAX_VALUES:
            refuse(
                mark, f"the file holds more than {MAX_VALUES} values{because}", fix="use `repeat:` instead"
            )

    def _refuse_tag(self, tag: str | None, mark: Mark) -> None:
        if tag is not None:
            refuse(mark, f"tags are not allowed: {shorten(tag)!r}", fix="remove the tag that starts with `!`")

    def _scalar(self, text: str, mark: Mark) -> Scalar:
        if text in _WORDS:
            return Scalar(mark, _WORDS[text])
        if _NOT_FINITE.fullmatch(text):
            refuse(mark, f"{text} is not a finite number")
        if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
            return Scalar(mark, _number(text, mark))
        tag = str(self._resolver.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]  # its stub has no types
        kind = tag.rsplit(":", 1)[-1]
        if kind in ("bool", "int", "float", "timestamp"):
            _refuse_ambiguous(text, kind, mark)
        return Scalar(mark, text)


def _number(text: str, mark: Mark) -> int | float:
    if len(text) > _MAX_NUMBER_LENGTH:
        refuse(mark, f"the number {shorten(text)} has over {_MAX_NUMBER_LENGTH} characters")
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        refuse(mark, f"{text} is too large for a number")
    return number


def _refuse_ambiguous(text: str, kind: str, mark: Mark) -> NoReturn:
    short = shorten(text)
    if kind == "bool":
        truth = "true" if text.lower() in ("yes", "on") else "false"
        refuse(
            mark,
            f"{short} can be read as the truth value {truth} or as text",
            why="YAML 1.1 and 1.2 differ here",
            fix=f"write {truth}, or put '{short}' in quotes",
        )
    meaning = {"int": "a number in another notation", "float": "a number in another notation"}
    if ":" in text and kind != "timestamp":
        meaning = dict.fromkeys(("int", "float"), "a number in base 60")
    refuse(
        mark,
        f"{short} can be read as {meaning.get(kind, 'a date')} or as text",
        why="YAML 1.1 and 1.2 differ here",
        fix=f"write a plain decimal number, or put '{short}' in quotes",
    )
