"""Runs the real command line in a home of its own, with a network and text that train in a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore

LIMIT_S = 40.0
_POLL_S = 0.002

TINY = """
network: tiny
variables: {layers: 2, width: 16, heads: 2, context: 16, vocabulary: 300}
inputs:
  tokens: {shape: [batch, $context], dtype: int32}
  targets: {shape: [batch, $context], dtype: int32}
nodes:
  - {name: tokenizer, type: tokenizer, inputs: [tokens]}
  - {name: embed, type: embedder, n_tokens: $vocabulary, n_dim: $width, inputs: [tokenizer]}
  - repeat: $layers
    name: block
    carry: {x: embed}
    yield: {x: residual_2}
    nodes:
      - {name: norm_1, type: layernorm, n_dim: $width, inputs: [x]}
      ATTENTION
      - {name: project, type: linear, n_in: $width, n_out: $width, inputs: [mixed]}
      - {name: drop, type: dropout, rate: 0.1, inputs: [project]}
      - {name: residual_1, type: add, inputs: [x, drop]}
      - {name: norm_2, type: layernorm, n_dim: $width, inputs: [residual_1]}
      - {name: up, type: linear, n_in: $width, n_out: "${2 * width}", inputs: [norm_2]}
      - {name: gelu, type: gelu, inputs: [up]}
      - {name: down, type: linear, n_in: "${2 * width}", n_out: $width, inputs: [gelu]}
      - {name: residual_2, type: add, inputs: [residual_1, down]}
  - {name: final_norm, type: layernorm, n_dim: $width, inputs: [block]}
  - name: head
    type: linear
    n_in: $width
    n_out: $vocabulary
    has_bias: false
    share: {weight: embed.weight}
    inputs: [final_norm]
  - {name: loss, type: cross_entropy, inputs: [head, targets]}
outputs: {loss: loss, logits: head}
training:
  steps: 30
  batch: 8
  microbatches: 4
  optimizer: {type: adamw, learning_rate: 3e-3}
  schedule: {type: cosine, warmup_steps: 5}
  validate_every: 10
  validation_sequences: 8
