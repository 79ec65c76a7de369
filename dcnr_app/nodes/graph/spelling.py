"""Suggestions for misspelt words. Pure; knows nothing of networks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_LISTED = 12
_MAX_COMPARED = 2_000
_MAX_WORD = 100


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word` (difflib ratio of at least 0.6), or None."""
    # difflib is quadratic in length and linear in choices: hostile words and huge graphs are cut short.
    listed = [choice for choice in choices if len(choice) <= _MAX_WORD][:_MAX_COMPARED]
    found = difflib.get_close_matches(word[:_MAX_WORD], listed, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'x'?` for a near miss, else the list of what is known (shortened)."""
    listed = list(dict.fromkeys(choices))
    near = closest(word, listed)
    if near is not None:
        return f"did you mean {near!r}?"
    if not listed:
        return ""
    shown = ", ".join(listed[:_MAX_LISTED])
    return f"known here: {shown}" + (", …" if len(listed) > _MAX_LISTED else "")
