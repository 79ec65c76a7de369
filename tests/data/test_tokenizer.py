"""The tokenizer: ids against the `tokenizers` library, round trips, the forged special token, the cache."""

from __future__ import annotations

import random
import sys
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.data.tokenizer import (
    PATTERNS,
    TOKENIZER_FILE,
    Tokenizer,
    list_tokenizers,
    load_tokenizer,
    tokenizers_folder,
)
from dcnr_app.data.tokenizer_training import TokenizerSettings, train_tokenizer
from dcnr_app.errors import StoreError, UserError
from tests.data.corpus import SETTINGS, bytes_tokenizer, documents, trained


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tokenizer(home: Path) -> Tokenizer:
    return trained(home)


@pytest.fixture(scope="module")
def oracle(home: Path, tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    path = tokenizers_folder(home) / tokenizer.id / TOKENIZER_FILE
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True  # text is text there too
    return library


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_characters_of_all_planes_get_the_ids_of_the_tokenizers_library(
    tokenizer: Tokenizer, oracle: tokenizers.Tokenizer, share: int
) -> None:
    """Every assigned character that is not one of the large regular blocks, and a share of all others."""
    characters = [
        chr(i)
        for i in range(sys.maxunicode + 1)
        if not 0xD800 <= i < 0xE000 and (i % share == 0 or _is_particular(chr(i)))
    ]
    texts = [
        "".join(f"a{c}1 {c}{c}  {c}!" for c in characters[i : i + 64]) for i in range(0, len(characters), 64)
    ]
    expected = oracle.encode_batch(texts)
    assert [tokenizer.encode(text) for text in texts] == [encoding.ids for encoding in expected]


def _is_particular(character: str) -> bool:
    name = unicodedata.name(character, "")
    return name != "" and not name.startswith(("CJK ", "HANGUL SYLLABLE", "TANGUT", "EGYPTIAN"))


def test_random_text_gets_the_ids_of_the_tokenizers_library(
    tokenizer: Tokenizer, oracle: tokenizers.Tokenizer
) -> None:
    draw = random.Random(11)  # noqa: S311
    alphabets = [
        "aeTh ",
        "the node's\n",
        " \t\r\n\u00a0\u3000x",
        "漢字かな한글 ",
        "😀👩\u200d🚀é\u0301",
        "\0\x1f\x7f\x85a",
    ]
    alphabets += ["0123456789 .,", "<|endoftext|> ", "\ufffd\uffff\U0010ffffz", "'s'll'VE'd "]
    texts = ["".join(draw.choices(draw.choice(alphabets), k=draw.randrange(80))) for _ in range(3000)]
    expected = oracle.encode_batch(texts)
    assert [tokenizer.encode(text) for text in texts] == [encoding.ids for encoding in expected]


@given(text=st.text())
def test_decoding_gives_back_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.bytes_of(token) for token in ids) == text.encode()
    assert all(0 < token < tokenizer.n_vocab for token in ids)


def test_text_cannot_forge_the_end_of_text(tokenizer: Tokenizer) -> None:
    text = "before<|endoftext|>after <|endoftext|>"
    ids = tokenizer.encode(text)
    assert tokenizer.end_of_text == 0
    assert 0 not in ids
    assert tokenizer.decode(ids) == text


def test_training_on_a_forged_end_of_text_keeps_the_id_apart(tmp_path: Path) -> None:
    texts = [document._replace(text=document.text + "<|endoftext|>" * 50) for document in documents(20)]
    forged = train_tokenizer(tmp_path, texts, SETTINGS)
    assert 0 not in forged.encode("<|endoftext|>" * 3)
    assert forged.bytes_of(0) == b""


def test_end_of_text_decodes_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([0, *tokenizer.encode("ab"), 0]) == "ab"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude00"])
def test_half_of_a_surrogate_pair_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(UserError, match="Unicode"):
        tokenizer.encode(text)


