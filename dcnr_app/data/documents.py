"""Documents: text read from files, folders and globs. Knows no tokens and no datasets.

A .txt, .md or .py file is one document; each line of a .jsonl file is one, under the key `text`.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dcnr_app.errors import UserError

TEXT_SUFFIXES = (".txt", ".md", ".py")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl")
OnError = Literal["stop", "skip"]
Progress = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in all)."""

LIBRARY_MIN_BYTES = 2_000_000
LIBRARY_MAX_BYTES = 12_000_000
_LIBRARY_EXCLUDED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


class Document(NamedTuple):
    """One text; the split and the end-of-text token never cut it."""

    name: str
    text: str


class Skipped(NamedTuple):
    """Something that could not be read, where (`file:line`) and why."""

    where: str
    why: str


class _Line(msgspec.Struct):
    text: str


class Corpus:
    """Documents of `paths` that can be read again and again; nothing is kept in memory between passes.

    `part_characters` cuts longer documents, at line ends if it can, so that one big file can be split into
    training and validation text. `skipped` holds the reports of the latest pass.
    """

    def __init__(
        self, paths: Sequence[str], *, on_error: OnError = "stop", part_characters: int | None = None
    ) -> None:
        self.skipped: list[Skipped] = []
        self._paths = tuple(paths)
        self._on_error: OnError = on_error
        self._part_characters = part_characters

    def __iter__(self) -> Iterator[Document]:
        """A fresh pass. Raises UserError as `read_documents` does."""
        self.skipped = []
        for document in read_documents(self._paths, on_error=self._on_error, skipped=self.skipped):
            if self._part_characters is None:
                yield document
                continue
            for number, part in enumerate(text_parts(document.text, self._part_characters), start=1):
                yield Document(f"{document.name}#{number}", part)


def read_documents(
    paths: Sequence[str], *, on_error: OnError = "stop", skipped: list[Skipped] | None = None
) -> Iterator[Document]:
    """Documents of files, folders (recursive, without dot folders) and globs; each file once, in a fixed
    order.

    With `on_error="skip"`, what is not UTF-8, not JSON or not readable is added to `skipped` and left out.
    Raises UserError with file:line for such a thing otherwise, and for paths that lead to no document.
    """
    reports = [] if skipped is None else skipped
    for path in _files(paths):
        for found in _read_file(path):
            if isinstance(found, Document):
                yield found
            elif on_error == "skip":
                reports.append(found)
            else:
                raise UserError(
                    "cannot read this document",
                    where=found.where,
                    why=found.why,
                    fix="repair it, or skip what cannot be read",
                )


def standard_library_documents(
    *,
    max_bytes: int = LIBRARY_MAX_BYTES,
    skipped: list[Skipped] | None = None,
    root: Path | None = None,
) -> list[Document]:
    """Source files of the running Python's standard library by relative name, the same on every run.

    Leaves out installed packages, tests, empty files and (reported in `skipped`) files that are not UTF-8.
    Above `max_bytes`, files are taken in the order of their names' hashes until no further one fits.
    Raises UserError if fewer than 2 MB are found.
    """
    base = Path(sysconfig.get_path("stdlib")) if root is None else root
    reports = [] if skipped is None else skipped
    documents = []
    for path in sorted(base.rglob("*.py"), key=lambda path: path.relative_to(base).as_posix()):
        relative = path.relative_to(base)
        if _LIBRARY_EXCLUDED.isdisjoint(relative.parts[:-1]):
            for found in _read_file(path):
                if isinstance(found, Skipped):
                    reports.append(found)
                elif found.text:
                    documents.append(Document(relative.as_posix(), found.text))
    n_bytes = sum(utf8_size(document.text) for document in documents)
    if n_bytes < LIBRARY_MIN_BYTES:
        raise UserError(
            f"this Python's standard library has only {n_bytes / 1e6:.1f} MB of source text",
            where=str(base),
            why=f"the demo needs {LIBRARY_MIN_BYTES / 1e6:.0f} MB; some systems ship compiled files only",
            fix="give your own text: --data PATH",
        )
    return _within(documents, max_bytes)


def text_parts(text: str, limit: int) -> Iterator[str]:
    """Parts of at most `limit` characters that joined give `text`, cut after a line's end where there is
    one."""
    start = 0
    while len(text) - start > limit:
        line_end = text.rfind("\n", start, start + limit) + 1
        cut = line_end or start + limit
        yield text[start:cut]
        start = cut
    yield text[start:]


def utf8(text: str, where: str = "") -> bytes:
    """UTF-8 bytes of `text`. Raises UserError for lone surrogates."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"text is not valid Unicode at character {error.start}",
            where=where,
            why="it holds half of a surrogate pair",
            fix="repair the text; UTF-8 cannot express it",
        ) from error


def utf8_size(text: str) -> int:
    """Length of `text` in UTF-8 bytes; half of a surrogate pair counts 3."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _files(paths: Sequence[str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for given in paths:
        found = _expand(given)
        if not found:
            raise UserError(
                "no document found",
                where=given,
                why=f"looked for {', '.join(SUFFIXES)}",
                fix="check the path",
            )
        for path in found:
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                yield path


def _expand(given: str) -> list[Path]:
    try:
        path = Path(given).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # a name too long, `~nobody-here`
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError("this cannot be a path", where=given[:80], why=why, fix="check the path") from error
    if is_folder:
        return _walk(path)
    if path.exists():
        if not path.is_file():
            raise UserError("this is no regular file", where=given, fix="save its text to a file first")
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"{path.suffix or 'a file without suffix'} is not a document format",
                where=given,
                why=f"known are {', '.join(SUFFIXES)}",
                fix="convert it, or rename it if it is plain text",
            )
        return [path]
    # glob, since its patterns may be absolute; Path.glob refuses those
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
    found = []
    for match in map(Path, matches):
        if match.is_file() and match.suffix.lower() in SUFFIXES:
            found.append(match)
    return found


def _walk(folder: Path) -> list[Path]:
    found = []
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        paths = (Path(base) / name for name in names if Path(name).suffix.lower() in SUFFIXES)
        found += [path for path in paths if path.is_file()]  # a pipe would be waited for, for ever
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _read_file(path: Path) -> Iterator[Document | Skipped]:
    try:
        if path.suffix.lower() == ".jsonl":
            with path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if number == 1:
                        line = line.removeprefix(BOM_UTF8)
                    if line.strip():
                        yield _json_line(f"{path}:{number}", line)
            return
        raw = path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        yield Skipped(str(path), str(error))
        return
    try:
        yield Document(str(path), raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        yield Skipped(f"{path}:{number}", f"not UTF-8: byte 0x{raw[error.start]:02x}, {error.reason}")


def _json_line(where: str, line: bytes) -> Document | Skipped:
    try:
        text = msgspec.json.decode(line, type=_Line).text
        text.encode("utf-8")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Skipped(where, f"not a JSON object with a string under `text`: {error}")
    return Document(where, text)


def _within(documents: list[Document], max_bytes: int) -> list[Document]:
    chosen = []
    room = max_bytes
    for document in sorted(documents, key=lambda document: hashlib.sha256(document.name.encode()).digest()):
        size = utf8_size(document.text)
        if size <= room:
            chosen.append(document)
            room -= size
    return sorted(chosen)
