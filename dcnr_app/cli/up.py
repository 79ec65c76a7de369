"""`dcnr-app up`: this machine's agent, in the foreground or as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dcnr_app.app import App

_START_S = 30.0
_POLL_S = 0.1


@click.command("up", epilog="Example: dcnr-app up --role orchestrator --name home --detach")
@click.option(
    "--role",
    type=click.Choice(["auto", "orchestrator", "worker"]),
    default="auto",
    show_default=True,
    help="orchestrator: start a cluster here if this machine is in none. worker: wait to join one.",
)
@click.option("--name", default="", help="Name of the cluster that is started. [default: by the machine]")
@click.option("--headless", is_flag=True, help="Say nothing but warnings.")
@click.option("--detach", is_flag=True, help="Run as a process of its own and return when it is up.")
@click.option("--loopback", is_flag=True, help="Stay on this machine: for trying out, and several at once.")
def command(role: str, name: str, *, headless: bool, detach: bool, loopback: bool) -> None:
    """Run this machine's agent: it is found by others, joins, trains, and keeps its PNodes up.

    It runs until Ctrl-C, SIGTERM or `dcnr-app down`. A session that runs then goes on at the next `up`.
    """
    from dcnr_app.settings import trace_handshakes

    is_traced = trace_handshakes()  # before gRPC is loaded, which the following does
    from dcnr_app.app import App
    from dcnr_app.cluster.agent_file import held_by_agent
    from dcnr_app.cluster.grpc_refusals import refusals_logged
    from dcnr_app.cluster.open_files import allow_open_files

    app = App()
    app.home.ensure()
    if detach:
        with held_by_agent(app.home):
            pass  # refused here, in words, and not in the other process's log
        _detach(app, ["--role", role, "--name", name, *(["--loopback"] if loopback else [])])
        return
    allow_open_files()
    with refusals_logged() if is_traced else nullcontext():
        _log(is_headless=headless)
        with held_by_agent(app.home):
            agent = app.agent(starts_cluster=role == "orchestrator", cluster_name=name, is_loopback=loopback)
            _check_role(role, agent.files.load_cluster())
        app.run_agent(agent)


def _check_role(role: str, own: object) -> None:
    from dcnr_app.cluster.cluster_files import OwnCluster
    from dcnr_app.errors import RefusedError

    if isinstance(own, OwnCluster) and role not in ("auto", own.role):
        raise RefusedError(
            f"this machine is the {own.role} of the cluster {own.name!r}",
            fix=f"dcnr-app up --role {own.role}, or leave it first: dcnr-app pnode leave",
        )


def _log(*, is_headless: bool) -> None:
    import logging

    from dcnr_app.cli.output import printable

    class Plain(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Plain("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("dcnr_app")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if is_headless else logging.INFO)


def _detach(app: App, options: list[str]) -> None:
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cli.output import say
    from dcnr_app.cli.status import status_text
    from dcnr_app.errors import DcnrError, UnreachableError
    from dcnr_app.settings import environment_of
    from dcnr_app.ui.local_api import StatusView

    log = app.home.root / "cluster" / "agent.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-m", "dcnr_app", "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=environment_of(app.home),
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            say(status_text(AgentClient.find(app.home).get("status", StatusView)))
            return
        except DcnrError:
            time.sleep(_POLL_S)
    raise UnreachableError(
        "dcnr-app did not start", where=str(log), why=log.read_text(errors="replace")[-600:]
    )
