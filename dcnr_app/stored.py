"""Tokenizers and datasets that a home has stored, by what a person typed. Knows no command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dcnr_app.data.folders import MANIFEST, children
from dcnr_app.errors import StoreError, UserError
from dcnr_app.ids import check_id
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.settings import Home

LATEST = "latest"
_SHOWN = 100  # characters of a name that are shown in a message


def stored_folders(parent: Path) -> tuple[Path, ...]:
    """Complete folders of tokenizers or datasets, oldest first."""
    return tuple(sorted(children(parent), key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, path.name)))


def find_folder(parent: Path, text: str, kind: str) -> Path:
    """The folder of a tokenizer or dataset: by id, by the beginning of one, or `latest`. Raises UserError."""
    folders = stored_folders(parent)
    if text == LATEST and folders:
        return folders[-1]
    name = check_id(text, kind)
    found = [path for path in folders if path.name.startswith(name)]
    exact = [path for path in found if path.name == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    raise _unknown_folder(text, kind, found, folders)


def session_dataset_folder(home: Home, session: str, dataset: str, tokenizer: str) -> Path:
    """The folder of the dataset on which a session was trained; `tokenizer` is its tokenizer's sha256.

    Raises UserError that says how to make it anew if it is not here any more.
    """
    for folder in children(home.datasets):
        if folder.name == dataset:
            return folder
    raise UserError(
        f"the dataset {dataset!r} of session {session} is not here any more",
        where=str(home.datasets),
        why="a dataset's id is made from its content: the same text, tokenizer and share of validation give "
        "it again",
        fix=f"dcnr-app dataset create --data PATH {_tokenizer_option(home, tokenizer)}, as it was made "
        "(`dcnr-app demo --steps 1` makes the demo's); then go on with: "
        f"dcnr-app session resume {session}",
    )


def tokenizer_folder(home: Home, tokenizer_id: str, dataset: str) -> Path:
    """The folder of a dataset's tokenizer. Raises StoreError that says how to make it anew if it is gone."""
    folder = home.tokenizers / tokenizer_id
    if not folder.is_dir():
        raise StoreError(
            f"the tokenizer {tokenizer_id!r} of dataset {dataset} is not here any more",
            where=str(home.tokenizers),
            why="a tokenizer's id is made from its text and settings: the same ones give it again",
            fix="dcnr-app tokenizer train --data PATH --vocabulary N, as it was made",
        )
    return folder


@contextmanager
def usable_path(text: str) -> Iterator[None]:
    """Raises UserError for a name that no file can have or that may not be looked at, also within."""
    try:
        Path(text).expanduser().exists()
    except (OSError, RuntimeError) as error:  # one that is too long, `~nobody-here`
        raise _unusable(text, error) from error
    try:
        yield
    except OSError as error:
        raise _unusable(text, error) from error


def _unusable(text: str, error: Exception) -> UserError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return UserError(f"{shown!r} cannot be used as a path", why=why)


def _tokenizer_option(home: Home, sha256: str) -> str:
    from dcnr_app.data.folders import read_manifest
    from dcnr_app.data.tokenizer import TokenizerManifest

    for folder in children(home.tokenizers):
        try:
            if read_manifest(folder, TokenizerManifest).sha256 == sha256:
                return f"--tokenizer {folder.name}"
        except StoreError:
            continue  # a damaged one is not the one that is looked for, and no reason to say nothing
    return "--vocabulary N"


def _unknown_folder(text: str, kind: str, found: Sequence[Path], folders: Sequence[Path]) -> UserError:
    if found:
        names = ", ".join(path.name for path in found)
        return UserError(
            f"{text!r} is the beginning of more than one {kind}", why=names, fix="type more of it"
        )
    known = did_you_mean(text, [path.name for path in reversed(folders)])
    what = f"there is no {kind} yet" if text == LATEST else f"there is no {kind} {text!r}"
    verb = "train" if kind == "tokenizer" else "create"
    return UserError(what, fix=known or f"dcnr-app {kind} {verb} --data PATH")
