"""Text to a dataset in one call: survey, tokenizer, shards, each from the home if it is there already."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dcnr_app.data.dataset import Dataset, SplitSettings, build_dataset
from dcnr_app.data.documents import Document, Progress
from dcnr_app.data.survey import survey
from dcnr_app.data.tokenizer import Tokenizer
from dcnr_app.data.tokenizer_training import TokenizerSettings, train_tokenizer


def prepare(
    home: Path,
    documents: Iterable[Document],
    tokenizer_settings: TokenizerSettings,
    split: SplitSettings,
    progress: Progress | None = None,
) -> tuple[Tokenizer, Dataset]:
    """The tokenizer and the dataset of `documents`, which must be the same when iterated again.

    Raises UserError and StoreError as `train_tokenizer` and `build_dataset` do.
    """
    facts = survey(documents)
    tokenizer = train_tokenizer(home, documents, tokenizer_settings, facts=facts, progress=progress)
    dataset = build_dataset(home, documents, tokenizer, split, facts=facts, progress=progress)
    return tokenizer, dataset
