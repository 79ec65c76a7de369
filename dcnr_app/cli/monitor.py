"""`dcnr-app monitor`: a session's metrics as JSON lines, as they arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import write_json

if TYPE_CHECKING:
    from dcnr_app.store.store import Store

_POLL_S = 0.25
# A step's validation loss joins its row later, when the next steps may be there already.
_STEPS_BACK = 8
# Figures that a skipped step does not have: its row keeps 0 in their place.
_NOT_OF_SKIPPED = ("loss", "gradient_norm")


@click.command("monitor", epilog="Example: dcnr-app monitor latest | jq .loss")
@click.argument("session", metavar="[SESSION]", default="latest")
@click.option(
    "--follow/--once", default=True, help="Go on until the session ends (default), or print what is there."
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines are the only form; accepted for symmetry.")
def command(session: str, *, follow: bool, as_json: bool) -> None:
    """Print SESSION's metrics (default: the newest session's), one JSON object a line, as they arrive.

    A value that becomes known later, as a step's validation loss does, comes in a line of its own. A skipped
    step has `skipped` 1 and no loss: null.
    """
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import as_seen_now, find_session, reading
    from dcnr_app.store.sessions import get_session

    del as_json
    app = App()
    with reading(app) as store:
        name = find_session(store, session).session
        told: dict[int, frozenset[str]] = {}
        is_live = True
        while is_live:
            # The status is read first: what a session records before its end is then surely read after it.
            is_live = follow and as_seen_now(app.home, get_session(store, name)).status == "running"
            _tell_new(store, name, told)
            if is_live:
                time.sleep(_POLL_S)


def _tell_new(store: Store, session: str, told: dict[int, frozenset[str]]) -> None:
    """Print values that were not printed yet; `told` names those of the latest steps that were."""
    newest = max(told, default=0)
    for row in store.metrics(session, max(0, newest - _STEPS_BACK)):
        step = int(row["step"])
        known = told.get(step, frozenset())
        values = row["values"]
        if values.get("skipped"):
            values = {**values, **{name: None for name in _NOT_OF_SKIPPED if name in values}}
        fresh = {name: value for name, value in values.items() if name not in known}
        if fresh:
            write_json({"session": session, "step": step, "at_ms": row["at_ms"], **fresh})
        told[step] = known | fresh.keys()
    for step in [step for step in told if step < max(told) - 2 * _STEPS_BACK]:
        del told[step]
