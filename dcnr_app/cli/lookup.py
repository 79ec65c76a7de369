"""From what a person typed to what it means: sessions, checkpoints, networks; and lists of what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcnr_app.cli.output import path_text
from dcnr_app.errors import DcnrError, StoreError, UserError
from dcnr_app.stored import LATEST, usable_path

if TYPE_CHECKING:
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.nodes.graph.load import LoadedNetwork
    from dcnr_app.settings import Home
    from dcnr_app.store.sessions import SessionRecord
    from dcnr_app.store.shelf import Found
    from dcnr_app.store.store import Store


@contextmanager
def reading(app: App) -> Iterator[Store]:
    """The home's store for reading; takes no lock and makes no file."""
    store = app.reader()
    try:
        yield store
    finally:
        store.close()


def find_session(store: Store, text: str) -> SessionRecord:
    """The session with this id, or the newest readable one for `latest`, as it was stored.

    Raises UserError if there is none, StoreError if the record of the one that was named cannot be read.
    """
    from dcnr_app.ids import check_id
    from dcnr_app.nodes.graph.spelling import did_you_mean
    from dcnr_app.store.sessions import read_sessions

    listing = read_sessions(store)
    newest_first = listing.records[::-1]
    if text == LATEST and newest_first:
        return newest_first[0]
    name = check_id(text, "session")
    for record in newest_first:
        if record.session == name:
            return record
    for entry in listing.unreadable:
        if entry.key == name or text == LATEST:
            raise entry.error
    known = did_you_mean(name, [record.session for record in newest_first])
    what = "there is no session yet" if text == LATEST else f"there is no session {text!r}"
    raise UserError(what, fix=known or "dcnr-app demo")


def as_seen_now(home: Home, record: SessionRecord) -> SessionRecord:
    """The record with the status that holds at this moment: "interrupted" if its process has gone."""
    from dcnr_app.store.lock import holder
    from dcnr_app.store.sessions import as_seen

    found = holder(home)
    return as_seen(record, found.pid if found is not None else None)


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


def find_checkpoint(app: App, text: str) -> Found:
    """The checkpoint that an id, `latest` or a path means; `latest` passes over what cannot be gone on from.

    Raises UserError or StoreError.
    """
    from dcnr_app.fitness import fitness
    from dcnr_app.store.shelf import resolve_checkpoint

    with usable_path(text):
        return resolve_checkpoint(app.home, text, fitness(app.registry))


def find_network(app: App, text: str) -> LoadedNetwork:
    """The network that a name or a path means. Raises UserError or InvalidError."""
    return app.network(text)
