"""Training a tokenizer with the `tokenizers` library on a bounded sample. Knows no datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dcnr_app.data.documents import Document, Progress, text_parts, utf8
from dcnr_app.data.folders import create_once, sha256_of, write_durably, write_manifest
from dcnr_app.data.survey import CorpusFacts, checked, survey
from dcnr_app.data.tokenizer import (
    END_OF_TEXT,
    END_OF_TEXT_TEXT,
    FORMAT_VERSION,
    N_RESERVED,
    PATTERNS,
    TOKENIZER_FILE,
    Tokenizer,
    TokenizerManifest,
    load_tokenizer,
    read_token_bytes,
    tokenizers_folder,
)
from dcnr_app.errors import UserError

SAMPLE_BYTES = 128_000_000
_MAX_VOCAB = 1 << 22
_PART_CHARACTERS = 1 << 16
# a pair seen once is not a repetition; merging it would only memorise the sample
_MIN_FREQUENCY = 2


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a tokenizer besides its text, of which about `sample_bytes` at most are learned from."""

    vocab_size: int
    preset: str = "gpt-2"
    sample_bytes: int = SAMPLE_BYTES


def train_tokenizer(
    home: Path,
    documents: Iterable[Document],
    settings: TokenizerSettings,
    *,
    facts: CorpusFacts | None = None,
    progress: Progress | None = None,
) -> Tokenizer:
    """The tokenizer for `documents` and `settings`, from the home if it is there already.

    `documents` must give the same again when iterated again; `facts` is their survey, if it is known.
    `progress` gets ("train tokenizer", bytes read, bytes in all); merging follows the last report.
    Raises UserError for settings that make no tokenizer, StoreError if it cannot be written or read.
    """
    _check(settings)
    known = survey(documents) if facts is None else facts
    name = tokenizer_id(known, settings)

    def fill(folder: Path) -> None:
        _train_into(folder, name, documents, settings, known, progress)

    return load_tokenizer(create_once(tokenizers_folder(home), name, fill))


def tokenizer_id(facts: CorpusFacts, settings: TokenizerSettings) -> str:
    """Hash of all that decides the tokenizer, known before training: 16 hex digits."""
    form = (FORMAT_VERSION, facts.documents_digest, settings)
    return hashlib.sha256(msgspec.json.encode(form)).hexdigest()[:16]


def _check(settings: TokenizerSettings) -> None:
    if not N_RESERVED <= settings.vocab_size <= _MAX_VOCAB:
        raise UserError(
            f"a vocabulary of {settings.vocab_size} is not possible",
            why=f"256 bytes and end of text need {N_RESERVED}; the most is {_MAX_VOCAB}",
        )
    if settings.preset not in PATTERNS:
        raise UserError(
            f"tokenizer preset {settings.preset!r} is unknown", why=f"known are {', '.join(PATTERNS)}"
        )
    if settings.sample_bytes < 1:
        raise UserError(f"a sample of {settings.sample_bytes} bytes is empty")


def _train_into(
    folder: Path,
    name: str,
    documents: Iterable[Document],
    settings: TokenizerSettings,
    facts: CorpusFacts,
    progress: Progress | None,
) -> None:
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[END_OF_TEXT_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = _sample(checked(documents, facts), settings.sample_bytes, facts.n_bytes, progress)
    trained.train_from_iterator(sample, trainer)
    path = folder / TOKENIZER_FILE
    write_durably(path, trained.to_str().encode())
    manifest = TokenizerManifest(
        format_version=FORMAT_VERSION,
        id=name,
        sha256=sha256_of(path),
        preset=settings.preset,
        pattern=PATTERNS[settings.preset],
        asked_vocab=settings.vocab_size,
        n_vocab=len(read_token_bytes(path)),
        end_of_text=END_OF_TEXT,
        documents_digest=facts.documents_digest,
        sample_bytes=settings.sample_bytes,
        library=f"tokenizers {tokenizers.__version__}",
    )
    write_manifest(folder, manifest)


def _sample(
    documents: Iterable[Document], sample_bytes: int, n_bytes: int, progress: Progress | None
) -> Iterator[str]:
    """Parts of up to 65 536 characters: all, or a share chosen by hash that comes to about `sample_bytes`."""
    threshold = 2**64 * sample_bytes // max(n_bytes, 1)
    n_read = number = 0
    for document in documents:
        for part in text_parts(document.text, _PART_CHARACTERS):
            raw = utf8(part, document.name)
            n_read += len(raw)
            number += 1
            # the number keeps equal parts apart: one of many copies may be in, another out
            draw = hashlib.sha256(number.to_bytes(8, "little") + raw).digest()
            if int.from_bytes(draw[:8], "little") < threshold:
                yield part
            if progress is not None:
                progress("train tokenizer", n_read, n_bytes)
