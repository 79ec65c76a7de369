"""`dcnr-app tokenizer`: train, list and use tokenizers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import json_option, pairs, say, show_time, table, write_json, write_text
from dcnr_app.cli.preparing import data_options

if TYPE_CHECKING:
    from dcnr_app.data.tokenizer import Tokenizer

_tokenizer_option = click.option(
    "--tokenizer",
    "name",
    default="latest",
    show_default=True,
    help="A tokenizer's id, or the beginning of it.",
)


@click.group("tokenizer", epilog="Example: dcnr-app tokenizer train --data notes/ --vocabulary 512")
def command() -> None:
    """Train and use tokenizers (byte-level BPE)."""


@command.command("train", epilog="Example: dcnr-app tokenizer train --data notes/ --vocabulary 4096")
@data_options
@click.option(
    "--vocabulary", type=click.IntRange(257), default=512, show_default=True, help="Ids to reach at most."
)
@json_option
def train_command(
    data: tuple[str, ...], more: tuple[str, ...], on_error: str, vocabulary: int, *, as_json: bool
) -> None:
    """Train a tokenizer on text. The same text and vocabulary give the same one, which is then reused."""
    from dcnr_app.app import App
    from dcnr_app.cli.preparing import preparing, tell_skipped, text_corpus
    from dcnr_app.data.tokenizer_training import TokenizerSettings, train_tokenizer

    app = App()
    corpus = text_corpus(data + more, on_error)
    with preparing(app, "training a tokenizer", as_json=as_json) as report:
        trained = train_tokenizer(
            app.home.root, corpus, TokenizerSettings(vocab_size=vocabulary), progress=report.prepared
        )
    tell_skipped(corpus)
    if trained.n_vocab < vocabulary:
        say(f"the text gave {trained.n_vocab} of the {vocabulary} ids asked for: no more pairs come twice")
    _show(app.home.tokenizers / trained.id, as_json=as_json)


@command.command("ls", epilog="Example: dcnr-app tokenizer ls --json")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the tokenizers, oldest first."""
    from dcnr_app.cli.lookup import stored_entry
    from dcnr_app.data.tokenizer import TokenizerManifest
    from dcnr_app.settings import find_home
    from dcnr_app.stored import stored_folders

    entries = [stored_entry(folder, TokenizerManifest) for folder in stored_folders(find_home().tokenizers)]
    if as_json:
        write_json(entries)
    elif entries:
        columns = ("tokenizer", ">vocabulary", "made", "")
        rows = [(e["id"], e.get("n_vocab", ""), show_time(e["created_ms"]), e["problem"]) for e in entries]
        write_text(table(columns, rows))
    else:
        say("there is no tokenizer yet; make one: dcnr-app tokenizer train --data PATH")


@command.command("show", epilog="Example: dcnr-app tokenizer show latest --json")
@click.argument("name", metavar="[TOKENIZER]", default="latest")
@json_option
def show_command(name: str, *, as_json: bool) -> None:
    """Show a tokenizer: vocabulary, where it came from, its hash. TOKENIZER is an id or `latest`."""
    _show(_folder(name), as_json=as_json)


@command.command("encode", epilog="Example: dcnr-app tokenizer encode 'def main():'")
@click.argument("text")
@_tokenizer_option
@json_option
def encode_command(text: str, name: str, *, as_json: bool) -> None:
    """Turn TEXT into ids. TEXT `-` reads standard input."""
    tokenizer = _load(name)
    ids = tokenizer.encode(_standard_input() if text == "-" else text)
    if as_json:
        write_json({"tokenizer": tokenizer.id, "ids": ids})
    else:
        write_text(" ".join(map(str, ids)))


@command.command("decode", epilog="Example: dcnr-app tokenizer decode 68 302 17")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(0))
@_tokenizer_option
@json_option
def decode_command(ids: tuple[int, ...], name: str, *, as_json: bool) -> None:
    """Turn IDS into text."""
    tokenizer = _load(name)
    text = tokenizer.decode(ids)
    if as_json:
        write_json({"tokenizer": tokenizer.id, "text": text})
    else:
        write_text(text)


def _folder(name: str) -> Path:
    from dcnr_app.settings import find_home
    from dcnr_app.stored import find_folder

    return find_folder(find_home().tokenizers, name, "tokenizer")


def _load(name: str) -> Tokenizer:
    from dcnr_app.data.tokenizer import load_tokenizer

    return load_tokenizer(_folder(name))


def _show(folder: Path, *, as_json: bool) -> None:
    from dcnr_app.cli.lookup import readable_entry
    from dcnr_app.data.tokenizer import TokenizerManifest

    entry = readable_entry(folder, TokenizerManifest)
    if as_json:
        write_json(entry)
    else:
        write_text(pairs({**entry, "created_ms": show_time(entry["created_ms"])}))


def _standard_input() -> str:
    """All of standard input. Raises UserError if it is closed, cannot be read or is not UTF-8."""
    from dcnr_app.errors import UserError

    if sys.stdin is None:
        raise UserError("there is no standard input to read", why="it is closed", fix="give the text itself")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise UserError("standard input cannot be read", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8", why=f"byte {error.start}: {error.reason}") from error
