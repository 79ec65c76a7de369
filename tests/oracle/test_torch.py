"""tiny-gpt against PyTorch: loss and every gradient of one step, and a session of 20 AdamW steps.

The PyTorch model is the benchmark's peer, so these tests also show that the two train the same network.
"""

# ruff: noqa: E402  # PyTorch is looked for before what needs it is imported

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'dcnr-app[oracle]'")

from benchmarks import peer_torch
from dcnr_app.cluster.decision import learning_rate_at
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.parameters import initial_value
from tests.oracle.running import RandomText, Values, run_whole_session, step_gradients, tiny_gpt

pytestmark = pytest.mark.oracle

GRADIENT_TOLERANCE = 1e-5
"""Of the largest value of each tensor. None needs a floor: a key bias shifts all scores of a row alike and so
has no gradient but for rounding, yet not where keys are rotated, as they are here."""
LOSS_TOLERANCE = 1e-5
SHAPE = peer_torch.Shape(n_layers=3, n_heads=4)


def _as_made(_: str, value: np.ndarray) -> np.ndarray:
    return value


def _moved(name: str, value: np.ndarray) -> np.ndarray:
    # Biases and gains away from 0 and 1, attention away from the plain mean.
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(value.shape)
    return (value + 0.05 * noise).astype(np.float32)


def _text(settings: TrainingSettings) -> RandomText:
    loaded = tiny_gpt()
    return RandomText(settings, loaded.context, loaded.vocabulary, n_uncounted=5)


def _on_torch(source: RandomText, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, targets = source.whole(step)
    return torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()


def _torch_gradients(
    values: Values, source: RandomText, dtype: torch.dtype
) -> tuple[float, dict[str, np.ndarray]]:
    parameters = peer_torch.make_parameters(values, dtype)
    tokens, targets = _on_torch(source, 1)
    loss = peer_torch.loss_sum(parameters, SHAPE, tokens, targets) / int((targets >= 0).sum())
    loss.backward()
    gradients = peer_torch.split_projections({name: x.grad for name, x in parameters.items()})
    return loss.item(), {name: x.double().numpy() for name, x in gradients.items()}


def _errors(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest difference over the tensor's largest value, by parameter."""
    return {
        name: float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()) for name in theirs
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("change", [_as_made, _moved], ids=["initial weights", "moved weights"])
def test_loss_and_every_gradient_of_a_step_equal_those_of_pytorch(
    change: Callable[[str, np.ndarray], np.ndarray], dtype: torch.dtype
) -> None:
    loaded = tiny_gpt()
    source = _text(loaded.training)
    loss, gradients, values = step_gradients(loaded, loaded.training, source, change)
    their_loss, their_gradients = _torch_gradients(values, source, dtype)
    assert loss == pytest.approx(their_loss, rel=1e-6)
    assert gradients.keys() == their_gradients.keys() == network_parameters(loaded.network).keys()
    wrong = {
        name: error
        for name, error in _errors(gradients, their_gradients).items()
        if not error <= GRADIENT_TOLERANCE
    }
    assert not wrong


def _session_settings() -> TrainingSettings:
    """The network's own but fewer sequences and steps, with a warm-up that ends within them."""
    training = tiny_gpt().training
    schedule = msgspec.structs.replace(training.schedule, warmup_steps=5)
    return msgspec.structs.replace(
        training, steps=20, batch=8, microbatches=2, schedule=schedule, checkpoint_every=1000, clip_norm=1.2
    )


def _hyper(settings: TrainingSettings) -> peer_torch.Hyper:
    optimizer = settings.optimizer
    parameters = network_parameters(tiny_gpt().network).values()
    return peer_torch.Hyper(
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        clip_norm=settings.clip_norm,
        decaying=frozenset(
            # the peer's three projections are one parameter
            parameter.name.replace(".query_", ".qkv_")
            for parameter in parameters
            if parameter.spec.decays
        ),
    )


def _initial(settings: TrainingSettings) -> Values:
    parameters = network_parameters(tiny_gpt().network)
    return {name: initial_value(settings.seed, name, entry.spec) for name, entry in parameters.items()}


def test_session_of_twenty_steps_follows_pytorchs_adamw() -> None:
    settings = _session_settings()
    source = _text(settings)
    decisions, weights = run_whole_session(tiny_gpt(), settings, source)
    initial = _initial(settings)
    parameters = peer_torch.make_parameters({name: value.copy() for name, value in initial.items()})
    step = peer_torch.make_step(parameters, SHAPE, _hyper(settings), microbatches=1)
    theirs = [
        step(*_on_torch(source, t), learning_rate_at(settings, t)) for t in range(1, settings.steps + 1)
    ]
    losses, norms = np.array([(made.loss, made.gradient_norm) for made in decisions]).T
    their_losses, their_norms = np.array(theirs).T
    assert len(losses) == settings.steps
    np.testing.assert_allclose(losses, their_losses, rtol=LOSS_TOLERANCE)
    np.testing.assert_allclose(norms, their_norms, rtol=1e-3)
    # Some steps were clipped and some were not, else the test would not see clipping.
    assert (norms > settings.clip_norm).any()
    assert (norms < settings.clip_norm).any()
    their_weights = peer_torch.split_projections({name: x.detach() for name, x in parameters.items()})
    for name, value in their_weights.items():
        moved = np.abs(value.numpy() - initial[name]).max()
        assert np.abs(weights[name] - value.numpy()).max() <= 0.01 * moved, name
    assert losses[-1] < losses[0] - 1.0


def test_learning_rates_are_those_of_pytorchs_schedulers() -> None:
    settings = _session_settings()
    peak = settings.optimizer.learning_rate
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=peak)
    n_warm_up = settings.schedule.warmup_steps
    schedulers = torch.optim.lr_scheduler
    schedule = schedulers.SequentialLR(
        optimizer,
        [
            schedulers.LinearLR(optimizer, start_factor=1 / n_warm_up, total_iters=n_warm_up - 1),
            schedulers.CosineAnnealingLR(
                optimizer,
                T_max=settings.steps - n_warm_up,
                eta_min=peak * settings.schedule.final_fraction,
            ),
        ],
        milestones=[n_warm_up - 1],
    )
    theirs = []
    for _ in range(settings.steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    ours = [learning_rate_at(settings, t) for t in range(1, settings.steps + 1)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_peer_trains_from_a_work_file(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(_session_settings(), batch=4, microbatches=2)
    hyper = {**_hyper(settings)._asdict(), "decaying": sorted(_hyper(settings).decaying)}
    initial = _initial(settings)
    facts = {
        "parameters": list(initial),
        "n_layers": SHAPE.n_layers,
        "n_heads": SHAPE.n_heads,
        "hyper": hyper,
        "rates": [1e-3] * (peer_torch.WARM_UP_STEPS + 2),
    }
    tokens = np.random.default_rng(3).integers(0, 512, (len(facts["rates"]), 4, 33), np.int32)
    np.savez(
        tmp_path / "work.npz",
        facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
        tokens=tokens,
        **{f"weight:{name}": value for name, value in initial.items()},
    )
    whole = peer_torch.run(tmp_path / "work.npz", 1, 1)
    parts = peer_torch.run(tmp_path / "work.npz", 2, 1)
    assert len(whole["losses"]) == len(facts["rates"])
    assert len(whole["step_ms"]) == 2
    assert whole["peak_bytes"] > 0
    np.testing.assert_allclose(whole["losses"], parts["losses"], rtol=1e-5)
