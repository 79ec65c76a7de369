"""`dcnr-app session`: list, show, resume, stop and audit training sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import finite, json_option, pairs, say, show_time, table, write_json, write_text

if TYPE_CHECKING:
    from dcnr_app.settings import Home
    from dcnr_app.store.sessions import SessionRecord
    from dcnr_app.store.store import Store

_session_argument = click.argument("session", metavar="SESSION")


@click.group("session", epilog="Example: dcnr-app session resume latest")
def command() -> None:
    """List, show, resume and stop training sessions. SESSION is an id or `latest`."""


@command.command("ls", epilog="Example: dcnr-app session ls --json")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the sessions, oldest first. A record that cannot be read is named on stderr, with the reason."""
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import reading
    from dcnr_app.store.sessions import read_sessions

    app = App()
    with reading(app) as store:
        listing = read_sessions(store)
        entries = [_summary(app.home, store, record) for record in listing.records]
    for unreadable in listing.unreadable:
        say(f"left out: {unreadable.error}")
    if as_json:
        write_json(entries)
    elif entries:
        columns = ("session", "status", ">step", ">of", "network", "dataset", "started")
        names = ("session", "status", "step", "steps", "network_name", "dataset")
        rows = [
            (*("unknown" if e[name] is None else e[name] for name in names), show_time(e["created_ms"]))
            for e in entries
        ]
        write_text(table(columns, rows))
    elif not listing.unreadable:
        say("there is no session yet; start one: dcnr-app demo")


@command.command("show", epilog="Example: dcnr-app session show latest --json")
@_session_argument
@json_option
def show_command(session: str, *, as_json: bool) -> None:
    """Show SESSION: status, step, losses, settings, checkpoints."""
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_session, reading

    app = App()
    with reading(app) as store:
        entry = _details(app.home, store, find_session(store, session))
    if as_json:
        write_json(entry)
        return
    settings = {f"  {name}": _setting(value) for name, value in entry["settings"].items()}
    validation = ", ".join(f"{loss:.4f} at step {step}" for step, loss in entry["validation"][-3:])
    shown = {
        "session": entry["session"],
        "status": f"{entry['status']} at step {entry['step']} of {entry['steps'] or 'unknown'}",
        "started": show_time(entry["created_ms"]),
        "network": f"{entry['network_name']} (id {entry['network']})",
        "dataset": entry["dataset"],
        "loss": _loss_text(entry["loss"], entry["step"]),
        "validation": validation or "none yet",
        "PNodes": ", ".join(entry["workers"]),
        "device class": entry["device_class"] or "not known yet",
        "process": entry["pid"],
        "runs": entry["runs"],
        "checkpoints": ", ".join(entry["checkpoints"]) or "none",
        "settings": "",
        **settings,
    }
    write_text(pairs(shown))
    if entry["problem"]:
        say(entry["problem"])
    if entry["status"] in ("interrupted", "stopped", "failed"):
        say(f"go on with: dcnr-app session resume {entry['session']}")


@command.command("resume", epilog="Example: dcnr-app session resume latest --workers 2")
@_session_argument
@click.option("--workers", type=click.IntRange(0, 64), help="Worker processes. [default: as many as before]")
@click.option("--prompt", default="def ", show_default=True, help="What the sample at the end begins with.")
@click.option("--cluster", "on_cluster", is_flag=True, help="Go on on the cluster of this machine's agent.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.pass_context
def resume_command(
    ctx: click.Context, session: str, workers: int | None, prompt: str, *, on_cluster: bool, as_json: bool
) -> None:
    """Go on with SESSION from its newest checkpoint; steps since then are replayed to the same losses."""
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_session, reading
    from dcnr_app.cli.running import run_session_command
    from dcnr_app.sessions import settings_of

    app = App()
    with reading(app) as store:
        record = find_session(store, session)
    settings_of(record)
    if on_cluster:
        from dcnr_app.cli.cluster_run import run_on_cluster

        request = {"session": record.session, "prompt": prompt}
        ctx.exit(run_on_cluster(app.home, request, as_json=as_json))
    ctx.exit(run_session_command(app, record, n_workers=workers, as_json=as_json, prompt=prompt))


@command.command("stop", epilog="Example: dcnr-app session stop latest")
@_session_argument
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.0, 86_400.0),
    callback=finite,
    default=60.0,
    show_default=True,
    help="Seconds to wait for the end.",
)
@json_option
@click.pass_context
def stop_command(ctx: click.Context, session: str, timeout_s: float, *, as_json: bool) -> None:
    """Ask SESSION to stop at its next step, with a checkpoint, and wait until it has.

    Exit code 3: it does not run; 4: it did not stop in time.
    """
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_session, reading
    from dcnr_app.cli.stopping import stop_session

    app = App()
    with reading(app) as store:
        record = stop_session(app, store, find_session(store, session), timeout_s)
        entry = _summary(app.home, store, record)
    if as_json:
        write_json(entry)
    else:
        write_text(f"session {entry['session']} is {entry['status']} at step {entry['step']}")
    ctx.exit(0 if entry["status"] in ("stopped", "finished") else 1)


