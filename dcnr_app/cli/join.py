"""`dcnr-app join`: take this machine into a cluster."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import json_option, say

if TYPE_CHECKING:
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.ui.local_api import JoiningView

_POLL_S = 0.2


@click.command("join", epilog="Example: dcnr-app join 192.168.1.20 --code 123-456")
@click.argument("target", default="")
@click.option("--code", default="", help="The code that `dcnr-app invite --code` shows on the orchestrator.")
@click.option(
    "--answer",
    type=click.Choice(["match", "mismatch", "cancel"]),
    help="Answer for an attempt that is under way, where no terminal can ask.",
)
@click.option("--yes", is_flag=True, help="Do not ask whether the digits are the same: who admits, looks.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, target: str, code: str, answer: str | None, *, yes: bool, as_json: bool
) -> None:
    """Join the cluster TARGET: its name or a machine's, HOST[:PORT], or an invite link in quotes.

    Without TARGET: the only cluster that is heard. Both screens then show six digits; if they are the same,
    say so here, and admit this machine there.
    """
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import write_json
    from dcnr_app.errors import UnreachableError
    from dcnr_app.ui.local_api import JoiningView

    client = AgentClient.find(App().home)
    if answer:
        client.post("answer", JoiningView, verdict=answer)
    else:
        client.post("join", JoiningView, target=target, code=code)
    try:
        can_ask = not as_json and sys.stdin is not None and sys.stdin.isatty()
        done = _follow(client, has_answered=bool(answer), can_ask=can_ask, yes=yes)
    except (KeyboardInterrupt, click.Abort):
        _cancel(client)
        raise
    if done.step == "none":
        raise UnreachableError(
            "the attempt to join is over", why="the agent was restarted", fix="dcnr-app join"
        )
    if as_json:
        write_json(msgspec.to_builtins(done))
    elif done.step == "joined":
        say(f"this machine is in the cluster {done.cluster_name!r} of {done.orchestrator}")
    elif done.step == "comparing":
        say("then, on this machine: dcnr-app join --answer match    (or mismatch, or cancel)")
    else:
        say(f"error: {done.error}")
    ctx.exit(done.exit_code)


def _cancel(client: AgentClient) -> None:
    from dcnr_app.errors import DcnrError
    from dcnr_app.ui.local_api import JoiningView

    try:
        client.post("answer", JoiningView, verdict="cancel")
    except DcnrError as error:  # told only: the person's Ctrl-C decides how the command ends
        say(f"not cancelled: {error}")


def _follow(client: AgentClient, *, has_answered: bool, can_ask: bool, yes: bool) -> JoiningView:
    """Wait for the end; ask for the digits in between, or return to have them answered by another call."""
    from dcnr_app.ui.local_api import JoiningView

    is_told = False
    while True:
        now = client.get("joining", JoiningView)
        if now.step in ("joined", "failed", "none"):
            return now
        if now.step == "comparing" and not has_answered:
            say(f"\n    {now.digits[:3]} {now.digits[3:]}\n")
            say(
                f"{now.orchestrator} at {now.place}, cluster {now.cluster_name!r}, must show the same digits."
            )
            if not can_ask and not yes:
                return now
            is_same = yes or click.confirm("are they the same?", err=True)
            client.post("answer", JoiningView, verdict="match" if is_same else "mismatch")
            has_answered = True
        if now.step == "waiting" and not is_told:
            is_told = True
            say(f"waiting until {now.orchestrator} admits this machine (dcnr-app admit {now.digits})")
        time.sleep(_POLL_S)
