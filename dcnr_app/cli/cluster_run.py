"""Training on the cluster: ask the agent for it, then follow what it says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dcnr_app.cli.agent_client import AgentClient
from dcnr_app.cli.output import is_quiet, say, write_json, write_text
from dcnr_app.errors import UnreachableError
from dcnr_app.settings import Home
from dcnr_app.ui.local_api import SessionView

_POLL_S = 0.5
_TELL_S = 5.0


def run_on_cluster(home: Home, request: Mapping[str, Any], *, as_json: bool) -> int:
    """Start a session on the cluster of this machine's agent and follow it; returns its exit code.

    Ctrl-C ends the following, not the session. Raises UnreachableError if no agent runs here, or it ends."""
    client = AgentClient.find(home)
    begun = client.post("start-session", SessionView, **request)
    quiet = is_quiet(as_json=as_json)
    if not quiet:
        say(f"session {begun.session} runs on the cluster; Ctrl-C leaves it running")
    try:
        done = _follow(client, quiet=quiet)
    except KeyboardInterrupt:
        say(f"the session goes on; stop it with: dcnr-app session stop {begun.session}")
        return 0
    except UnreachableError as error:
        raise UnreachableError(
            f"this machine's agent is gone; session {begun.session} goes on when it runs again",
            why=error.why,
            fix="dcnr-app up",
        ) from error
    if as_json:
        write_json(msgspec.to_builtins(done))
    elif done.error:
        say(f"error: {done.error}")
    else:
        write_text(f"session {done.session} is {done.status} at step {done.step} of {done.steps}")
    return done.exit_code


def _follow(client: AgentClient, *, quiet: bool) -> SessionView:
    told: tuple[str, ...] = ()
    told_s = 0.0
    while True:
        now = client.get("session", SessionView)
        if not quiet:
            for line in _fresh(told, now.events):
                say(line)
            if now.step and time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                loss = "n/a" if now.loss is None else f"{now.loss:.4f}"
                say(f"step {now.step}/{now.steps}  loss {loss}")
        told = now.events
        if now.status not in ("starting", "running"):
            return now
        time.sleep(_POLL_S)


def _fresh(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Lines that came since: only the newest are kept, so the old ones are found by their overlap."""
    for n_common in range(min(len(before), len(now)), -1, -1):
        if before[len(before) - n_common :] == now[:n_common]:
            return now[n_common:]
    return now
