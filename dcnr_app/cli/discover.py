"""`dcnr-app discover`: machines heard on the local network."""

from __future__ import annotations

import click

from dcnr_app.cli.output import json_option


@click.command("discover", epilog="Example: dcnr-app discover --json")
@json_option
def command(*, as_json: bool) -> None:
    """List the machines that this machine's agent hears, and their clusters."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say, table, write_json, write_text
    from dcnr_app.ui.local_api import NeighbourView, StatusView

    client = AgentClient.find(App().home)
    found = client.get("neighbours", list[NeighbourView])
    if as_json:
        write_json(msgspec.to_builtins(found))
        return
    if not found:
        silence = client.get("status", StatusView).silence
        say(f"nobody is heard. {silence or 'Machines that have just started take a few seconds.'}")
        return
    rows = [
        (n.name, n.cluster_name or "-", n.role, n.presence, n.device, " ".join(n.addresses)) for n in found
    ]
    write_text(table(("machine", "cluster", "role", "state", "device", "addresses"), rows))
