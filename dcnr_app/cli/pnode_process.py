"""The hidden command that a PNode process is: it reads its bootstrap from stdin."""

from __future__ import annotations

import sys

import click

from dcnr_app.app import App, make_backend
from dcnr_app.cluster.pnode_process import Parts, run_pnode_process
from dcnr_app.failpoints import parse
from dcnr_app.settings import failpoint_text


@click.command("pnode-process", hidden=True)
def command() -> None:
    """Serve as a PNode until the parent's pipe closes. Started by an orchestrator, never by hand."""
    app = App()
    parts = Parts(app.registry, make_backend, app.clock, parse(failpoint_text()))
    run_pnode_process(sys.stdin.buffer, sys.stdout.buffer, parts)
