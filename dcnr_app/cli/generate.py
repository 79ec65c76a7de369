"""`dcnr-app generate`: text from a checkpoint."""

from __future__ import annotations

import click

from dcnr_app.cli.output import finite, json_option, path_text, say, write_json, write_text

_LARGEST_TEMPERATURE = 1000.0
# Below this the likeliest token is chosen anyway, and dividing by it could overflow.
_SMALLEST_TEMPERATURE = 1e-6


@click.command("generate", epilog="Example: dcnr-app generate latest --prompt 'def ' --tokens 100")
@click.argument("checkpoint")
@click.option("--prompt", default="def ", show_default=True, help="What the text begins with.")
@click.option(
    "--tokens",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Tokens to write at most.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0.0, _LARGEST_TEMPERATURE),
    callback=finite,
    default=0.7,
    show_default=True,
    help="0: always the likeliest token; higher: more variety.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the draws."
)
@json_option
def command(
    checkpoint: str, prompt: str, tokens: int, temperature: float, seed: int, *, as_json: bool
) -> None:
    """Write text with CHECKPOINT (an id, `latest` or a folder's path). The same seed gives the same text."""
    from dcnr_app import sessions
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_checkpoint
    from dcnr_app.cli.running import check_prompt
    from dcnr_app.cli.watching import SilentWatcher
    from dcnr_app.cluster.generation import Sampling
    from dcnr_app.errors import UserError
    from dcnr_app.fitness import check_fit

    check_prompt(prompt)
    app = App()
    found = find_checkpoint(app, checkpoint)
    for passed in found.passed_over:
        say(f"passed over {passed.id}: {passed.why}")
    check_fit(found.path, app.registry)
    sampling = Sampling(
        n_tokens=tokens, temperature=0.0 if temperature < _SMALLEST_TEMPERATURE else temperature, seed=seed
    )
    text = sessions.generate(app.workshop(0), found.path, SilentWatcher(), prompt, sampling)
    if not text:
        raise UserError("this network cannot generate", why="it has no `logits` among its outputs")
    if as_json:
        asked = {"prompt": prompt, "tokens": tokens, "temperature": temperature, "seed": seed}
        write_json({"checkpoint": path_text(found.path), **asked, "text": text})
    else:
        write_text(text)