@command.command("ledger", epilog="Example: dcnr-app session ledger latest --json")
@_session_argument
@json_option
@click.pass_context
def ledger_command(ctx: click.Context, session: str, *, as_json: bool) -> None:
    """Prove from SESSION's ledger that each sample was counted exactly once. Exit code 1 if one was not."""
    from dcnr_app.app import App
    from dcnr_app.cli.auditing import audit_session
    from dcnr_app.cli.lookup import find_session, reading

    app = App()
    with reading(app) as store:
        found = audit_session(app, store, find_session(store, session))
    if as_json:
        write_json(found)
    else:
        write_text(
            f"steps 1 to {found['step']}: {found['samples']} samples counted, {found['lost']} lost, "
            f"{found['twice']} twice, {found['skipped']} skipped"
        )
    ctx.exit(1 if found["lost"] or found["twice"] else 0)


def _loss_text(loss: float | None, step: int) -> str:
    if loss is not None:
        return f"{loss:.4f} nats per token"
    return f"none at step {step}" if step else "none yet"


def _setting(value: object) -> object:
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value


def _summary(home: Home, store: Store, record: SessionRecord) -> dict[str, Any]:
    """What `ls` shows of a session. `step` is the newest committed one, `steps` the goal."""
    from dcnr_app.cli.lookup import as_seen_now
    from dcnr_app.store.sessions import committed_step

    return {
        "session": record.session,
        "status": as_seen_now(home, record).status,
        "step": committed_step(store, record.session),
        "steps": record.settings.get("steps"),
        "created_ms": record.created_ms,
        "network": record.network,
        "network_name": record.network_name,
        "dataset": record.dataset,
        "workers": record.workers,
        "pid": record.pid,
    }


def _details(home: Home, store: Store, record: SessionRecord) -> dict[str, Any]:
    """What `show` shows. `loss` is the newest step's, null where it was skipped or its row cannot be read."""
    from dcnr_app.cluster.journal import read_validations
    from dcnr_app.store.shelf import list_checkpoints

    loss, problem = _newest_loss(store, record.session)
    validations = read_validations(store, record.session)
    return {
        **_summary(home, store, record),
        "tokenizer": record.tokenizer,
        "device_class": record.device_class,
        "loss": loss,
        "problem": problem,
        "validation": [[step, validations[step]] for step in sorted(validations)],
        "runs": len(store.read(f"session/{record.session}")),
        "checkpoints": [entry.id for entry in list_checkpoints(home, record.session)],
        "settings": dict(record.settings),
    }


def _newest_loss(store: Store, session: str) -> tuple[float | None, str]:
    """(loss of the newest committed step, why it is not known): no older row is decoded for it."""
    import msgspec

    from dcnr_app.cluster.decision import Decision

    step, body = max(store.commits(session), default=(0, b""))
    if not step:
        return None, ""
    try:
        decision = msgspec.json.decode(body, type=Decision)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, f"the commit row of step {step} cannot be read: {error}"
    return (None, f"step {step} was skipped") if decision.skip else (decision.loss, "")
