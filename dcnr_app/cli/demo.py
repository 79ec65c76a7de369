"""`dcnr-app demo`: from nothing to a trained model and a sample of its text, on this machine."""

from __future__ import annotations

import click


@click.command("demo", epilog="Example: dcnr-app demo --workers 2 --data notes/ --steps 200")
@click.argument("more", nargs=-1, metavar="[PATH]...")
@click.option(
    "--network", "name", default="tiny-gpt", show_default=True, help="A network's name or its file."
)
@click.option(
    "--data",
    multiple=True,
    type=str,
    help="Text: file, folder or glob; may be repeated. [default: Python's own source]",
)
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=2,
    show_default=True,
    help="Worker processes; 0: none, all in this process.",
)
@click.option("--steps", type=click.IntRange(1), help="Optimizer updates. [default: the network's]")
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of parameters and batches. [default: the network's]"
)
@click.option("--prompt", default="def ", show_default=True, help="What the sample begins with.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    more: tuple[str, ...],
    name: str,
    data: tuple[str, ...],
    workers: int,
    steps: int | None,
    seed: int | None,
    prompt: str,
    *,
    as_json: bool,
) -> None:
    """Train a small model on this machine, from nothing to a sample.

    Text is prepared, a tokenizer trained, worker processes started, a transformer trained over them and
    checkpoints written. A second run reuses the prepared text. Ctrl-C stops with a checkpoint.
    """
    from dcnr_app.app import App
    from dcnr_app.cli.running import prepare_text, start_session
    from dcnr_app.nodes.graph.training_form import resolve_training

    if more and not data:
        raise click.UsageError(f"unexpected {more[0]!r}; text is given with --data PATH")
    app = App()
    loaded = app.network(name)
    settings = resolve_training(loaded.training, steps=steps, seed=seed)
    code = start_session(
        app,
        loaded,
        settings,
        lambda report: prepare_text(app, (*data, *more), loaded.vocabulary, report),
        n_workers=workers,
        as_json=as_json,
        prompt=prompt,
    )
    ctx.exit(code)
