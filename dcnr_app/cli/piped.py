"""What the hidden commands share that run a session for a parent process: lines in and out, and the session
to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from dcnr_app import sessions
from dcnr_app.app import App
from dcnr_app.nodes.graph.training_form import resolve_training
from dcnr_app.store.sessions import SessionRecord, get_session
from dcnr_app.store.store import Store


def first_line(stdin: int) -> bytes:
    """Up to the first line's end and not further: the rest is for the thread that listens. Without the line's
    end; empty if there is none."""
    line = bytearray()
    while (character := os.read(stdin, 1)) not in (b"", b"\n"):
        line += character
    return bytes(line)


def emit(said: msgspec.Struct) -> None:
    """One line on stdout, whole, from any thread."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(said) + b"\n")


def record_of(
    app: App, shop: sessions.Workshop, store: Store, session: str, new: tuple[str, str, Mapping[str, Any]]
) -> SessionRecord:
    """The recorded session of that id or, with none, a new one of (network, dataset, flags of `train`)."""
    if session:
        return get_session(store, session)
    network, data, flags = new
    loaded = app.network(network)
    settings = resolve_training(loaded.training, **flags)
    dataset, tokenizer = app.dataset(data)
    return sessions.create(shop, store, loaded, settings, sessions.Text(dataset, tokenizer))
