"""Calling the command line in this process, and the small home that its tests read. Holds no test."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from dcnr_app.cli.main import run
from dcnr_app.settings import HOME_VARIABLE, Home

TINY = """\
network: tiny
inputs:
  tokens: {shape: [batch, 16], dtype: int32}
  targets: {shape: [batch, 16], dtype: int32}
nodes:
  - {name: tokenizer, type: tokenizer, inputs: [tokens]}
  - {name: embed, type: embedder, n_tokens: 300, n_dim: 16, inputs: [tokenizer]}
  - {name: norm, type: layernorm, n_dim: 16, inputs: [embed]}
  - {name: attention, type: attention, n_dim: 16, n_heads: 2, n_head_dim: 8, inputs: [norm]}
  - {name: residual, type: add, inputs: [embed, attention]}
  - name: head
    type: linear
    n_in: 16
    n_out: 300
    has_bias: false
    share: {weight: embed.weight}
    inputs: [residual]
  - {name: loss, type: cross_entropy, inputs: [head, targets]}
outputs: {loss: loss, logits: head}
training:
  steps: 3
  batch: 4
  microbatches: 2
  checkpoint_every: 1
  validate_every: 2
  validation_sequences: 4
"""
WORDS = (
    "the",
    "node",
    "sends",
    "a",
    "tensor",
    "and",
    "waits",
    "for",
    "über",
    "naïve",
    "漢字",
    "x",
    "=",
    "f(1)",
)


class Result(NamedTuple):
    """How a call ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON on stdout; the call must have ended well."""
        assert self.code == 0, self
        return json.loads(self.out)


class Cli:
    """Calls on one home, whose path is `root`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: Path
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.on(root)

    def on(self, root: Path) -> Self:
        """From now on, this home."""
        self.root = root
        self.home = Home(root)
        self._monkeypatch.setenv(HOME_VARIABLE, str(root))
        return self

    def __call__(self, *arguments: str) -> Result:
        """Run `dcnr-app` with these arguments."""
        self._capsys.readouterr()
        code = run(list(arguments))
        out, err = self._capsys.readouterr()
        return Result(code, out, err)


def write_text_file(path: Path, n_lines: int = 1000) -> None:
    """About 60 KB of random words, the same each time."""
    draw = random.Random(3)  # noqa: S311
    lines = (" ".join(draw.choice(WORDS) for _ in range(12)) for _ in range(n_lines))
    path.write_text("\n".join(lines), encoding="utf-8")


def build_home(folder: Path) -> None:
    """Make `folder/home` with a dataset and a finished session, and the files that they came from."""
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    write_text_file(folder / "words.txt")
    create = ["dataset", "create", "--data", str(folder / "words.txt"), "--vocabulary", "300"]
    train = ["train", str(folder / "tiny.yaml"), "--dataset", "latest", "--workers", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder / "home"))
        assert run([*create, "--validation-percent", "30"]) == 0
        assert run(train) == 0
