"""Small corpora and datasets for the data tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dcnr_app.data.dataset import Dataset, SplitSettings, build_dataset
from dcnr_app.data.documents import Document
from dcnr_app.data.folders import sha256_of, write_durably, write_manifest
from dcnr_app.data.tokenizer import (
    END_OF_TEXT_TEXT,
    PATTERNS,
    TOKENIZER_FILE,
    Tokenizer,
    TokenizerManifest,
    byte_letters,
    load_tokenizer,
)
from dcnr_app.data.tokenizer_training import TokenizerSettings, train_tokenizer

WORDS = ("the", "node", "sends", "a", "tensor", "and", "waits", "for", "über", "naïve", "漢字", "😀")
WORDS += ("x", "=", "f(1234)", "#", "done\n\t", "", "return")
SETTINGS = TokenizerSettings(vocab_size=320)
HALF = SplitSettings(validation_per_10000=3000)


def documents(n: int = 60, *, seed: int = 5, words: int = 150) -> list[Document]:
    """`n` different documents of random words."""
    draw = random.Random(seed)  # noqa: S311
    return [
        Document(f"d{i}", f"document {i} " + " ".join(draw.choice(WORDS) for _ in range(words)))
        for i in range(n)
    ]


def trained(home: Path) -> Tokenizer:
    """A tokenizer of 320 tokens."""
    return train_tokenizer(home, documents(), SETTINGS)


def built(home: Path, texts: Iterable[Document] | None = None) -> Dataset:
    """A small dataset with 30 % validation."""
    return build_dataset(home, documents() if texts is None else texts, trained(home), HALF)


def bytes_tokenizer(folder: Path, merges: Iterable[tuple[bytes, bytes]] = ()) -> Tokenizer:
    """A tokenizer with exactly these merges, written and loaded without training."""
    letter_of = {byte: letter for letter, byte in byte_letters().items()}
    pairs = [["".join(letter_of[byte] for byte in side) for side in pair] for pair in merges]
    texts = [END_OF_TEXT_TEXT, *(letter_of[byte] for byte in range(256)), *(a + b for a, b in pairs)]
    model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)}, "merges": pairs}
    folder.mkdir(parents=True)
    path = folder / TOKENIZER_FILE
    write_durably(path, msgspec.json.encode({"model": model}))
    manifest = TokenizerManifest(
        format_version=1,
        id=folder.name,
        sha256=sha256_of(path),
        preset="gpt-2",
        pattern=PATTERNS["gpt-2"],
        asked_vocab=len(texts),
        n_vocab=len(texts),
        end_of_text=0,
        documents_digest="",
        sample_bytes=0,
        library="none",
    )
    write_manifest(folder, manifest)
    return load_tokenizer(folder)