def test_a_run_of_white_space_beyond_the_splitters_limit_is_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"huge\.txt") as caught:
        tokenizer.encode_array(" " * 2_000_000 + "x", "huge.txt")
    assert "white space" in caught.value.why


@pytest.mark.parametrize("token", [-1, 320])
def test_an_unknown_id_is_refused(tokenizer: Tokenizer, token: int) -> None:
    with pytest.raises(UserError):
        tokenizer.decode([token])


def test_asked_and_reached_vocabulary_are_reported(tmp_path: Path) -> None:
    small = train_tokenizer(tmp_path, documents(2, words=20), TokenizerSettings(vocab_size=5000))
    assert small.manifest.asked_vocab == 5000
    assert 257 < small.manifest.n_vocab == small.n_vocab < 5000
    assert small.manifest.pattern == PATTERNS["gpt-2"]


def test_training_twice_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (trained(tmp_path / name) for name in ("a", "b"))
    assert first.content_hash == second.content_hash


def test_a_second_run_loads_instead_of_training(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        reports.append((stage, done, total))

    first = train_tokenizer(tmp_path, documents(), SETTINGS, progress=progress)
    n_bytes = sum(len(document.text.encode()) for document in documents())
    assert reports[-1] == ("train tokenizer", n_bytes, n_bytes)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    path = tokenizers_folder(tmp_path) / first.id / TOKENIZER_FILE
    changed_ns = path.stat().st_mtime_ns
    reports.clear()
    second = train_tokenizer(tmp_path, documents(), SETTINGS, progress=progress)
    assert (reports, path.stat().st_mtime_ns) == ([], changed_ns)
    assert second.encode("the node") == first.encode("the node")


def test_other_text_or_settings_are_another_tokenizer(tmp_path: Path) -> None:
    settings = [
        SETTINGS,
        TokenizerSettings(vocab_size=330),
        TokenizerSettings(vocab_size=320, sample_bytes=9000),
    ]
    ids = {train_tokenizer(tmp_path, documents(), entry).id for entry in settings}
    ids.add(train_tokenizer(tmp_path, documents(59), SETTINGS).id)
    assert len(ids) == 4
    assert {manifest.id for manifest in list_tokenizers(tmp_path)} == ids


def test_a_small_sample_bounds_what_is_learned_from(tmp_path: Path) -> None:
    texts = documents(400, words=30)
    n_bytes = sum(len(document.text.encode()) for document in texts)
    whole = train_tokenizer(tmp_path, texts, TokenizerSettings(vocab_size=100_000))
    part = train_tokenizer(tmp_path, texts, TokenizerSettings(vocab_size=100_000, sample_bytes=n_bytes // 20))
    assert 257 < part.n_vocab < whole.n_vocab


def test_a_failing_progress_call_leaves_no_tokenizer(tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        train_tokenizer(tmp_path, documents(), SETTINGS, progress=stop)
    assert list_tokenizers(tmp_path) == ()


@pytest.mark.parametrize(
    "settings",
    [
        TokenizerSettings(vocab_size=256),
        TokenizerSettings(vocab_size=1 << 23),
        TokenizerSettings(vocab_size=300, preset="mine"),
        TokenizerSettings(vocab_size=300, sample_bytes=0),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, settings: TokenizerSettings) -> None:
    with pytest.raises(UserError):
        train_tokenizer(tmp_path, documents(), settings)


def test_a_changed_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = tokenizers_folder(tmp_path) / trained(tmp_path).id
    path = folder / TOKENIZER_FILE
    path.write_bytes(path.read_bytes().replace(b'"BPE"', b'"BPX"'))
    with pytest.raises(StoreError) as caught:
        load_tokenizer(folder)
    assert caught.value.where == str(path)


def test_merges_that_make_a_token_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="merge order"):
        bytes_tokenizer(tmp_path / "twice", [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"a", b"bc")])
