"""`dcnr-app version`: this app, its Python and its libraries."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from dcnr_app import __version__
from dcnr_app.cli.output import json_option, pairs, write_json, write_text

_LIBRARIES = ("numpy", "grpcio", "tokenizers", "tiktoken", "safetensors", "msgspec", "click")


@click.command("version", epilog="Example: dcnr-app version --json")
@json_option
def command(*, as_json: bool) -> None:
    """Show the version of this app, of Python and of the libraries that matter for a report."""
    libraries = {name: metadata.version(name) for name in _LIBRARIES}
    found = {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    if as_json:
        write_json({**found, "libraries": libraries})
    else:
        names = {"dcnr-app": found["version"], "python": found["python"], "system": found["system"]}
        write_text(pairs({**names, **libraries}))
