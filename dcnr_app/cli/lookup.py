"""From what a person typed to what it means: sessions, tokenizers, datasets, checkpoints, networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcnr_app.cli.output import path_text
from dcnr_app.errors import DcnrError, StoreError, UserError

if TYPE_CHECKING:
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.nodes.graph.load import LoadedNetwork
    from dcnr_app.settings import Home
    from dcnr_app.store.sessions import SessionRecord
    from dcnr_app.store.shelf import Found
    from dcnr_app.store.store import Store

LATEST = "latest"
_SHOWN = 100  # characters of a name that are shown in a message


@contextmanager
def reading(app: App) -> Iterator[Store]:
    """The home's store for reading; takes no lock and makes no file."""
    store = app.reader()
    try:
        yield store
    finally:
        store.close()


def find_session(store: Store, text: str) -> SessionRecord:
    """The session with this id, or the newest for `latest`, as it was stored. Raises UserError."""
    from dcnr_app.ids import check_id
    from dcnr_app.nodes.graph.spelling import did_you_mean
    from dcnr_app.store.sessions import list_sessions

    newest_first = list_sessions(store)[::-1]
    if text == LATEST and newest_first:
        return newest_first[0]
    name = check_id(text, "session")
    for record in newest_first:
        if record.session == name:
            return record
    known = did_you_mean(name, [record.session for record in newest_first])
    what = "there is no session yet" if text == LATEST else f"there is no session {text!r}"
    raise UserError(what, fix=known or "dcnr-app demo")


def as_seen_now(home: Home, record: SessionRecord) -> SessionRecord:
    """The record with the status that holds at this moment: "interrupted" if its process has gone."""
    from dcnr_app.store.lock import holder
    from dcnr_app.store.sessions import as_seen

    found = holder(home)
    return as_seen(record, found.pid if found is not None else None)


def committed_step(store: Store, session: str) -> int:
    """The newest committed step; 0 before the first. The record's own step lags behind a killed process."""
    return max((step for step, _ in store.commits(session)), default=0)


def stored_folders(parent: Path) -> tuple[Path, ...]:
    """Complete folders of tokenizers or datasets, oldest first."""
    from dcnr_app.data.folders import MANIFEST, children

    return tuple(sorted(children(parent), key=lambda path: ((path / MANIFEST).stat().st_mtime_ns, path.name)))


def stored_entry(folder: Path, manifest_type: type[msgspec.Struct]) -> dict[str, Any]:
    """The manifest in `folder`, its path and when it was made; `problem` tells why one cannot be read."""
    import msgspec

    from dcnr_app.data.folders import MANIFEST, read_manifest

    created_ms = (folder / MANIFEST).stat().st_mtime_ns // 1_000_000
    place = {"id": folder.name, "path": path_text(folder), "created_ms": created_ms}
    try:
        manifest: dict[str, Any] = msgspec.to_builtins(read_manifest(folder, manifest_type))
    except StoreError as error:
        return {**place, "problem": one_line(error)}
    return {**manifest, **place, "problem": ""}


def readable_entry(folder: Path, manifest_type: type[msgspec.Struct]) -> dict[str, Any]:
    """`stored_entry`, for one that was asked for by name. Raises StoreError if it cannot be read."""
    from dcnr_app.data.folders import read_manifest

    read_manifest(folder, manifest_type)
    return stored_entry(folder, manifest_type)


def one_line(error: DcnrError) -> str:
    """All that an error says, for a table or a JSON field."""
    return " ".join(str(error).split())


def find_folder(parent: Path, text: str, kind: str) -> Path:
    """The folder of a tokenizer or dataset: by id, by the beginning of one, or `latest`. Raises UserError."""
    from dcnr_app.ids import check_id

    folders = stored_folders(parent)
    if text == LATEST and folders:
        return folders[-1]
    name = check_id(text, kind)
    found = [path for path in folders if path.name.startswith(name)]
    exact = [path for path in found if path.name == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    raise _unknown_folder(text, kind, found, folders)


def _unknown_folder(text: str, kind: str, found: Sequence[Path], folders: Sequence[Path]) -> UserError:
    from dcnr_app.nodes.graph.spelling import did_you_mean

    if found:
        names = ", ".join(path.name for path in found)
        return UserError(
            f"{text!r} is the beginning of more than one {kind}", why=names, fix="type more of it"
        )
    known = did_you_mean(text, [path.name for path in reversed(folders)])
    what = f"there is no {kind} yet" if text == LATEST else f"there is no {kind} {text!r}"
    verb = "train" if kind == "tokenizer" else "create"
    return UserError(what, fix=known or f"dcnr-app {kind} {verb} --data PATH")


def find_checkpoint(home: Home, text: str) -> Found:
    """The checkpoint that an id, `latest` or a path means. Raises UserError or StoreError."""
    from dcnr_app.store.shelf import resolve_checkpoint

    with _usable_path(text):
        return resolve_checkpoint(home, text)


def find_network(app: App, text: str) -> LoadedNetwork:
    """The network that a name or a path means. Raises UserError or InvalidError."""
    with _usable_path(text):
        return app.network(text)


@contextmanager
def _usable_path(text: str) -> Iterator[None]:
    """Names that no file can have, or that may not be looked at, are the person's to correct."""
    try:
        check_path(text)
        yield
    except OSError as error:
        raise _unusable(text, error) from error


def check_path(text: str) -> str:
    """`text` if a file could have this name. Raises UserError for `~nobody-here` or one that is too long."""
    try:
        Path(text).expanduser().exists()
    except (OSError, RuntimeError) as error:
        raise _unusable(text, error) from error
    return text


def _unusable(text: str, error: Exception) -> UserError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return UserError(f"{shown!r} cannot be used as a path", why=why)
