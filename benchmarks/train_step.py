"""Step time, tokens per second and peak memory of a training session, beside PyTorch eager. Not a test.

    python benchmarks/train_step.py --config tiny-gpt --threads 1

A step is forward, backward, clipping and AdamW on a batch of random tokens, in float32. Ours is a real
session with its one PNode in a process of its own: coordinator, messages, the SQLite commit of every step;
a step's time is the time between two commits. The peer gets the same weights, tokens and learning rates,
and its losses must agree. Where our step has microbatches, the peer runs twice: with the whole batch at
once, and with the same microbatches; the ratios are against the faster and against the leaner of the two.
All take turns, each run in a new process. Peak memory is the process's, libraries included, up to the last
step: without checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil

from dcnr_app.app import App
from dcnr_app.cluster.decision import learning_rate_at
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.load import LoadedNetwork
from dcnr_app.nodes.graph.training import TrainingSettings, settings_form
from dcnr_app.runtime.parameters import initial_value
from dcnr_app.settings import child_environment

WARM_UP_STEPS = 3  # as in both sides' files
LOSS_TOLERANCE = 1e-3
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that make BLAS run kernels that are not this machine's."""
OURS, PEER = (Path(__file__).with_name(name) for name in ("own_session.py", "peer_torch.py"))


class Config(NamedTuple):
    """Changes to tiny-gpt's variables, and to its batch (0: the network's own)."""

    variables: Mapping[str, int]
    batch: int = 0
    microbatches: int = 0


CONFIGS: Mapping[str, Config] = {
    "tiny-gpt": Config({}),
    "tiny": Config({"layers": 4, "width": 256, "heads": 4, "context": 256, "vocabulary": 4096}, 8, 1),
    "small": Config({"layers": 4, "width": 384, "heads": 6, "context": 256, "vocabulary": 8192}, 8, 1),
}


class Task(NamedTuple):
    """What both sides train."""

    loaded: LoadedNetwork
    settings: TrainingSettings

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one batch."""
        return self.settings.batch * self.loaded.context


def make_task(name: str, n_timed: int) -> Task:
    """The network and settings of a configuration, with steps for warm-up, timing and the end."""
    config = CONFIGS[name]
    loaded = App().network("tiny-gpt", config.variables)
    steps = WARM_UP_STEPS + n_timed
    # A checkpoint after the last step only: the peer writes none.
    settings = msgspec.structs.replace(loaded.training, steps=steps, checkpoint_every=steps + 1)
    if config.batch:
        settings = msgspec.structs.replace(settings, batch=config.batch, microbatches=config.microbatches)
    return Task(loaded, settings)


def write_work_file(path: Path, task: Task) -> None:
    """All that the two sides need to train the same network on the same tokens from the same weights."""
    settings, optimizer = task.settings, task.settings.optimizer
    parameters = network_parameters(task.loaded.network)
    variables = task.loaded.variables
    facts = {
        "network": task.loaded.network.name,
        "variables": dict(variables),
        "settings": settings_form(settings),
        "parameters": list(parameters),
        "n_layers": variables["layers"],
        "n_heads": variables["heads"],
        "rates": [learning_rate_at(settings, t) for t in range(1, settings.steps + 1)],
        "hyper": {
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "clip_norm": settings.clip_norm,
            # the peer's three projections are one parameter
            "decaying": [
                n.replace(".query_", ".qkv_") for n, entry in parameters.items() if entry.spec.decays
            ],
        },
    }
    shape = (settings.steps, settings.batch, task.loaded.context + 1)
    tokens = np.random.default_rng(settings.seed).integers(0, task.loaded.vocabulary, shape, np.int32)
    weights = {
        f"weight:{name}": initial_value(settings.seed, name, entry.spec) for name, entry in parameters.items()
    }
    np.savez(path, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), tokens=tokens, **weights)


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object that a child prints, and `other_cores`: the cores that other processes kept busy."""
    begin, busy, own = time.perf_counter(), _busy_s(), _children_s()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    wall_s = time.perf_counter() - begin
    others_s = (_busy_s() - busy) - (_children_s() - own)
    return {**json.loads(done.stdout), "other_cores": max(0.0, others_s / wall_s)}


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def environment_of(threads: int, *, is_peer: bool) -> dict[str, str]:
    """A side's environment: threads as asked for, this machine's own BLAS kernels."""
    base = dict(os.environ) if is_peer else child_environment()
    if is_peer:
        base.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    return {name: value for name, value in base.items() if name not in MISLEADING}


def has_pytorch(python: str) -> bool:
    """Whether that Python can run the peer."""
    command = [python, "-c", "import torch, numpy"]
    return subprocess.run(command, capture_output=True, check=False, timeout=300).returncode == 0


