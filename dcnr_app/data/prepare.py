"""Text to a dataset in one call: survey, tokenizer, shards, each from the home if it is there already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dcnr_app.data.dataset import Dataset, SplitSettings, build_dataset, is_validation
from dcnr_app.data.documents import Corpus, Document, OnError, Progress
from dcnr_app.data.survey import survey
from dcnr_app.data.tokenizer import Tokenizer
from dcnr_app.data.tokenizer_training import TokenizerSettings, train_tokenizer

PART_CHARACTERS = (20_000, 2_000, 200)


def splittable_corpus(paths: Sequence[str], split: SplitSettings, on_error: OnError = "stop") -> Corpus:
    """The documents of `paths`, long ones cut into parts of 20 000 characters: less where the text is too
    short for training and validation both to get some. Raises UserError as `read_documents` does.
    """
    corpora = [Corpus(paths, on_error=on_error, part_characters=size) for size in PART_CHARACTERS]
    return next((corpus for corpus in corpora if _has_both_sides(corpus, split)), corpora[0])


def _has_both_sides(corpus: Corpus, split: SplitSettings) -> bool:
    seen: set[bool] = set()
    for document in corpus:
        seen.add(is_validation(document.text, split))
        if len(seen) == 2:
            return True
    return False


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
