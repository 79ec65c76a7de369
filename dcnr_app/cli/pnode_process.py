"""The hidden command that a PNode process is: it reads its bootstrap from stdin."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import click


@click.command("pnode-process", hidden=True)
def command() -> None:
    """Serve as a PNode until the parent's pipe closes. Started by an orchestrator, never by hand."""
    from dcnr_app.failpoints import parse
    from dcnr_app.settings import failpoint_text, trace_handshakes

    is_traced = trace_handshakes()  # before gRPC is loaded, which the following does
    from dcnr_app.app import App, make_backend
    from dcnr_app.cluster.grpc_refusals import refusals_logged
    from dcnr_app.cluster.pnode_process import Parts, run_pnode_process

    app = App()
    parts = Parts(app.registry, make_backend, app.clock, parse(failpoint_text()))
    with refusals_logged() if is_traced else nullcontext():
        run_pnode_process(sys.stdin.buffer, sys.stdout.buffer, parts)
