"""What `tokenizer train` and `dataset create` share: text from the command line, progress, skipped text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import is_quiet, say

if TYPE_CHECKING:
    from dcnr_app.app import App
    from dcnr_app.cli.report import RunReport
    from dcnr_app.data.dataset import SplitSettings
    from dcnr_app.data.documents import Corpus

_SHOWN_SKIPS = 5


def data_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--data PATH…` and `--on-error`; further paths may follow, as a shell expands `--data *.txt`."""
    options: tuple[Callable[[Any], Any], ...] = (
        click.argument("more", nargs=-1, metavar="[PATH]..."),
        click.option(
            "--on-error",
            type=click.Choice(["stop", "skip"]),
            default="stop",
            show_default=True,
            help="What to do with text that cannot be read.",
        ),
        click.option(
            "--data",
            multiple=True,
            required=True,
            metavar="PATH",
            help="Text: .txt, .md, .py or .jsonl file, folder or glob; may be repeated.",
        ),
    )
    for option in options:
        function = option(function)
    return function


def text_corpus(paths: tuple[str, ...], on_error: str, split: SplitSettings | None = None) -> Corpus:
    """The documents of `paths`, long ones cut into parts as `demo` does. Raises UserError."""
    import msgspec

    from dcnr_app.data.dataset import SplitSettings
    from dcnr_app.data.documents import OnError
    from dcnr_app.data.prepare import splittable_corpus

    return splittable_corpus(paths, split or SplitSettings(), msgspec.convert(on_error, OnError))


@contextmanager
def preparing(app: App, doing: str, *, as_json: bool) -> Iterator[RunReport]:
    """The home's lock and a live report on stderr. Raises RefusedError if another process holds the home."""
    from dcnr_app.cli.report import RunReport
    from dcnr_app.store.lock import HomeLock

    report = RunReport(app.clock, is_quiet=is_quiet(as_json=as_json))
    with HomeLock(app.home, doing), report:
        yield report


def tell_skipped(corpus: Corpus) -> None:
    """On stderr: what was left out, and why."""
    for skipped in corpus.skipped[:_SHOWN_SKIPS]:
        say(f"skipped {skipped.where}: {skipped.why}")
    more = len(corpus.skipped) - _SHOWN_SKIPS
    if more > 0:
        say(f"skipped {more} more")
