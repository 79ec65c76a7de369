"""Asking a session of another process to stop, and waiting until it has."""

from __future__ import annotations

import time

from dcnr_app.app import App
from dcnr_app.cli.lookup import as_seen_now
from dcnr_app.errors import DeadlineError, StoreError, UnreachableError
from dcnr_app.sessions import STOP_FILE
from dcnr_app.settings import PRIVATE_MODE
from dcnr_app.store.sessions import SessionRecord, get_session
from dcnr_app.store.store import Store

_POLL_S = 0.1


def stop_session(app: App, store: Store, record: SessionRecord, timeout_s: float) -> SessionRecord:
    """Ask for a stop and wait; returns the record as it is then seen.

    The request is a file, which needs no port. Raises UnreachableError if the session does not run,
    DeadlineError if it still does after `timeout_s`; then the request stands.
    """
    seen = as_seen_now(app.home, record)
    if seen.status != "running":
        raise UnreachableError(
            f"session {record.session} does not run: it is {seen.status}",
            fix=f"go on with it: dcnr-app session resume {record.session}",
        )
    request = app.home.sessions / record.session / STOP_FILE
    deadline_ms = app.clock.monotonic_ms() + 1000.0 * timeout_s
    try:
        while seen.status == "running":
            if app.clock.monotonic_ms() > deadline_ms:
                raise DeadlineError(
                    f"session {record.session} did not stop within {timeout_s:g} s",
                    why="it stops at the end of a step; the request stands",
                    fix=f"wait, or end process {record.pid}; then: dcnr-app session resume {record.session}",
                )
            # Made again each time: a session that is just starting clears requests to its earlier run.
            request.parent.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
            request.touch(mode=0o600)
            time.sleep(_POLL_S)
            seen = as_seen_now(app.home, get_session(store, record.session))
        request.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            "the request to stop cannot be written", where=str(request), why=error.strerror or str(error)
        ) from error
    return seen
