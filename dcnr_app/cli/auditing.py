"""The audit of a session's sample ledger against the samples that its committed steps must have used."""

from __future__ import annotations

from itertools import chain
from typing import Any

from dcnr_app.app import App
from dcnr_app.data.cursor import n_windows
from dcnr_app.data.expected import expected_samples
from dcnr_app.errors import InvalidError, StoreError
from dcnr_app.nodes.graph.network import context_of, decode_network
from dcnr_app.sessions import settings_of
from dcnr_app.store.ledger import audit
from dcnr_app.store.sessions import SessionRecord, network_bytes
from dcnr_app.store.store import Store

_SHOWN_IDS = 20


def audit_session(app: App, store: Store, record: SessionRecord) -> dict[str, Any]:
    """What `session ledger --json` prints: counts, the step they reach to, and the first ids at fault.

    Raises UserError if the session's dataset is not here any more or gives no sample, StoreError if
    the stored settings or network cannot be read.
    """
    # The session may be running. A step's commit and ledger rows appear together, so rows of steps that are
    # committed after the first look are left for the next audit; rows without any commit are at fault.
    step = max((number for number, _ in store.commits(record.session)), default=0)
    rows = store.ledger(record.session)
    later = {number for number, _ in store.commits(record.session) if number > step}
    dataset, _ = app.dataset_of(record)
    settings = settings_of(record)
    n = n_windows(dataset.train, _context(app, store, record))
    expected = chain.from_iterable(expected_samples(settings.seed, n, settings.batch, step))
    report = audit(list(expected), [row for row in rows if row[0] not in later])
    return {
        "session": record.session,
        "step": step,
        "samples": report.samples,
        "lost": len(report.lost),
        "twice": len(report.twice),
        "skipped": report.skipped,
        "lost_ids": report.lost[:_SHOWN_IDS],
        "twice_ids": report.twice[:_SHOWN_IDS],
    }


def _context(app: App, store: Store, record: SessionRecord) -> int:
    """Tokens per sequence of the session's network. Raises StoreError for another stored form."""
    raw = network_bytes(store, record.session)
    try:
        return context_of(decode_network(raw, app.registry))
    except InvalidError as error:
        raise StoreError(
            "the network of a session cannot be read",
            where=record.session,
            why=error.what,
            fix="it may be from another version: pip install --upgrade dcnr-app",
        ) from error
