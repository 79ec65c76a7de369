"""What `dcnr-app` without arguments says: what runs here, what ran last, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcnr_app.cli.output import path_text, write_text

if TYPE_CHECKING:
    from dcnr_app.store.sessions import SessionRecord


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
