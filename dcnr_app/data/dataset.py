"""Datasets: documents tokenised into a training and a validation stream. Knows no batches.

A document's split is decided by its own content and the salt alone: adding documents moves none, and equal
documents are never on both sides.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from dcnr_app.data.documents import Document, Progress, utf8
from dcnr_app.data.folders import children, create_once, read_manifest, write_manifest
from dcnr_app.data.shards import (
    SHARD_TOKENS,
    Shard,
    ShardWriter,
    TokenDType,
    Tokens,
    TokenStream,
    token_dtype,
    verify_shards,
)
from dcnr_app.data.survey import CorpusFacts, checked, survey
from dcnr_app.data.tokenizer import Tokenizer
from dcnr_app.errors import InvariantError, StoreError, UserError

FORMAT_VERSION = 1
SPLIT_RULE = (
    "validation if int(sha256(salt utf-8 + text utf-8)[:8], big-endian) mod 10000 < validation_per_10000"
)
# text waiting to be encoded or written; bounds memory whatever the corpus's size
_IN_FLIGHT_BYTES = 16_000_000


class SplitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents are kept for validation: 500 of 10 000 is 5 %. Another salt is another split."""

    validation_per_10000: Annotated[int, msgspec.Meta(ge=1, le=9999)] = 500
    salt: str = "dcnr"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One side: tokens (end of text included), documents, UTF-8 bytes of text, and the shards."""

    n_tokens: int
    n_documents: int
    n_bytes: int
    shards: tuple[Shard, ...]


class DatasetManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset is. `id` is known before tokenising and names the folder."""

    format_version: int
    id: str
    tokenizer_id: str
    tokenizer_sha256: str
    n_vocab: int
    end_of_text: int
    dtype: TokenDType
    documents_digest: str
    sources_digest: str
    split_rule: str
    split: SplitSettings
    train: Split
    validation: Split
    n_shared_documents: int
    """Documents found on both sides by comparing all of them: 0."""


