"""`dcnr-app reject`: keep a machine that wants to join out."""

from __future__ import annotations

import click


@click.command("reject", epilog="Example: dcnr-app reject 123456")
@click.argument("machine", default="")
def command(machine: str) -> None:
    """Reject MACHINE (its digits, name or id; without it the only one that waits)."""
    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say
    from dcnr_app.ui.local_api import PendingView

    done = AgentClient.find(App().home).post("reject", PendingView, machine=machine)
    say(f"{done.name} was rejected")
