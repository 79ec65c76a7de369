"""Reading documents: formats, folders, reports of what cannot be read, the standard library's text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.data.documents import (
    Corpus,
    Skipped,
    read_documents,
    standard_library_documents,
    text_parts,
    utf8_size,
)
from dcnr_app.data.survey import checked, survey
from dcnr_app.errors import UserError
from tests.data.corpus import documents


def _texts(*paths: Path | str) -> list[str]:
    return [document.text for document in read_documents([str(path) for path in paths])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "a.txt").write_bytes("ä\r\nb".encode())
    (tmp_path / "b" / "c.md").write_text("c")
    (tmp_path / "b" / "d.py").write_text("d")
    (tmp_path / "b" / "e.jsonl").write_text('{"text": "e1", "id": 4}\n\n{"text": "e2"}')
    (tmp_path / "b" / "f.bin").write_text("not text")
    (tmp_path / ".venv" / "g.py").write_text("hidden")
    return tmp_path


def test_a_folder_gives_its_text_files_and_json_lines_in_order(tree: Path) -> None:
    assert _texts(tree) == ["ä\r\nb", "c", "d", "e1", "e2"]


def test_a_glob_gives_only_matches_of_a_known_format(tree: Path) -> None:
    assert _texts(f"{tree}/**/*") == ["ä\r\nb", "c", "d", "e1", "e2"]
    assert _texts(f"{tree}/b/*.md") == ["c"]


def test_a_file_reached_twice_is_read_once(tree: Path) -> None:
    assert _texts(tree / "b" / "c.md", tree / "b", tree / "b" / "*.md").count("c") == 1


def test_json_lines_are_named_by_line(tree: Path) -> None:
    path = str(tree / "b" / "e.jsonl")
    assert [document.name for document in read_documents([path])] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize("path", ["absent.txt", "b/f.bin", "nothing/*.txt"])
def test_a_path_without_documents_is_refused(tree: Path, path: str) -> None:
    with pytest.raises(UserError) as caught:
        _texts(tree / path)
    assert caught.value.where == str(tree / path)


BROKEN = {
    "bad.txt": (b"one\ntwo\nthr\xff\n", 3),
    "key.jsonl": (b'{"text": "x"}\n{"body": "y"}\n{"text": "z"}\n', 2),
    "cut.jsonl": (b'{"text": "x"}\n{"text": "y\n', 2),
    "utf.jsonl": (b'{"text": "x"}\n{"text": "\xff"}\n', 2),
    "half.jsonl": (b'{"text": "x"}\n{"text": "\\ud800"}\n', 2),
    "type.jsonl": (b'{"text": 5}\n', 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_stops_with_file_and_line(tmp_path: Path, name: str) -> None:
    raw, line = BROKEN[name]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError) as caught:
        _texts(tmp_path / name)
    assert caught.value.where == f"{tmp_path / name}:{line}"


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_skipped_with_a_report_if_asked(tmp_path: Path, name: str) -> None:
    raw, line = BROKEN[name]
    (tmp_path / name).write_bytes(raw)
    (tmp_path / "good.txt").write_text("good")
    reports: list[Skipped] = []
    found = list(read_documents([str(tmp_path)], on_error="skip", skipped=reports))
    assert "good" in {document.text for document in found}
    assert [report.where for report in reports] == [f"{tmp_path / name}:{line}"]


def test_a_corpus_gives_the_same_twice_and_reports_the_latest_pass(tree: Path) -> None:
    (tree / "bad.txt").write_bytes(b"\xff")
    corpus = Corpus([str(tree)], on_error="skip")
    assert survey(corpus) == survey(corpus)
    assert len(corpus.skipped) == 1


def test_a_corpus_cuts_a_long_file_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    (tmp_path / "long.txt").write_text(text)
    parts = list(Corpus([str(tmp_path)], part_characters=100))
    assert "".join(part.text for part in parts) == text
    assert all(part.text.endswith("\n") and len(part.text) <= 100 for part in parts)
    assert len({part.name for part in parts}) == len(parts) > 5


@given(st.text(alphabet="ab\n\r😀"), st.integers(1, 7))
def test_parts_join_to_the_text(text: str, limit: int) -> None:
    parts = list(text_parts(text, limit))
    assert "".join(parts) == text
    assert all(len(part) <= limit for part in parts)


def test_documents_that_change_between_passes_are_noticed() -> None:
    texts = documents(3)
    facts = survey(texts)
    assert list(checked(texts, facts)) == texts
    with pytest.raises(UserError, match="changed"):
        list(checked([*texts[:2], texts[2]._replace(text="other")], facts))
    with pytest.raises(UserError, match="changed"):
        list(checked(iter(()), facts))


def _library(root: Path, n: int, size: int = 300_000) -> Path:
    for i in range(n):
        (root / f"m{i}.py").write_text(f"# {i}\n" + "x" * size)
    return root


def test_the_library_leaves_out_packages_tests_and_empty_files(tmp_path: Path) -> None:
    _library(tmp_path, 8)
    for folder in ("site-packages", "test", "email/tests", "idlelib/idle_test", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "out.py").write_text("out")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    reports: list[Skipped] = []
    found = standard_library_documents(root=tmp_path, skipped=reports)
    assert [document.name for document in found] == [f"m{i}.py" for i in range(8)]
    assert [report.where for report in reports] == [f"{tmp_path / 'latin.py'}:1"]


def test_a_library_without_sources_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        standard_library_documents(root=_library(tmp_path, 2))
    assert "--data" in caught.value.fix


def test_the_library_is_capped_by_a_choice_that_more_room_only_extends(tmp_path: Path) -> None:
    _library(tmp_path, 12)
    small, large = (
        {document.name for document in standard_library_documents(root=tmp_path, max_bytes=size)}
        for size in (1_000_000, 2_000_000)
    )
    assert small < large
    assert large != set(sorted(f"m{i}.py" for i in range(12))[:6]), "a fair choice, not the first by name"
    assert (len(small), len(large)) == (3, 6)


def test_this_pythons_library_is_the_same_on_each_run() -> None:
    first, second = (standard_library_documents(max_bytes=3_000_000) for _ in range(2))
    assert first == second
    assert 2_500_000 < sum(utf8_size(document.text) for document in first) <= 3_000_000
