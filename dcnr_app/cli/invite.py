"""`dcnr-app invite`: a link, its QR code, or a code to type, for one machine."""

from __future__ import annotations

import click

from dcnr_app.cli.output import json_option


@click.command("invite", epilog="Example: dcnr-app invite --code")
@click.option("--code", "with_code", is_flag=True, help="A short code to type instead of a link.")
@click.option("--qr/--no-qr", default=True, show_default=True, help="Show the link as a QR code too.")
@json_option
def command(*, with_code: bool, qr: bool, as_json: bool) -> None:
    """Invite one machine into this machine's cluster. The invite works once and expires."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say, write_json, write_text
    from dcnr_app.ui.local_api import InviteView

    made = AgentClient.find(App().home).post("invite", InviteView, with_code=with_code)
    if as_json:
        write_json(msgspec.to_builtins(made))
        return
    if with_code:
        write_text(f"dcnr-app join {made.host}:{made.port} --code {made.code}")
    else:
        write_text(f"dcnr-app join '{made.link}'")
        if qr:
            say(made.qr)
    say(f"run that on the other machine within {made.expires_s / 60.0:.0f} minutes; it works once")
