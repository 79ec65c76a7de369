"""Paths that no file can have are refused in words, wherever text is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dcnr_app.data.dataset import SplitSettings, is_validation
from dcnr_app.data.documents import Corpus
from dcnr_app.data.prepare import splittable_corpus
from dcnr_app.errors import UserError


@pytest.mark.parametrize("path", ["~nobody-here-at-all/notes", "x" * 5000])
def test_a_path_that_cannot_exist_is_a_user_error(path: str) -> None:
    with pytest.raises(UserError):
        list(Corpus([path]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_by_name_and_left_out_of_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(UserError, match="no regular file"):
        list(Corpus([str(tmp_path / "pipe.txt")]))
    assert [document.text for document in Corpus([str(tmp_path)])] == ["text"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"\xef\xbb\xbfnotes")
    (tmp_path / "lines.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "line"}\n')
    assert [document.text for document in Corpus([str(tmp_path)])] == ["line", "notes"]


def test_a_line_nested_too_deep_is_a_broken_line(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"a":' * 100_000 + '\n{"text": "good"}\n')
    corpus = Corpus([str(tmp_path)], on_error="skip")
    assert [document.text for document in corpus] == ["good"]
    assert corpus.skipped[0].where.endswith("deep.jsonl:1")


def test_small_text_is_cut_into_enough_parts_to_be_split(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("".join(f"Sentence {n} of the book.\n" for n in range(600)))
    split = SplitSettings()
    sides = {is_validation(part.text, split) for part in splittable_corpus([str(book)], split)}
    assert sides == {True, False}
    book.write_text("".join(f"Sentence {n} of a long book.\n" for n in range(300_000)))
    parts = list(splittable_corpus([str(book)], split))
    assert max(len(part.text) for part in parts) > 10_000