class Dataset:
    """A dataset on disk: its manifest and both token streams."""

    def __init__(self, folder: Path, manifest: DatasetManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.train = TokenStream(folder, manifest.train.shards, manifest.dtype)
        self.validation = TokenStream(folder, manifest.validation.shards, manifest.dtype)


def datasets_folder(home: Path) -> Path:
    """Where the datasets of a home lie, one folder each, by id."""
    return home / "datasets"


def build_dataset(
    home: Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    split: SplitSettings,
    *,
    facts: CorpusFacts | None = None,
    progress: Progress | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Dataset:
    """The dataset of `documents`, from the home if it is there already.

    `documents` must give the same again when iterated again; `facts` is their survey, if it is known.
    `progress` gets ("tokenise", bytes done, bytes in all). Raises UserError if a side of the split is empty,
    StoreError if it cannot be written or read.
    """
    _check_split(split)
    known = survey(documents) if facts is None else facts
    name = dataset_id(known, tokenizer, split)

    def fill(folder: Path) -> None:
        writers = (
            ShardWriter(folder, "train", token_dtype(tokenizer.n_vocab), shard_tokens),
            ShardWriter(folder, "validation", token_dtype(tokenizer.n_vocab), shard_tokens),
        )
        train, validation = _write_splits(
            writers, checked(documents, known), tokenizer, split, known, progress
        )
        write_manifest(folder, _manifest(folder, name, known, tokenizer, split, train, validation))

    return load_dataset(create_once(datasets_folder(home), name, fill))


def dataset_id(facts: CorpusFacts, tokenizer: Tokenizer, split: SplitSettings) -> str:
    """Hash of all that decides the dataset: 16 hex digits."""
    form = (FORMAT_VERSION, facts.documents_digest, tokenizer.content_hash, split)
    return hashlib.sha256(msgspec.json.encode(form)).hexdigest()[:16]


def is_validation(text: str, split: SplitSettings) -> bool:
    """Whether a document of this text belongs to the validation side."""
    digest = hashlib.sha256(utf8(split.salt) + utf8(text)).digest()
    return int.from_bytes(digest[:8], "big") % 10_000 < split.validation_per_10000


def load_dataset(folder: Path) -> Dataset:
    """The dataset in `folder`. Raises StoreError if a file is absent or has another size (contents:
    `verify_dataset`)."""
    manifest = read_manifest(folder, DatasetManifest)
    if manifest.format_version != FORMAT_VERSION:
        raise StoreError(
            f"dataset format {manifest.format_version} is unknown", where=str(folder), fix="update the app"
        )
    return Dataset(folder, manifest)


def list_datasets(home: Path) -> tuple[DatasetManifest, ...]:
    """Manifests of the home's datasets by id. Raises StoreError for an unreadable one."""
    return tuple(read_manifest(folder, DatasetManifest) for folder in children(datasets_folder(home)))


def verify_dataset(folder: Path) -> DatasetManifest:
    """Read everything and compare it with the manifest, which is returned.

    Raises StoreError naming the file that changed, or saying what does not fit.
    """
    dataset = load_dataset(folder)
    manifest = dataset.manifest
    for split, stream in ((manifest.train, dataset.train), (manifest.validation, dataset.validation)):
        verify_shards(folder, split.shards)
        for ids in stream.documents():
            if ids[-1] != manifest.end_of_text or int(ids.max()) >= manifest.n_vocab:
                raise StoreError("a document has impossible tokens", where=str(folder))
    if n_shared_documents(dataset.train, dataset.validation):
        raise StoreError("a document is in training and in validation", where=str(folder))
    return manifest


def n_shared_documents(train: TokenStream, validation: TokenStream) -> int:
    """Training documents whose very tokens are a validation document too, found without the split rule."""
    kept = {hashlib.sha256(ids.tobytes()).digest() for ids in validation.documents()}
    return sum(hashlib.sha256(ids.tobytes()).digest() in kept for ids in train.documents())


def _check_split(split: SplitSettings) -> None:
    if not 1 <= split.validation_per_10000 <= 9999:
        raise UserError(
            f"{split.validation_per_10000 / 100:g} % cannot be kept for validation",
            why="both sides need documents",
            fix="choose a share from 0.01 to 99.99 %",
        )


def _write_splits(
    writers: tuple[ShardWriter, ShardWriter],
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    split: SplitSettings,
    facts: CorpusFacts,
    progress: Progress | None,
) -> tuple[Split, Split]:
    n_documents, n_bytes, n_tokens = [0, 0], [0, 0], [0, 0]
    for document, ids in _encoded(checked(documents, facts), tokenizer):
        side = int(is_validation(document.text, split))
        writers[side].add(np.append(ids, np.uint32(tokenizer.end_of_text)))
        n_documents[side] += 1
        n_bytes[side] += len(utf8(document.text))
        n_tokens[side] += len(ids) + 1
        if progress is not None:
            progress("tokenise", sum(n_bytes), facts.n_bytes)
    sides = [
        Split(n_tokens=n_tokens[i], n_documents=n_documents[i], n_bytes=n_bytes[i], shards=writers[i].close())
        for i in (0, 1)
    ]
    for label, found in zip(("training", "validation"), sides, strict=True):
        if not found.n_documents:
            raise UserError(
                f"no document falls to {label}",
                why=f"whole documents are split, {split.validation_per_10000 / 100:g} % to validation, equal "
                f"ones all to the same side, and there are {facts.n_documents}, equal ones counted",
                fix="give more different text, or another share: "
                "dcnr-app dataset create --validation-percent PERCENT",
            )
    return sides[0], sides[1]


def _encoded(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[Document, Tokens]]:
    """Documents with their ids, in order, encoded by all CPUs."""
    waiting: deque[tuple[Document, Future[Tokens]]] = deque()
    n_waiting = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for document in documents:
            waiting.append((document, pool.submit(tokenizer.encode_array, document.text, document.name)))
            n_waiting += len(document.text)
            while n_waiting > _IN_FLIGHT_BYTES:
                done, future = waiting.popleft()
                n_waiting -= len(done.text)
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()


def _manifest(
    folder: Path,
    name: str,
    facts: CorpusFacts,
    tokenizer: Tokenizer,
    split: SplitSettings,
    train: Split,
    validation: Split,
) -> DatasetManifest:
    dtype = token_dtype(tokenizer.n_vocab)
    shared = n_shared_documents(
        TokenStream(folder, train.shards, dtype), TokenStream(folder, validation.shards, dtype)
    )
    if shared:
        raise InvariantError(f"{shared} documents are in training and in validation", where=str(folder))
    return DatasetManifest(
        format_version=FORMAT_VERSION,
        id=name,
        tokenizer_id=tokenizer.id,
        tokenizer_sha256=tokenizer.content_hash,
        n_vocab=tokenizer.n_vocab,
        end_of_text=tokenizer.end_of_text,
        dtype=dtype,
        documents_digest=facts.documents_digest,
        sources_digest=facts.sources_digest,
        split_rule=SPLIT_RULE,
        split=split,
        train=train,
        validation=validation,
        n_shared_documents=shared,
    )
