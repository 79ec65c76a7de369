"""`dcnr-app admit`: let a machine that wants to join into the cluster."""

from __future__ import annotations

import click

from dcnr_app.cli.output import json_option


@click.command("admit", epilog="Example: dcnr-app admit 123456")
@click.argument("machine", default="")
@click.option("--ls", "only_list", is_flag=True, help="Only list who waits.")
@click.option("--yes", is_flag=True, help="Do not ask whether the digits are the same.")
@json_option
def command(machine: str, *, only_list: bool, yes: bool, as_json: bool) -> None:
    """Admit MACHINE (its digits, name or id; without it the only one that waits).

    The digits on both screens must be the same: if they differ, somebody stands in between.
    """
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say, table, write_json, write_text
    from dcnr_app.ui.local_api import PendingView

    client = AgentClient.find(App().home)
    waiting = client.get("pending", list[PendingView])
    if only_list:
        if as_json:
            write_json(msgspec.to_builtins(waiting))
        elif waiting:
            rows = [(p.digits, p.name, p.machine, p.address, p.device, p.step) for p in waiting]
            write_text(table(("digits", "name", "machine", "address", "device", "step"), rows))
        else:
            say("nobody waits to join")
        return
    chosen = [p for p in waiting if p.step == "comparing" and (not machine or machine in _names(p))]
    if len(chosen) == 1 and not yes and not as_json:
        shown = chosen[0]
        say(f"{shown.name} ({shown.device}) at {shown.address} shows the digits  {shown.digits}")
        if shown.note:
            say(shown.note)
        click.confirm("are they the same on its screen?", abort=True, err=True)
    # By its id from here on: another one may have come meanwhile.
    done = client.post("admit", PendingView, machine=chosen[0].machine if len(chosen) == 1 else machine)
    if as_json:
        write_json(msgspec.to_builtins(done))
    elif done.step == "granted":
        say(f"{done.name} is in the cluster")
    else:
        say(f"{done.name} is in the cluster as soon as its user says that the digits match")


def _names(waiting: object) -> tuple[str, ...]:
    from dcnr_app.ui.local_api import PendingView

    if not isinstance(waiting, PendingView):
        return ()
    return (waiting.machine, waiting.name, waiting.digits, f"{waiting.digits[:3]}-{waiting.digits[3:]}")
