"""`dcnr-app pnode`: the cluster's PNodes and their machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import json_option

if TYPE_CHECKING:
    from dcnr_app.ui.local_api import PNodeView


@click.group("pnode", epilog="Example: dcnr-app pnode ls")
def command() -> None:
    """List, show, rename, drain and forget the cluster's PNodes."""


_machine = click.argument("machine")


@command.command("ls", epilog="Example: dcnr-app pnode ls --json")
@json_option
def ls_command(*, as_json: bool) -> None:
    """List all PNodes of the cluster."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say, show_bytes, table, write_json, write_text
    from dcnr_app.ui.local_api import PNodeView

    found = AgentClient.find(App().home).get("pnodes", list[PNodeView])
    if as_json:
        write_json(msgspec.to_builtins(found))
        return
    if not found:
        say("this machine is in no cluster. Join one: dcnr-app join; or: dcnr-app up --role orchestrator")
        return
    rows = [
        (
            p.pnode,
            p.name + (" (here)" if p.is_this_machine else ""),
            p.presence,
            p.state or "n/a",
            "n/a" if p.memory_bytes is None else show_bytes(p.memory_bytes),
            len(p.vnodes),
            p.device or "n/a",
        )
        for p in found
    ]
    write_text(table(("PNode", "machine", "machine is", "state", "memory", "VNodes", "device"), rows))


@command.command("show", epilog="Example: dcnr-app pnode show desk")
@_machine
@json_option
def show_command(machine: str, *, as_json: bool) -> None:
    """Show one PNode: by its id, or its machine's id or name."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import pairs, write_json, write_text
    from dcnr_app.errors import UserError
    from dcnr_app.ui.local_api import PNodeView

    found = AgentClient.find(App().home).get("pnodes", list[PNodeView])
    fits = [p for p in found if machine in (p.pnode, p.machine, p.name)]
    if len(fits) != 1:
        raise UserError(
            f"{'several PNodes are' if fits else 'no PNode is'} called {machine!r}", fix="dcnr-app pnode ls"
        )
    if as_json:
        write_json(msgspec.to_builtins(fits[0]))
    else:
        write_text(pairs(_shown(fits[0])))


def _shown(found: PNodeView) -> dict[str, str]:
    """A PNode for a person."""
    from dcnr_app.cli.output import show_bytes

    def size(n_bytes: int | None) -> str:
        return "n/a" if n_bytes is None else show_bytes(n_bytes)

    facts = found.device_facts or {}
    rates = [f"{dtype} {flops / 1e9:.1f} GFLOP/s" for dtype, flops in facts.get("gemm_flops", {}).items()]
    return {
        "PNode": found.pnode,
        "machine": f"{found.name} ({found.machine}){', this one' if found.is_this_machine else ''}",
        "machine is": found.presence,
        "state": f"{found.state or 'n/a'}{f', {found.why}' if found.why else ''}",
        "address": found.address or "n/a",
        "process": "n/a" if found.pid is None else str(found.pid),
        "memory": f"{size(found.memory_bytes)} taken, {size(found.free_memory_bytes)} free",
        "owner lends": found.limits or "everything",
        "device": found.device or "n/a",
        "measured": ", ".join(rates) or "n/a",
        "VNodes": ", ".join(found.vnodes) or "none",
    }


@command.command("rename", epilog="Example: dcnr-app pnode rename 3f2a90b1c4d5e6f7 desk")
@_machine
@click.argument("name")
def rename_command(machine: str, name: str) -> None:
    """Give MACHINE another NAME."""
    _tell("rename", f"{machine} is called {name!r} now", machine=machine, name=name)


@command.command("drain", epilog="Example: dcnr-app pnode drain desk")
@_machine
def drain_command(machine: str) -> None:
    """Move what MACHINE holds to others at a step boundary, and use it no more until the orchestrator's
    agent starts again. Waits until it is done."""
    _tell("drain", f"{machine} holds nothing any more: it can be switched off", machine=machine)


@command.command("forget", epilog="Example: dcnr-app pnode forget desk --yes")
@_machine
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget_command(machine: str, *, yes: bool) -> None:
    """Take MACHINE out of the cluster at once. It can come back only by joining again."""
    if not yes:
        click.confirm(f"take {machine} out of the cluster?", abort=True, err=True)
    _tell("forget", f"{machine} is out of the cluster", machine=machine)


@command.command("leave", epilog="Example: dcnr-app pnode leave --yes")
@click.option("--yes", is_flag=True, help="Do not ask.")
def leave_command(*, yes: bool) -> None:
    """Take this machine out of its cluster. On the orchestrator that ends the cluster."""
    if not yes:
        click.confirm("leave the cluster?", abort=True, err=True)
    _tell("leave", "this machine is in no cluster any more")


def _tell(verb: str, done: str, **body: str) -> None:
    from typing import Any

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say

    AgentClient.find(App().home).post(verb, dict[str, Any], **body)
    say(done)
