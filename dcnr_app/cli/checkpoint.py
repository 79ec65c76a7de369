"""`dcnr-app checkpoint`: list, verify and remove checkpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import (
    json_option,
    path_text,
    say,
    show_bytes,
    show_time,
    table,
    write_json,
    write_text,
)
from dcnr_app.errors import RefusedError, StoreError, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from dcnr_app.app import App
    from dcnr_app.store.shelf import CheckpointEntry


@click.group("checkpoint", epilog="Example: dcnr-app checkpoint verify latest")
def command() -> None:
    """List, verify and remove checkpoints. CHECKPOINT is an id, `latest` or a folder's path."""


@command.command("ls", epilog="Example: dcnr-app checkpoint ls --session latest")
@click.option("--session", help="Only those of this session (id or `latest`).")
@json_option
def list_command(session: str | None, *, as_json: bool) -> None:
    """List the checkpoints, oldest first, those of a session together."""
    from dcnr_app.app import App
    from dcnr_app.store.shelf import list_checkpoints

    app = App()
    found = list_checkpoints(app.home, None if session is None else _session_id(app, session))
    entries = [_form(entry) for entry in found]
    if as_json:
        write_json(entries)
    elif entries:
        columns = ("checkpoint", ">step", ">size", "written", "")
        rows = [
            (e["id"], e["step"], show_bytes(e["bytes"]), show_time(e["created_ms"]), e["problem"])
            if e["bytes"]
            else (e["id"], e["step"], "", "", e["problem"])
            for e in entries
        ]
        write_text(table(columns, rows))
    else:
        say("there is no checkpoint yet; train first: dcnr-app demo")


@command.command("verify", epilog="Example: dcnr-app checkpoint verify latest --json")
@click.argument("checkpoint")
@json_option
def verify_command(checkpoint: str, *, as_json: bool) -> None:
    """Compare every file of CHECKPOINT with its hash, and its tensors with its network's.

    Exit code 1 if something differs.
    """
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_checkpoint, one_line
    from dcnr_app.fitness import check_fit
    from dcnr_app.store.checkpoints import verify_checkpoint

    app = App()
    found = find_checkpoint(app, checkpoint)
    for passed in found.passed_over:
        say(f"passed over {passed.id}: {passed.why}")
    place = {"path": path_text(found.path)}
    try:
        manifest = verify_checkpoint(found.path)
        check_fit(found.path, app.registry)
    except (StoreError, OSError) as error:
        told = error if isinstance(error, StoreError) else _unreadable(found.path, error)
        if as_json:
            write_json({**place, "ok": False, "problem": one_line(told)})
        raise told from error
    facts = manifest.facts
    if as_json:
        counts = {"files": len(manifest.files), "bytes": manifest.n_bytes}
        write_json(
            {"session": facts.session, "step": facts.step, **place, "ok": True, "problem": "", **counts}
        )
    else:
        write_text(
            f"{facts.session}.{facts.step} is whole: {len(manifest.files)} files, "
            f"{show_bytes(manifest.n_bytes)}, all as their hashes say"
        )


@command.command("rm", epilog="Example: dcnr-app checkpoint rm s-20261130-224501-ab12.120 --yes")
@click.argument("checkpoint", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_command(checkpoint: str, *, yes: bool) -> None:
    """Remove the checkpoint ID."""
    from dcnr_app.app import App
    from dcnr_app.store.lock import HomeLock
    from dcnr_app.store.shelf import remove_checkpoint

    app = App()
    entry = _by_id(app, checkpoint)
    if not yes:
        # None where the caller closed it before the start, closed where it was closed since.
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            raise RefusedError(
                f"checkpoint {checkpoint} was not removed", why="nobody can be asked here", fix="add --yes"
            )
        if not click.confirm(f"Remove checkpoint {checkpoint} at {entry.path}?", err=True):
            raise RefusedError(f"checkpoint {checkpoint} was not removed", why="you said no")
    with HomeLock(app.home, f"removing checkpoint {checkpoint}"):
        remove_checkpoint(app.home, checkpoint)
    say(f"removed {checkpoint}")


def _session_id(app: App, text: str) -> str:
    """The session's id, also of one whose record is gone while its checkpoints are still here."""
    from dcnr_app.cli.lookup import find_session, reading
    from dcnr_app.ids import check_id
    from dcnr_app.store.shelf import list_checkpoints

    if text != "latest" and list_checkpoints(app.home, check_id(text, "session")):
        return text
    with reading(app) as store:
        return find_session(store, text).session


def _by_id(app: App, name: str) -> CheckpointEntry:
    """The checkpoint with exactly this id; `latest` or a path would be too easy to get wrong. Raises
    UserError."""
    from dcnr_app.nodes.graph.spelling import did_you_mean
    from dcnr_app.store.shelf import list_checkpoints

    entries = list_checkpoints(app.home)
    for entry in entries:
        if entry.id == name:
            return entry
    known = did_you_mean(name, [entry.id for entry in reversed(entries)])
    raise UserError(
        f"there is no checkpoint {name!r}",
        why="only an id names what is removed, as `dcnr-app checkpoint ls` prints it",
        fix=known,
    )


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        "the checkpoint cannot be read", where=path_text(path), why=error.strerror or str(error)
    )


def _form(entry: CheckpointEntry) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "id": entry.id,
        "session": entry.session,
        "step": entry.step,
        "path": path_text(entry.path),
        "bytes": manifest.n_bytes if manifest else 0,
        "created_ms": manifest.facts.created_ms if manifest else 0,
        "network": manifest.facts.network if manifest else "",
        "problem": entry.problem,
    }
