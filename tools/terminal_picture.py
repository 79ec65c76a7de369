"""Turn terminal output on stdin into an SVG picture: terminal_picture.py TITLE WIDTH <output >picture.svg."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text


def main() -> int:
    """Read ANSI text from stdin, write SVG to stdout."""
    title, width = sys.argv[1], int(sys.argv[2])
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(sys.stdin.read()))
    # the default style loads a font from the network; a system one keeps the picture self-contained
    picture = console.export_svg(title=title, font_aspect_ratio=0.61)
    start, end = picture.index("@font-face"), picture.rindex("@font-face")
    end = picture.index("}", end) + 1
    plain = (picture[:start] + picture[end:]).replace(
        "Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
    )
    sys.stdout.write(plain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
