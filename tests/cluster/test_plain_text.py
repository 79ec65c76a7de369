"""Names of strangers, made safe to show."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.plain_text import plain_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("desk", "desk"),
        ("  two   words\n", "two words"),
        ("Jürgens Büro 🖥", "Jürgens Büro 🖥"),
        ("a\x1b]52;c;eA==\x07", "a]52;c;eA=="),
        ("abc\u202edef\u2066\ufeff\u200b", "abcdef"),
        ("<img onerror>[red]", "<img onerror>[red]"),
        ("\ud800", ""),
        ("x" * 1_000_000, "x" * 64),
    ],
)
def test_what_moves_cursors_or_reorders_lines_is_taken_out(text: str, shown: str) -> None:
    assert plain_text(text) == shown


@given(st.text(max_size=300), st.integers(1, 80))
def test_any_text_is_short_and_on_one_line(text: str, limit: int) -> None:
    shown = plain_text(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(c)[0] == "C" for c in shown)
    assert plain_text(shown, limit) == shown
