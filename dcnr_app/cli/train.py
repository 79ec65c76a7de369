"""`dcnr-app train`: train a network on a prepared dataset."""

from __future__ import annotations

from pathlib import Path

import click

from dcnr_app.cli.output import finite


@click.command("train", epilog="Example: dcnr-app train tiny-gpt --dataset latest --workers 2 --steps 400")
@click.argument("network")
@click.option("--dataset", required=True, help="A dataset's id, the beginning of it, or `latest`.")
@click.option(
    "--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="Worker processes; 0: none."
)
@click.option("--steps", type=click.IntRange(1), help="Optimizer updates.")
@click.option("--batch", type=click.IntRange(1), help="Sequences per update.")
@click.option("--microbatches", type=click.IntRange(1), help="Equal parts into which a batch is cut.")
@click.option(
    "--lr", type=click.FloatRange(0.0, 1e30, min_open=True), callback=finite, help="Peak learning rate."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of parameters and batches.")
@click.option("--precision", type=click.Choice(["float32"]), help="Number format of compute.")
@click.option("--prompt", default="def ", show_default=True, help="What the sample at the end begins with.")
@click.option(
    "--cluster",
    "on_cluster",
    is_flag=True,
    help="Train on the cluster of this machine's agent, instead of worker processes of this machine.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    network: str,
    dataset: str,
    workers: int,
    prompt: str,
    *,
    on_cluster: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Train NETWORK (a name or a .yaml file) on a dataset. Flags override the file's `training:` section."""
    from dcnr_app.app import App
    from dcnr_app.cli.running import start_session
    from dcnr_app.nodes.graph.training_form import resolve_training
    from dcnr_app.sessions import Text

    app = App()
    loaded = app.network(network)
    flags["learning_rate"] = flags.pop("lr")
    if on_cluster:
        from dcnr_app.cli.cluster_run import run_on_cluster

        place = str(Path(network).resolve()) if Path(network).is_file() else network
        given = {name: value for name, value in flags.items() if value is not None}
        request = {"network": place, "dataset": dataset, "settings": given, "prompt": prompt}
        ctx.exit(run_on_cluster(app.home, request, as_json=as_json))
    settings = resolve_training(loaded.training, **flags)
    found, tokenizer = app.dataset(dataset)
    code = start_session(
        app,
        loaded,
        settings,
        lambda _: Text(found, tokenizer),
        n_workers=workers,
        as_json=as_json,
        prompt=prompt,
    )
    ctx.exit(code)
