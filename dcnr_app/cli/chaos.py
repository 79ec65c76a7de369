"""`dcnr-app chaos`: train on this machine while processes are killed, and report what came of it."""

from __future__ import annotations

from typing import Any

import click

from dcnr_app.cli.output import finite


@click.command("chaos", epilog="Example: dcnr-app chaos --minutes 2 --every 20")
@click.option(
    "--minutes",
    type=click.FloatRange(0.0, 10_000.0, min_open=True),
    callback=finite,
    default=3.0,
    show_default=True,
    help="How long the disturbed run lasts. The undisturbed one has as many steps.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(1.0, 86_400.0),
    callback=finite,
    default=30.0,
    show_default=True,
    help="Seconds from one fault to the next.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Worker processes.")
@click.option("--network", default="tiny-gpt", show_default=True, help="A network's name or its file.")
@click.option(
    "--data",
    multiple=True,
    help="Text: file, folder or glob; may be repeated. [default: Python's own source]",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of faults and of training."
)
@click.option("--kinds", default="", help="Kinds of faults, with commas in between. [default: all]")
@click.option("--home", "folder", help="Work here, and keep it. [default: DCNR_HOME, or a folder that goes]")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    minutes: float,
    every_s: float,
    folder: str | None,
    kinds: str,
    *,
    as_json: bool,
    **training: Any,
) -> None:
    """Train while processes are killed or stand still, and report what it did.

    The real app trains on worker processes of this machine. Faults come from outside, at chosen times, to
    processes drawn by chance. Then the same steps are trained undisturbed, and both are compared bit for bit.

    \b
    kill, kill-two   worker processes are killed; the app starts them again
    stop             a worker stands still until it is given up
    stop-short       a worker stands still for 2 s, which must be forgiven
    pause-all        all processes stand still for 2 s, which must be forgiven
    orchestrator     the session's process is killed; the session is resumed

    Exit code 1 if anything hung, failed, was lost or counted twice, or if the losses differ.
    """
    from dcnr_app.chaos.faults import parse_kinds
    from dcnr_app.chaos.report_card import is_passed
    from dcnr_app.cli.chaos_run import ChaosSettings, run_chaos, show_card
    from dcnr_app.cli.output import write_json

    settings = ChaosSettings(
        duration_s=60.0 * minutes, every_s=every_s, kinds=parse_kinds(kinds), folder=folder or "", **training
    )
    card = run_chaos(settings, is_quiet=as_json)
    if as_json:
        write_json(card)
    else:
        show_card(card)
    ctx.exit(0 if is_passed(card) else 1)
