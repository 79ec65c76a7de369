"""`dcnr-app dataset`: prepare, list and verify datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import (
    finite,
    json_option,
    pairs,
    say,
    show_bytes,
    show_time,
    table,
    write_json,
    write_text,
)
from dcnr_app.cli.preparing import data_options

if TYPE_CHECKING:
    from dcnr_app.app import App
    from dcnr_app.cli.report import RunReport
    from dcnr_app.data.dataset import Dataset, SplitSettings
    from dcnr_app.data.documents import Corpus

DEFAULT_VOCABULARY = 512
_PER_PERCENT = 100  # the split counts in ten-thousandths


@click.group("dataset", epilog="Example: dcnr-app dataset create --data notes/ --vocabulary 512")
def command() -> None:
    """Prepare and show datasets: text, tokenised and split into training and validation."""


@command.command("create", epilog="Example: dcnr-app dataset create --data notes/ --validation-percent 5")
@data_options
@click.option(
    "--vocabulary",
    type=click.IntRange(257),
    help=f"Train a tokenizer of so many ids on the text. [default: {DEFAULT_VOCABULARY}]",
)
@click.option("--tokenizer", help="Use this tokenizer (id, the beginning of one, or `latest`) instead.")
@click.option(
    "--validation-percent",
    type=click.FloatRange(0.01, 99.99),
    callback=finite,
    default=5.0,
    show_default=True,
    help="Share of the documents that is kept for validation.",
)
@json_option
def create_command(
    data: tuple[str, ...],
    more: tuple[str, ...],
    on_error: str,
    vocabulary: int | None,
    tokenizer: str | None,
    validation_percent: float,
    *,
    as_json: bool,
) -> None:
    """Prepare a dataset from text. The same text and settings give the same one, which is then reused.

    Documents longer than 20 000 characters (less for little text) are cut into parts;
    each part is wholly training or validation.
    """
    from dcnr_app.app import App
    from dcnr_app.cli.preparing import preparing, tell_skipped, text_corpus
    from dcnr_app.data.dataset import SplitSettings

    if vocabulary is not None and tokenizer is not None:
        raise click.UsageError("--vocabulary trains a tokenizer, --tokenizer names one: give one of the two")
    app = App()
    split = SplitSettings(validation_per_10000=_share(validation_percent))
    corpus = text_corpus(data + more, on_error, split)
    with preparing(app, "preparing a dataset", as_json=as_json) as report:
        made = _make(app, corpus, vocabulary or DEFAULT_VOCABULARY, tokenizer, split, report)
    tell_skipped(corpus)
    _show(made.folder, as_json=as_json)


@command.command("ls", epilog="Example: dcnr-app dataset ls --json")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the datasets, oldest first."""
    from dcnr_app.cli.lookup import stored_entry
    from dcnr_app.data.dataset import DatasetManifest
    from dcnr_app.settings import find_home
    from dcnr_app.stored import stored_folders

    entries = [stored_entry(folder, DatasetManifest) for folder in stored_folders(find_home().datasets)]
    if as_json:
        write_json(entries)
    elif entries:
        columns = ("dataset", ">vocabulary", ">training tokens", ">validation tokens", "made", "")
        write_text(table(columns, [_row(entry) for entry in entries]))
    else:
        say("there is no dataset yet; make one: dcnr-app dataset create --data PATH")


@command.command("show", epilog="Example: dcnr-app dataset show latest --json")
@click.argument("name", metavar="[DATASET]", default="latest")
@json_option
def show_command(name: str, *, as_json: bool) -> None:
    """Show a dataset: tokens, documents, split, tokenizer. DATASET is an id or `latest`."""
    _show(_folder(name), as_json=as_json)


@command.command("verify", epilog="Example: dcnr-app dataset verify latest")
@click.argument("name", metavar="[DATASET]", default="latest")
@json_option
def verify_command(name: str, *, as_json: bool) -> None:
    """Read all of a dataset and compare it with its hashes; no document may be on both sides of the split."""
    from dcnr_app.cli.lookup import one_line
    from dcnr_app.data.dataset import verify_dataset
    from dcnr_app.errors import StoreError

    folder = _folder(name)
    try:
        manifest = verify_dataset(folder)
    except StoreError as error:
        if as_json:
            write_json({"id": folder.name, "ok": False, "problem": one_line(error)})
        raise
    n_tokens = manifest.train.n_tokens + manifest.validation.n_tokens
    if as_json:
        write_json({"id": manifest.id, "ok": True, "problem": "", "n_tokens": n_tokens})
    else:
        write_text(f"dataset {manifest.id} is what it was: {n_tokens:,} tokens, no document on both sides")


def _make(
    app: App,
    corpus: Corpus,
    vocabulary: int,
    tokenizer: str | None,
    split: SplitSettings,
    report: RunReport,
) -> Dataset:
    from dcnr_app.data.dataset import build_dataset
    from dcnr_app.data.prepare import prepare
    from dcnr_app.data.tokenizer import load_tokenizer
    from dcnr_app.data.tokenizer_training import TokenizerSettings
    from dcnr_app.stored import find_folder

    if tokenizer is None:
        settings = TokenizerSettings(vocab_size=vocabulary)
        return prepare(app.home.root, corpus, settings, split, report.prepared)[1]
    loaded = load_tokenizer(find_folder(app.home.tokenizers, tokenizer, "tokenizer"))
    return build_dataset(app.home.root, corpus, loaded, split, progress=report.prepared)


def _share(percent: float) -> int:
    """A percentage in ten-thousandths; 0.01 % is the least, so that no share becomes nothing by rounding."""
    return min(9999, max(1, round(percent * _PER_PERCENT)))


def _folder(name: str) -> Path:
    from dcnr_app.settings import find_home
    from dcnr_app.stored import find_folder

    return find_folder(find_home().datasets, name, "dataset")


def _show(folder: Path, *, as_json: bool) -> None:
    from dcnr_app.cli.lookup import readable_entry
    from dcnr_app.data.dataset import DatasetManifest

    entry = readable_entry(folder, DatasetManifest)
    if as_json:
        write_json(entry)
        return
    shown = {
        "dataset": entry["id"],
        "training": _side(entry["train"]),
        "validation": _side(entry["validation"]),
        "vocabulary": entry["n_vocab"],
    }
    shown |= {
        "tokenizer": entry["tokenizer_id"],
        "made": show_time(entry["created_ms"]),
        "path": entry["path"],
    }
    write_text(pairs(shown))


def _side(split: dict[str, Any]) -> str:
    size = show_bytes(split["n_bytes"])
    return f"{split['n_tokens']:,} tokens, {split['n_documents']:,} documents, {size}"


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    made = show_time(entry["created_ms"])
    if entry["problem"]:
        return entry["id"], "", "", "", made, entry["problem"]
    n_tokens = (f"{entry[side]['n_tokens']:,}" for side in ("train", "validation"))
    return entry["id"], entry["n_vocab"], *n_tokens, made, ""