"""
FUSED = """- name: mixed
        type: attention
        n_dim: $width
        n_heads: $heads
        n_head_dim: "${width // heads}"
        rope_base: 10000.0
        inputs: [norm_1]"""
PER_HEAD = """- {name: fan_out, type: broadcast, n_outputs: $heads, inputs: [norm_1]}
      - repeat: $heads
        name: heads
        index: i
        nodes:
          - name: head
            type: attention_head
            n_dim: $width
            n_head_dim: "${width // heads}"
            rope_base: 10000.0
            inputs: ["fan_out:${i}"]
            pnode: $i
      - {name: mixed, type: stack, inputs: [heads/*]}"""


def network_text(attention: str = FUSED) -> str:
    """The tiny network as YAML."""
    return TINY.replace("ATTENTION", attention)


def write_text(folder: Path) -> Path:
    """About 140 KB of words that repeat, in 50 documents; always the same."""
    draw = np.random.default_rng(1)
    words = ["".join(draw.choice(list("abcdefghijklmnop"), draw.integers(2, 8))) for _ in range(300)]
    folder.mkdir()
    for number in range(50):
        lines = [" ".join(draw.choice(words, 12)) for _ in range(40)]
        (folder / f"document-{number:02}.txt").write_text("\n".join(lines))
    return folder


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        """The JSON that stdout holds."""
        return json.loads(self.stdout)


class Place:
    """One home with the text and the networks that go with it."""

    def __init__(self, root: Path, data: Path) -> None:
        self.home = Home(root / "home")
        self.data = data
        self.network = root / "tiny.yaml"
        self.network.write_text(network_text())
        self.startup = root / "startup"

    def at_startup(self, code: str) -> Path:
        """From now on every Python process of a command here runs this code first; returns its folder."""
        self.startup.mkdir()
        (self.startup / "sitecustomize.py").write_text(code)
        return self.startup

    @property
    def environment(self) -> dict[str, str]:
        """Of every command here."""
        path = os.pathsep.join([str(self.startup), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ, "DCNR_HOME": str(self.home.root), "PYTHONUNBUFFERED": "1", "PYTHONPATH": path
        }  # fmt: skip

    def demo(self, *, workers: int, steps: int = 30, network: str = "") -> list[str]:
        """Arguments of a demo with seed 1."""
        return [
            *("demo", "--network", network or str(self.network), "--data", str(self.data)),
            *("--workers", str(workers), "--steps", str(steps), "--seed", "1"),
        ]

    def run(self, *arguments: str, limit_s: float = LIMIT_S) -> Ended:
        """A command from start to end."""
        done = subprocess.run(
            [sys.executable, "-m", "dcnr_app", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        """A command while it runs; whatever is left of it at the end is killed."""
        with subprocess.Popen(
            [sys.executable, "-m", "dcnr_app", *arguments],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            started = Running(self, process)
            try:
                yield started
            finally:
                started.kill_all()

    def sessions(self) -> list[dict[str, Any]]:
        """What `session ls` says."""
        listed = self.run("session", "ls", "--json")
        assert listed.code == 0, listed.stderr
        found: list[dict[str, Any]] = listed.result
        return found

    def commits(self) -> dict[str, list[tuple[int, bytes]]]:
        """Commit rows of every session, as they are stored."""
        with closing(SqliteStore.open_reader(self.home)) as store:
            return {key: list(store.commits(key)) for key, _ in store.items("sessions")}

    def n_commits(self) -> int:
        """Commit rows of all sessions."""
        return sum(len(rows) for rows in self.commits().values())

    def checkpoints(self) -> list[Path]:
        """Folders of complete checkpoints, oldest first."""
        return sorted(
            path.parent for path in self.home.sessions.glob("*/checkpoints/step-*/manifest.json")
            if ".tmp-" not in path.parent.name
        )  # fmt: skip


class Running:
    """A command that runs, and the processes that it has started."""

    def __init__(self, place: Place, process: subprocess.Popen[str]) -> None:
        self.place = place
        self.process = process
        self._seen: dict[int, psutil.Process] = {}

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`; fails if the command ends before."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline, "it took too long"
            self.workers()
            time.sleep(_POLL_S)

    def until_step(self, step: int) -> None:
        """Wait for so many commit rows."""
        self.until(lambda: self.place.n_commits() >= step)

    def workers(self) -> list[psutil.Process]:
        """All processes that it has started so far, dead or alive."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self._seen.setdefault(child.pid, child)
        return list(self._seen.values())

    def kill_all(self) -> None:
        """SIGKILL to the command and all that it has started, at once."""
        if self.process.poll() is None:
            self.workers()
            self.process.kill()
        for worker in self._seen.values():
            if is_alive(worker):
                worker.kill()

    def ended(self, within_s: float = LIMIT_S) -> Ended:
        """Wait for the end."""
        stdout, stderr = self.process.communicate(timeout=within_s)
        return Ended(self.process.returncode, stdout, stderr)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self.workers()
        self.process.send_signal(number)

    def no_worker_within(self, seconds: float) -> None:
        """All that it has started is gone by then."""
        deadline = time.monotonic() + seconds
        while left := [worker for worker in self._seen.values() if is_alive(worker)]:
            assert time.monotonic() < deadline, f"{left} live on"
            time.sleep(_POLL_S)


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def listing(root: Path) -> Mapping[str, tuple[int, int]]:
    """Size and time of change of every file under `root`."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*") if path.is_file()
    }  # fmt: skip


def check_series(losses: Sequence[float], steps: int) -> None:
    """A loss per step, none like another: training has moved."""
    assert len(losses) == steps
    assert len(set(losses)) == steps
