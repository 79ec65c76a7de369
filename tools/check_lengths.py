"""Fail when a file has over 500 lines or a function over 50; name files over 300. Knows only line counts."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOFT_FILE_LINES = 300
HARD_FILE_LINES = 500
FUNCTION_LINES = 50
ROOTS = ("dcnr_app", "tests", "benchmarks", "tools")


def findings(path: Path) -> tuple[list[str], list[str]]:
    """(failures, remarks) of one file."""
    text = path.read_text(encoding="utf-8")
    n_lines = text.count("\n") + 1
    failures, remarks = [], []
    if n_lines > HARD_FILE_LINES:
        failures.append(f"{path}: {n_lines} lines (at most {HARD_FILE_LINES})")
    elif n_lines > SOFT_FILE_LINES:
        remarks.append(f"{path}: {n_lines} lines (aim for {SOFT_FILE_LINES})")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                failures.append(
                    f"{path}:{node.lineno}: {node.name} has {length} lines (at most {FUNCTION_LINES})"
                )
    return failures, remarks


def main() -> int:
    """Print what was found; 1 if anything fails."""
    failures: list[str] = []
    for root in ROOTS:
        for path in sorted(Path(root).rglob("*.py")):
            failed, remarks = findings(path)
            failures += failed
            print(*remarks, sep="\n", end="\n" if remarks else "")
    print(*failures, sep="\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
