"""`dcnr-app paths`: where everything is kept. Creates nothing."""

from __future__ import annotations

import click

from dcnr_app.cli.output import json_option, pairs, path_text, write_json, write_text


@click.command("paths", epilog="Example: dcnr-app paths --json")
@json_option
def command(*, as_json: bool) -> None:
    """Show where everything is kept. The environment variable DCNR_HOME moves all of it."""
    from dcnr_app.settings import asset_path, find_home

    home = find_home()
    found = {
        "home": home.root,
        "sessions": home.sessions,
        "datasets": home.datasets,
        "tokenizers": home.tokenizers,
        "networks": home.networks,
        "bundled_networks": asset_path("networks"),
        "control": home.control,
        "metrics": home.metrics,
        "lock": home.lock,
    }
    shown = {name: path_text(path) for name, path in found.items()}
    if as_json:
        write_json(shown)
    else:
        write_text(pairs(shown))
