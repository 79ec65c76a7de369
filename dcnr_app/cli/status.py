"""`dcnr-app status`, and what `dcnr-app` without arguments says: what runs here, what ran last, what to do
next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dcnr_app.cli.output import json_option, path_text, write_text

if TYPE_CHECKING:
    from dcnr_app.settings import Home
    from dcnr_app.store.sessions import SessionRecord
    from dcnr_app.ui.local_api import StatusView


@click.command("status", epilog="Example: dcnr-app status --json")
@json_option
def command(*, as_json: bool) -> None:
    """Show what this machine is in its cluster and what it does. Exit code 3: no agent runs here."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import write_json
    from dcnr_app.ui.local_api import StatusView

    found = AgentClient.find(App().home).get("status", StatusView)
    if as_json:
        write_json(msgspec.to_builtins(found))
    else:
        write_text(status_text(found))


def status_text(found: StatusView) -> str:
    """An agent's status for a person."""
    from dcnr_app.cli.output import pairs

    place = f"{found.role} of {found.cluster_name!r}" if found.role != "none" else "in no cluster"
    shown = {
        "machine": f"{found.name} ({found.machine}), {place}",
        "PNode": found.pnode or "none outside a cluster",
        "machines": f"{found.n_live} of {found.n_machines} there" if found.n_machines else "n/a",
        "addresses": f"{' '.join(found.addresses)}, front door on port {found.front_door_port}",
        "session": found.session or "none",
        "process": f"{found.pid}, dcnr-app {found.version}",
    }
    if found.n_pending:
        shown["waiting"] = f"{found.n_pending} to join: dcnr-app admit"
    notes = [*found.notices, *([found.silence] if found.silence else [])]
    return "\n".join([pairs(shown), *(f"note: {note}" for note in notes)])


def _agent_line(home: Home) -> str:
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.errors import DcnrError
    from dcnr_app.ui.local_api import StatusView

    try:
        found = AgentClient.find(home).get("status", StatusView)
    except DcnrError:
        return "agent: none; `dcnr-app up` lets this machine work with others"
    place = f"{found.role} of {found.cluster_name!r}" if found.role != "none" else "in no cluster"
    return f"agent: process {found.pid}, {place}, {found.n_live} of {found.n_machines} machines there"


def show_status() -> None:
    """Print the state of this home and the next commands. Reads only."""
    from dcnr_app import __version__
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import as_seen_now, reading
    from dcnr_app.store.lock import holder
    from dcnr_app.store.sessions import committed_step, list_sessions

    app = App()
    found = holder(app.home)
    with reading(app) as store:
        records = list_sessions(store)
        last = as_seen_now(app.home, records[-1]) if records else None
        step = committed_step(store, last.session) if last else 0
    lines = [f"dcnr-app {__version__}, home {path_text(app.home.root)}"]
    lines.append(f"running: process {found.pid}, {found.doing}" if found else "running: nothing")
    lines.append(_agent_line(app.home))
    if last is not None:
        lines.append(
            f"last session: {last.session} ({last.network_name}), {last.status} at step {step} "
            f"of {last.settings.get('steps', 'unknown')}"
        )
    write_text("\n".join(lines))
    width = max(len(verb) for verb, _ in _next(last))
    steps = "\n".join(f"  {verb.ljust(width)}  {what}" for verb, what in _next(last))
    write_text(f"\nnext:\n{steps}")


def _next(last: SessionRecord | None) -> list[tuple[str, str]]:
    if last is None:
        return [
            ("dcnr-app demo", "train a small model on this machine"),
            ("dcnr-app network ls", "the networks that are there"),
            ("dcnr-app --help", "all commands"),
        ]
    if last.status == "running":
        return [
            (f"dcnr-app monitor {last.session}", "follow it as JSON lines"),
            (f"dcnr-app session show {last.session}", "its losses and settings"),
            (f"dcnr-app session stop {last.session}", "stop it with a checkpoint"),
        ]
    first = (
        ('dcnr-app generate latest --prompt "def "', "write text with it")
        if last.status == "finished"
        else (f"dcnr-app session resume {last.session}", "go on with it")
    )
    return [
        first,
        (f"dcnr-app session show {last.session}", "its losses and settings"),
        ("dcnr-app --help", "all commands"),
    ]
