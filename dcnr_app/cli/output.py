"""What commands print: JSON, tables and text on stdout, remarks on stderr. Knows no command and no layer."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from dcnr_app.errors import StoreError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""The `--json` flag of a command that reads."""


def finite(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Callback of a float option: `nan` passes every range check. Raises click.BadParameter for it."""
    del ctx, parameter
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    return value


def write_json(value: object) -> None:
    """One line of JSON on stdout, UTF-8 whatever the terminal speaks; NaN and infinity become null."""
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")


def write_text(text: str) -> None:
    """Text on stdout, with a line's end, as UTF-8; on a terminal, which would obey them, control characters
    are spelt out."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    shown = printable(text) if is_terminal else text
    write_bytes(f"{shown}\n".encode("utf-8", "backslashreplace"))


def write_bytes(raw: bytes) -> None:
    """Bytes on stdout, at once. Raises StoreError if they cannot be written, as on a full disk."""
    if sys.stdout is None:
        raise StoreError("the result cannot be written", where="stdout", why="it is closed")
    try:
        click.echo(raw, nl=False)
    except BrokenPipeError:  # the reader has gone, which is no error of ours
        raise
    except OSError as error:
        raise StoreError("the result cannot be written", where="stdout", why=error.strerror or "") from error


def say(text: str) -> None:
    """A remark for the person, on stderr; control characters, as in a file's name, are spelt out.

    Where stderr is closed or full nobody can be told, and nothing is raised.
    """
    try:
        click.echo(printable(text), err=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: IO[str] | None) -> None:
    """After a failed write to a standard stream: what it still holds goes nowhere.

    Else Python's flush at the end of the process fails once more and makes the exit code 120.
    """
    with suppress(OSError, ValueError, AttributeError):  # no stream, closed, or none of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        finally:
            os.close(nowhere)


class LastingStream:
    """A text stream for remarks that outlives its terminal: what cannot be written any more is dropped."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """What else the stream knows, as whether it is a terminal."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of a text stream; raises nothing if the terminal is closed or the disk full."""
        try:
            return self._stream.write(text)
        except OSError:
            give_up(self._stream)
            return len(text)

    def flush(self) -> None:
        """As `write`."""
        try:
            self._stream.flush()
        except OSError:
            give_up(self._stream)


def fill_closed_streams() -> None:
    """Let file descriptors 0 to 2 lead nowhere where the caller has closed them.

    Else the next file that is opened, a database perhaps, gets the number 2, and libraries log into it.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(nowhere)


def printable(text: str) -> str:
    """`text` with control characters other than tab and line feed spelt out, as in \\x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns under a heading, two spaces apart. A heading like `>parameters` makes a right-aligned
    column."""
    names = [column.removeprefix(">") for column in columns]
    cells = [names, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    is_right = [column.startswith(">") for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_right, strict=True)
        ).rstrip()
        for row in cells
    )


def pairs(values: Mapping[str, object]) -> str:
    """One `name  value` line per entry, values aligned."""
    width = max(len(name) for name in values)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in values.items())


def show_time(wall_ms: int) -> str:
    """Milliseconds since 1970 as UTC date and time, to the second; `unknown` for what no calendar has."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def show_bytes(n_bytes: float) -> str:
    """A size in bytes, kB, MB or GB (powers of 1000)."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} bytes" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def path_text(path: Path) -> str:
    """A path as valid Unicode: bytes that are not UTF-8 become U+FFFD, which JSON can carry."""
    return os.fsencode(path).decode("utf-8", "replace")


def is_quiet(*, as_json: bool) -> bool:
    """Whether progress would disturb: JSON was asked for and no person watches stderr."""
    return sys.stderr is None or (as_json and not sys.stderr.isatty())
