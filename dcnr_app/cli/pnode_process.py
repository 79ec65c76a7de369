"""The hidden command that a PNode process is: it reads its bootstrap from stdin."""

from __future__ import annotations

import sys

import click

from dcnr_app.app import App, make_backend
from dcnr_app.cluster.pnode_process import run_pnode_process


@click.command("pnode-process", hidden=True)
def command() -> None:
    """Serve as a PNode until the parent's pipe closes. Started by an orchestrator, never by hand."""
    app = App()
    run_pnode_process(
        sys.stdin.buffer, sys.stdout.buffer, registry=app.registry, make_backend=make_backend, clock=app.clock
    )
