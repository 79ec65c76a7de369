"""`dcnr-app down`: end this machine's agent."""

from __future__ import annotations

import time

import click

_WAIT_S = 15.0
_POLL_S = 0.05


@click.command("down", epilog="Example: dcnr-app down")
def command() -> None:
    """End this machine's agent and its PNodes. A session that runs goes on at the next `up`.

    Exit code 3: nothing runs here; 4: it did not end in time.
    """
    from typing import Any

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say
    from dcnr_app.errors import DeadlineError

    client = AgentClient.find(App().home)
    client.post("shut-down", dict[str, Any])
    deadline = time.monotonic() + _WAIT_S
    while client.is_running:  # its file goes before it: PNodes are still to end then
        if time.monotonic() > deadline:
            raise DeadlineError(f"process {client.pid} did not end within {_WAIT_S:g} s")
        time.sleep(_POLL_S)
    say(f"process {client.pid} has ended")