def summary(runs: Sequence[Mapping[str, Any]], tokens_per_step: int) -> dict[str, Any]:
    """One side's figures over all its runs."""
    times_ms = [time_ms for run in runs for time_ms in run["step_ms"]]
    medians_ms = [statistics.median(run["step_ms"]) for run in runs]
    median_ms = statistics.median(times_ms)
    return {
        "engine": runs[0]["engine"],
        "step_ms": median_ms,
        "run_medians_ms": medians_ms,
        "tokens_per_s": tokens_per_step / median_ms * 1000.0,
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "other_cores": max(run["other_cores"] for run in runs),
        "losses": runs[0]["losses"],
    }


def compare(sides: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Speed above 1: we are faster. Memory below 1: we need less. Exits if the losses differ."""
    ours = sides["ours"]
    peers = [side for name, side in sides.items() if name != "ours"]
    if not peers:
        return {}
    difference = max(
        abs(a / b - 1.0) for peer in peers for a, b in zip(ours["losses"], peer["losses"], strict=True)
    )
    if not difference <= LOSS_TOLERANCE:
        sys.exit(f"the sides do not train the same: losses differ by up to {difference:.1e}")
    return {
        "ratio_speed": min(peer["step_ms"] for peer in peers) / ours["step_ms"],
        "ratio_memory": ours["peak_bytes"] / min(peer["peak_bytes"] for peer in peers),
        "loss_difference": difference,
    }


def report(result: Mapping[str, Any]) -> None:
    """The figures as a table."""
    print(
        f"{result['config']}: {result['parameters']:,} parameters, {result['batch']} x {result['context']} "
        f"tokens a step in {result['microbatches']} microbatches, float32, threads {result['threads']}; "
        f"{result['runs']} runs of {result['steps']} steps each, in turns"
    )
    print(f"{'':24}{'step ms':>9}{'runs from .. to':>18}{'tokens/s':>10}{'peak MiB':>10}{'others':>8}")
    for name, side in result["sides"].items():
        spread = f"{min(side['run_medians_ms']):.1f} .. {max(side['run_medians_ms']):.1f}"
        print(
            f"{name:24}{side['step_ms']:9.1f}{spread:>18}{side['tokens_per_s']:10.0f}"
            f"{side['peak_bytes'] / 2**20:10.0f}{side['other_cores']:8.2f}   {side['engine']}"
        )
    print("others: most cores that other processes kept busy during a run; above 0.15, measure again")
    print(f"load average {result['load_before']:.2f} before, {result['load_after']:.2f} after")
    for name, value in result["ratios"].items():
        print(f"{name} {value:.3g}")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All runs of all sides, in turns."""
    task = make_task(arguments.config, arguments.steps)
    work = folder / "work.npz"
    write_work_file(work, task)
    settings = task.settings
    threads = str(arguments.threads)
    commands = {"ours": [sys.executable, str(OURS), str(work), "--threads", threads]}
    peer_python = arguments.peer_python or sys.executable
    if has_pytorch(peer_python):
        for n in sorted({1, settings.microbatches}):
            name = "PyTorch, whole batch" if n == 1 else f"PyTorch, {n} microbatches"
            peer = [peer_python, str(PEER), str(work), "--microbatches", str(n), "--threads", threads]
            commands[name] = peer
    else:
        print(
            f"{peer_python} has no PyTorch, so ours alone is measured. To compare: pip install torch==2.13.0",
            file=sys.stderr,
        )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    load_before = os.getloadavg()[0]
    for _ in range(arguments.runs):
        for name, command in commands.items():
            environment = environment_of(arguments.threads, is_peer=name != "ours")
            runs[name].append(run_child(command, environment))
    sides = {name: summary(found, task.tokens_per_step) for name, found in runs.items()}
    parameters = network_parameters(task.loaded.network).values()
    return {
        "config": arguments.config,
        "parameters": sum(int(np.prod(entry.spec.shape)) for entry in parameters),
        "batch": settings.batch,
        "microbatches": settings.microbatches,
        "context": task.loaded.context,
        "threads": arguments.threads,
        "runs": arguments.runs,
        "steps": arguments.steps,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "sides": sides,
        "ratios": compare(sides),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", choices=list(CONFIGS), default="tiny-gpt")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a run, after the warm-up")
    parser.add_argument("--runs", type=int, default=5, help="runs of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-python", help="a Python with PyTorch and NumPy; this one by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="train-step-") as folder:
        result = measure(arguments, Path(folder))
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        report(result)


if __name__ == "__main__":
    main()
